"""The workers that hold environments, and how often they were started anew. A run without them has no such series."""

from __future__ import annotations

from collections import Counter

from ....core.projections.environment_workers import worker_name, workers_of
from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import (
    EnvironmentWorkerLost,
    EnvironmentWorkerRestarted,
    EnvironmentWorkerUp,
    RunResumed,
    RunStarted,
)
from .part import Part
from .snapshot import Snapshot

WORKER_STATES = ("starting", "up", "lost", "restarting")


class EnvironmentWorkers(Part):
    """Workers by state, from the beginning of the run on."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._restarts = 0

    @on(RunStarted, RunResumed)
    def _begun(self, record: Record, event: RunStarted | RunResumed) -> None:
        count = len(self._states) if event.config is None else workers_of(event.config)
        self._states = {worker_name(number): "starting" for number in range(count)}

    @on(EnvironmentWorkerUp)
    def _up(self, record: Record, event: EnvironmentWorkerUp) -> None:
        self._states[event.worker] = "up"

    @on(EnvironmentWorkerLost)
    def _lost(self, record: Record, event: EnvironmentWorkerLost) -> None:
        self._states[event.worker] = "lost"

    @on(EnvironmentWorkerRestarted)
    def _restarted(self, record: Record, event: EnvironmentWorkerRestarted) -> None:
        self._states[event.worker] = "restarting"
        self._restarts += 1

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write how many are in each state, and the restarts."""
        if self._states:
            into.set_each("rl_environment_workers", Counter(self._states.values()), WORKER_STATES)
            into.set("rl_environment_worker_restarts_total", self._restarts)
