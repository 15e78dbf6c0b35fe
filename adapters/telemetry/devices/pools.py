"""Which device works for whom, as engines and learner said when they came up."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....core.projections.fold import Folded, on
from ....events.record import Record
from ....events.types import EngineUp, LearnerUp, RunResumed, RunStarted
from .source import Pool


@dataclass
class DevicePools(Folded):
    """A fold of `EngineUp` and `LearnerUp`; the newest word of each counts."""

    engines: dict[str, str] = field(default_factory=dict)
    """Device by engine."""
    learner: str = ""

    def pool_of(self, device: str) -> Pool:
        """Return what `device` (``cuda:1``) works for; ``shared`` where it is for both, or nobody said."""
        engine, learner = device in self.engines.values(), device == self.learner
        if engine == learner:
            return "shared"
        return "engine" if engine else "learner"

    @on(RunStarted, RunResumed)
    def _begun(self, record: Record, event: RunStarted | RunResumed) -> None:
        self.engines.clear()
        self.learner = ""

    @on(EngineUp)
    def _engine_up(self, record: Record, event: EngineUp) -> None:
        self.engines[event.engine] = _numbered(event.device)

    @on(LearnerUp)
    def _learner_up(self, record: Record, event: LearnerUp) -> None:
        self.learner = _numbered(event.device)


def _numbered(device: str) -> str:
    """Return the device by number: ``cuda`` alone means the first one."""
    return "cuda:0" if device == "cuda" else device
