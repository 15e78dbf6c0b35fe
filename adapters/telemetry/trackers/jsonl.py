"""``metrics.jsonl`` in the run folder: one line per step of the history that survives, each step once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from .figures import StepRow

FILE = "metrics.jsonl"


class JsonlTracker:
    """The file is a fold of the log: made anew from `rows` when it is opened, and shortened when a run is resumed.

    Both replace it whole, so a reader never sees half of it. Lines hold ``step``, ``seq`` and ``ts`` (of the event
    that ended the step's window; nanoseconds) and the figures. A line is there when `log` returns.
    """

    def __init__(self, path: Path, rows: Iterable[StepRow] = ()) -> None:
        self._path = path
        self._replace(line_of(row) for row in rows)
        self._file = path.open("ab")

    def log(self, row: StepRow) -> None:
        """Append one line."""
        self._file.write(line_of(row))
        self._file.flush()

    def rewind(self, step: int) -> None:
        """Take back the lines of `step` and after."""
        self._file.close()
        lines = self._path.read_bytes().splitlines(keepends=True)
        self._replace(line for line in lines if json.loads(line)["step"] < step)
        self._file = self._path.open("ab")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _replace(self, lines: Iterable[bytes]) -> None:
        fresh = self._path.with_suffix(".part")
        fresh.write_bytes(b"".join(lines))
        fresh.replace(self._path)


def line_of(row: StepRow) -> bytes:
    """Return the line of one step."""
    return json.dumps({"step": row.step, "seq": row.seq, "ts": row.ts, **row.figures}).encode() + b"\n"
