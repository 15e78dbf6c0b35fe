"""Parquet: columns on disk, turned once into a memory-mapped Arrow file that gives any row in microseconds."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..wording import require
from .errors import DataError

_ROWS_PER_BATCH = 1024


class ParquetRows:
    """The rows of a Parquet file.

    Parquet has no access to a single row: a whole row group must be unpacked for one. Drawn in a shuffled order,
    that would unpack the file over and over, so it is unpacked once, batch by batch, into a temporary Arrow file
    (in the system's temporary folder, without a name, gone when the process ends). The operating system keeps in
    memory what is in use. Raises `DataError`, and `MissingExtra` without pyarrow.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        pa = require("pyarrow", "data")
        parquet = require("pyarrow.parquet", "data")
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        try:
            self._batches = _unpacked(pa, parquet, path, limit)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: {str(error).splitlines()[0]}") from error
        self._ends: list[int] = []
        for batch in self._batches:
            self._ends.append((self._ends[-1] if self._ends else 0) + batch.num_rows)
        if not len(self):
            raise DataError(f"{path}: holds no rows")

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._ends[-1] if self._ends else 0

    def row(self, index: int) -> Mapping[str, Any]:
        """Return the row at `index` as plain Python values, by column."""
        batch = bisect_right(self._ends, index)
        start = self._ends[batch - 1] if batch else 0
        row: dict[str, Any] = self._batches[batch].slice(index - start, 1).to_pylist()[0]
        return row


def _unpacked(pa: Any, parquet: Any, path: Path, limit: int | None) -> list[Any]:
    """Return the file's record batches, lying in a memory-mapped temporary file."""
    left = limit
    with tempfile.NamedTemporaryFile(prefix="eventrain-", suffix=".arrow") as file:
        with parquet.ParquetFile(path) as source, pa.ipc.new_file(file, source.schema_arrow) as sink:
            for batch in source.iter_batches(batch_size=_ROWS_PER_BATCH):
                kept = batch if left is None else batch.slice(0, left)
                sink.write_batch(kept)
                left = None if left is None else left - kept.num_rows
                if left == 0:
                    break
        file.flush()
        # The mapping outlives the name: the file goes when the last batch does.
        with pa.memory_map(file.name) as mapped, pa.ipc.open_file(mapped) as reader:
            return [reader.get_batch(number) for number in range(reader.num_record_batches)]
