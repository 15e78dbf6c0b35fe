"""Which run this is: the id that its traces are named after."""

from __future__ import annotations

from dataclasses import dataclass

from ...events.identity import run_id
from ...events.record import Record
from ...events.types import RunResumed, RunStarted
from .fold import Folded, on


@dataclass
class Identity(Folded):
    """The run's id. It survives a resume; a fork has one of its own from the moment it was forked."""

    name: str = ""
    run: str = ""
    """The id; empty before the first event."""
    started_ts: int = 0
    """UTC nanoseconds at which it began: of a fork, at which it was forked."""

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self._begin(event.run, record.ts)

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        if event.forked_from:
            renamed = None if event.config is None else event.config.get("run", {}).get("name")
            self._begin(self.name if renamed is None else str(renamed), record.ts)

    def _begin(self, name: str, ts: int) -> None:
        self.name, self.run, self.started_ts = name, run_id(name, ts), ts
