"""Where training stands: step, version, phase, and what the current step still has to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...events.record import Record
from ...events.types import (
    BatchTaken,
    CheckpointCommitted,
    CheckpointFailed,
    EvalCompleted,
    EvalStarted,
    LearnerUp,
    Phase,
    PhaseEntered,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    StopRequested,
    WeightsPublished,
)
from .fold import Folded, on


@dataclass
class Trainer(Folded):
    """The trainer's state."""

    steps_total: int = 0
    step: int = 0
    """First step whose batch training has not consumed."""
    version: int = 0
    """Weights that the learner holds."""
    learner_up: bool = False
    published: int = -1
    """Newest version that lies ready for the engines."""
    published_path: str = ""
    published_bytes: int = 0
    published_tensors: int = 0
    published_buckets: int = 1
    published_digest: str = ""
    taken: tuple[int, ...] = ()
    """Groups of the batch that is taken and not yet trained."""
    taken_step: int = -1
    evaluated: int = -1
    """Newest version that an evaluation was made of, whatever its outcome."""
    evals: int = 0
    checkpointed: int = -1
    """Newest version that a checkpoint was tried for."""
    checkpoints: list[str] = field(default_factory=list)
    """Committed ones, oldest first."""
    stop_reason: str = ""
    phase: Phase = "starting"
    phase_since_ns: int = 0
    phase_ns: dict[str, int] = field(default_factory=dict)
    """Nanoseconds of the phases that have ended."""
    started_ns: int = 0
    outcome: str = ""

    @property
    def finished(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.outcome != ""

    def phase_seconds(self, now_ns: int | None = None) -> dict[str, float]:
        """Return seconds per phase; with `now_ns` (the run's monotonic clock) the open phase counts up to it."""
        seconds = {phase: ns / 1e9 for phase, ns in self.phase_ns.items()}
        if now_ns is not None and not self.finished:
            seconds[self.phase] = seconds.get(self.phase, 0.0) + (now_ns - self.phase_since_ns) / 1e9
        return seconds

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self.steps_total = int(event.config["run"]["steps"])
        self.started_ns = self.phase_since_ns = record.mono

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        if not self.finished and event.last_mono is not None:
            self._close_phase(event.last_mono)
        if event.config is not None:
            self.steps_total = int(event.config["run"]["steps"])
        self.step, self.version = event.step, event.version
        self.learner_up, self.published, self.taken, self.taken_step = False, -1, (), -1
        self.checkpointed, self.evaluated = event.version, min(self.evaluated, event.version)
        while self.checkpoints and self.checkpoints[-1] != event.checkpoint:
            self.checkpoints.pop()
        self.outcome = self.stop_reason = ""
        self.phase, self.phase_since_ns = "starting", record.mono

    @on(PhaseEntered)
    def _phase(self, record: Record, event: PhaseEntered) -> None:
        self._close_phase(record.mono)
        self.phase, self.phase_since_ns = event.phase, record.mono

    def _close_phase(self, now_ns: int) -> None:
        self.phase_ns[self.phase] = self.phase_ns.get(self.phase, 0) + now_ns - self.phase_since_ns

    @on(LearnerUp)
    def _learner_up(self, record: Record, event: LearnerUp) -> None:
        self.learner_up, self.version = True, event.version

    @on(BatchTaken)
    def _taken(self, record: Record, event: BatchTaken) -> None:
        self.taken, self.taken_step, self.step = event.groups, event.step, event.step + 1

    @on(StepCompleted)
    def _completed(self, record: Record, event: StepCompleted) -> None:
        self.version, self.taken, self.taken_step = event.version, (), -1

    @on(WeightsPublished)
    def _published(self, record: Record, event: WeightsPublished) -> None:
        self.published, self.published_path, self.published_bytes = event.version, event.path, event.size_bytes
        self.published_tensors, self.published_buckets = event.tensors, event.buckets
        self.published_digest = event.digest

    @on(EvalStarted)
    def _evaluating(self, record: Record, event: EvalStarted) -> None:
        self.evals = event.eval + 1

    @on(EvalCompleted)
    def _evaluated(self, record: Record, event: EvalCompleted) -> None:
        self.evaluated = event.version

    @on(CheckpointCommitted)
    def _checkpointed(self, record: Record, event: CheckpointCommitted) -> None:
        self.checkpointed = event.version
        self.checkpoints.append(event.path)

    @on(CheckpointFailed)
    def _checkpoint_failed(self, record: Record, event: CheckpointFailed) -> None:
        self.checkpointed = event.version

    @on(StopRequested)
    def _stop(self, record: Record, event: StopRequested) -> None:
        self.stop_reason = self.stop_reason or event.reason

    @on(RunFinished, RunFailed)
    def _ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self._close_phase(record.mono)
        self.phase, self.phase_since_ns = "finished", record.mono
        self.outcome = event.outcome if isinstance(event, RunFinished) else "failed"
