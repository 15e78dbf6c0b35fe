"""Every worker that holds environments: its state, and the trajectories whose environments it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ...events.record import Record
from ...events.types import (
    EnvironmentWorkerLost,
    EnvironmentWorkerRestarted,
    EnvironmentWorkerUp,
    EnvStepStarted,
    RunResumed,
    RunStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
)
from .fold import Folded, on

WorkerState = Literal["up", "lost", "restarting"]


def worker_name(number: int) -> str:
    """Return the name of worker `number`, as launchers, events and people know it."""
    return f"environment-{number}"


def workers_of(config: dict[str, Any]) -> int:
    """Return how many workers a configuration, as a log has it, asks for."""
    return int(config.get("environment", {}).get("workers", 0))


@dataclass(slots=True)
class EnvironmentWorkerStatus:
    """One worker."""

    name: str
    state: WorkerState
    open: int = 0
    """Trajectories whose environments it holds."""
    restarts: int = 0
    lost_seq: int | None = None
    lost_message: str = ""
    node: str = ""


@dataclass
class EnvironmentWorkers(Folded):
    """The environment pool's state. A worker that has not come up yet is not in it."""

    by_name: dict[str, EnvironmentWorkerStatus] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """Trajectories that have an environment -> the worker that holds it, or held it when it was lost."""
    count: int = 0
    """Workers that are to come up; 0: environments live in the controller."""

    def up(self) -> list[EnvironmentWorkerStatus]:
        """Return the workers that make environments."""
        return [worker for worker in self.by_name.values() if worker.state == "up"]

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self.count = workers_of(event.config)

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        if event.config is not None:
            self.count = workers_of(event.config)
        self.by_name.clear()
        self.held.clear()

    @on(EnvironmentWorkerUp)
    def _up(self, record: Record, event: EnvironmentWorkerUp) -> None:
        worker = self.by_name.setdefault(event.worker, EnvironmentWorkerStatus(event.worker, "up"))
        worker.state, worker.node = "up", event.node

    @on(EnvironmentWorkerLost)
    def _lost(self, record: Record, event: EnvironmentWorkerLost) -> None:
        worker = self.by_name.setdefault(event.worker, EnvironmentWorkerStatus(event.worker, "lost"))
        worker.state, worker.lost_seq, worker.lost_message = "lost", record.seq, event.message

    @on(EnvironmentWorkerRestarted)
    def _restarted(self, record: Record, event: EnvironmentWorkerRestarted) -> None:
        worker = self.by_name[event.worker]
        worker.state, worker.restarts = "restarting", event.restart

    @on(EnvStepStarted)
    def _asked(self, record: Record, event: EnvStepStarted) -> None:
        if event.call != "reset" or not event.worker:
            return
        self.held[event.trajectory] = event.worker
        self.by_name[event.worker].open += 1

    @on(TrajectoryCompleted, TrajectoryFailed)
    def _ended(self, record: Record, event: TrajectoryCompleted | TrajectoryFailed) -> None:
        name = self.held.pop(event.trajectory, None)
        if name is not None:
            self.by_name[name].open -= 1
