"""Trackio: a database on this machine, which ``trackio show`` draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from ...wording import require
from .figures import StepRow


class TrackioTracker:
    """A run of `project` with our run's id, in the database that trackio keeps (``TRACKIO_DIR``).

    It goes on when ours is resumed; `rows`, the steps so far, are written if it is new there. Raises `MissingExtra`.
    """

    def __init__(
        self, project: str, run_id: str, config: Mapping[str, Any], rows: Iterable[StepRow] = ()
    ) -> None:
        library: Any = require("trackio", "trackio")
        _silence(library)
        storage: Any = require("trackio.sqlite_storage", "trackio").SQLiteStorage
        known = run_id in storage.get_runs(project)
        self._run = library.init(
            project=project,
            name=run_id,
            config=dict(config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        for row in () if known else rows:
            self.log(row)

    def log(self, row: StepRow) -> None:
        """Write the figures of one step."""
        self._run.log(dict(row.figures), step=row.step)

    def rewind(self, step: int) -> None:
        """Do nothing: trackio keeps what it was told before, and takes the step once more."""

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()


def _silence(library: ModuleType) -> None:
    """Keep trackio from printing: the terminal shows the run."""
    for module in (library, require("trackio.run", "trackio"), require("trackio.utils", "trackio")):
        module.__dict__["print"] = _nothing


def _nothing(*_: object, **__: object) -> None:
    return
