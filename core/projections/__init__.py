"""Projections: state as the fold of events. Everything that decides reads only these and the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MethodType

from ...events.record import Record
from ...events.types import Event
from .engines import Engines, EngineStatus
from .environment_workers import EnvironmentWorkers, EnvironmentWorkerStatus
from .fold import Folded, on
from .groups import Completed, Group, Groups
from .identity import Identity
from .movement import Hole, Movement
from .outstanding import Effect, Outstanding
from .pace import Pace
from .progress import EvalRow, Progress, StepRow
from .prompts import Prompts, strike_of
from .trainer import Trainer
from .waits import Attempt, Attempts, Wait, Waits

__all__ = [
    "Attempt",
    "Attempts",
    "Completed",
    "Effect",
    "EngineStatus",
    "Engines",
    "EnvironmentWorkerStatus",
    "EnvironmentWorkers",
    "EvalRow",
    "Folded",
    "Group",
    "Groups",
    "Hole",
    "Identity",
    "Movement",
    "Outstanding",
    "Pace",
    "Progress",
    "Prompts",
    "StepRow",
    "Trainer",
    "View",
    "Wait",
    "Waits",
    "on",
    "strike_of",
]


@dataclass
class View:
    """All projections that decisions read, folded together: the state of a run."""

    identity: Identity = field(default_factory=Identity)
    trainer: Trainer = field(default_factory=Trainer)
    groups: Groups = field(default_factory=Groups)
    prompts: Prompts = field(default_factory=Prompts)
    engines: Engines = field(default_factory=Engines)
    environment_workers: EnvironmentWorkers = field(default_factory=EnvironmentWorkers)
    waits: Waits = field(default_factory=Waits)
    attempts: Attempts = field(default_factory=Attempts)
    progress: Progress = field(default_factory=Progress)
    pace: Pace = field(default_factory=Pace)
    outstanding: Outstanding = field(default_factory=Outstanding)
    movement: Movement = field(default_factory=Movement)
    last_seq: int = -1
    """Newest record folded."""
    last_ts: int = 0
    last_mono: int = 0

    def __post_init__(self) -> None:
        self._routes: dict[type[Event], tuple[MethodType, ...]] = {}
        parts = (
            self.identity,
            self.trainer,
            self.groups,
            self.prompts,
            self.engines,
            self.environment_workers,
            self.waits,
            self.attempts,
            self.progress,
            self.pace,
            self.outstanding,
            self.movement,
        )
        for part in parts:
            for event, handler in part.handlers.items():
                self._routes[event] = (*self._routes.get(event, ()), MethodType(handler, part))

    def apply(self, record: Record) -> None:
        """Fold one record into every projection that cares about it."""
        event = record.event
        for handler in self._routes.get(type(event), ()):
            handler(record, event)
        self.last_seq, self.last_ts, self.last_mono = record.seq, record.ts, record.mono
