"""TensorBoard: one scalar per figure, in ``tensorboard`` of the run folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...wording import require
from .figures import StepRow

FOLDER = "tensorboard"


class TensorBoardTracker:
    """Event files by tensorboardX. With `rows`, the steps of a log that goes on, all of them are written again.

    TensorBoard is told from which step on earlier files do not count any more. Raises `MissingExtra`.
    """

    def __init__(self, folder: Path, rows: Iterable[StepRow] = ()) -> None:
        self._library: Any = require("tensorboardX", "tensorboard")
        self._folder = folder
        self._writer: Any = None
        self._files = 0
        again = list(rows)
        self._purge_from: int | None = 0 if again or folder.exists() else None
        for row in again:
            self.log(row)

    def log(self, row: StepRow) -> None:
        """Write the figures of one step."""
        if self._writer is None:
            self._files += 1
            self._writer = self._library.SummaryWriter(
                str(self._folder), purge_step=self._purge_from, filename_suffix=f".{self._files}"
            )
        for key, value in row.figures.items():
            self._writer.add_scalar(key, value, row.step, walltime=row.ts / 1e9)
        self._writer.flush()

    def rewind(self, step: int) -> None:
        """Have `step` and all after it not count: the next file says so."""
        self.close()
        self._purge_from = step

    def close(self) -> None:
        """Close the file that is open."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
