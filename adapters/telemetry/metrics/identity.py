"""Who the run is: its id, and what its configuration says that others count by."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from ....core.config import recorded_scheduler
from ....core.projections import Identity as RunIdentity
from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import RunFailed, RunFinished, RunResumed, RunStarted
from .part import Part
from .snapshot import Snapshot

OUTCOMES = ("running", "completed", "interrupted", "data_exhausted", "failed")


class Identity(Part):
    """The run's id and settings; a fork has its own id from the event on with which it was made."""

    def __init__(self) -> None:
        self._identity = RunIdentity()
        self.environment = ""
        self.groups_per_step = 1
        self.targeted = True
        """Whether a batch is made of the groups that were meant for its step."""
        self.buffer_groups = 0
        self._info: tuple[str, ...] = ()
        self._outcome = "running"

    @property
    def run(self) -> str:
        """The run's id; empty before the first event."""
        return self._identity.run

    @property
    def started_ts(self) -> int:
        """UTC nanoseconds at which it began: of a fork, at which it was forked."""
        return self._identity.started_ts

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self._identity.apply(record)
        self._configured(event.config, event.code_version)

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        self._identity.apply(record)
        self._outcome = "running"
        if event.config is not None:
            self._configured(event.config, event.code_version or self._info[-1])

    @on(RunFinished, RunFailed)
    def _ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self._outcome = event.outcome if isinstance(event, RunFinished) else "failed"

    def _configured(self, config: dict[str, Any], code_version: str) -> None:
        sections: dict[str, dict[str, Any]] = {
            name: section for name, section in config.items() if isinstance(section, dict)
        }

        def said(section: str, key: str, otherwise: str) -> str:
            return str(sections.get(section, {}).get(key, otherwise))

        scheduler = recorded_scheduler(config)
        self.environment = said("environment", "kind", "unknown")
        self.groups_per_step = scheduler.groups_per_step
        self.targeted = scheduler.policy == "targeted"
        self.buffer_groups = scheduler.buffer_or_default
        self._info = (
            said("run", "name", "run"),
            PurePath(said("model", "path", "unknown")).name,
            scheduler.policy,
            said("algorithm", "advantage", "grpo"),
            said("engine", "kind", "torch"),
            code_version,
        )

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write who the run is and how it stands."""
        into.set("rl_run_info", 1, *self._info)
        into.set_state("rl_run_outcome", self._outcome, OUTCOMES)
        into.set("rl_buffer_capacity_groups", self.buffer_groups)
