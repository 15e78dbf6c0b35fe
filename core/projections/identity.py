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

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self.name, self.run = event.run, run_id(event.run, record.ts)

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        if event.forked_from:
            if event.config is not None:
                self.name = str(event.config["run"]["name"])
            self.run = run_id(self.name, record.ts)
