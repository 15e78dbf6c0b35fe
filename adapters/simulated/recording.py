"""What a log says of the outside world: every answer that a run got, when it came, and what it was an answer to.

An answer is kept by what its call is about (a turn of an attempt at a trajectory, a step, a version), not by its place
in the log, so that a run that asks the same gets the same, in whatever order it asks. Of a resumed run only the last
life is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...core.config import RunConfig
from ...core.projections.environment_workers import worker_name
from ...events.record import Record
from ...events.types import (
    TELEMETRY,
    BatchTaken,
    Blocked,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointStarted,
    DeadlineExpired,
    EngineLost,
    EngineRestarted,
    EngineUp,
    EnvironmentWorkerLost,
    EnvironmentWorkerRestarted,
    EnvironmentWorkerUp,
    EnvStepFinished,
    EnvStepStarted,
    EvalStarted,
    Event,
    GroupDiscarded,
    GroupRestored,
    LearnerLost,
    LearnerUp,
    LlmCallFinished,
    LlmCallStarted,
    LogTailCut,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RewardScored,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepStarted,
    StopRequested,
    SyncAcknowledged,
    SyncFailed,
    SyncRetried,
    SyncStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
    Unblocked,
    WeightsPublished,
)
from .decisions import Decision, decision_of
from .recorded_calls import Answer, Key, RecordedCalls

AT_ONCE_S = 0.05
"""An answer of the environment within this time, with no other event meanwhile, was given without a wait."""
FOLLOW_UPS = frozenset({
    LlmCallStarted,
    LlmCallFinished,
    EnvStepStarted,
    EnvStepFinished,
    RewardScored,
    TrajectoryStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    Blocked,
    Unblocked,
    *TELEMETRY,
})
"""Events that decide nothing."""
OPENING = (RunResumed, LogTailCut, GroupRestored, GroupDiscarded, PromptReturned)
"""What a resumed run begins with."""


@dataclass
class Recording:
    """The fold of a run's log into the answers of its last life."""

    started: RunStarted | None = None
    config: RunConfig | None = None
    lives: int = 1
    first: Record | None = None
    """The first record of the life."""
    last: Record | None = None
    opening: list[Event] = field(default_factory=list)
    """Of a resumed life."""
    drawn: dict[int, int] = field(default_factory=dict)
    """Index of each prompt that was ever drawn."""
    quarantined: list[int] = field(default_factory=list)
    engines: dict[str, int] = field(default_factory=dict)
    """How often each was to start, in this life."""
    workers: dict[str, int] = field(default_factory=dict)
    """How often each worker of environments came up, or failed to, in this life."""
    homes: dict[tuple[str, int], str] = field(default_factory=dict)
    """Worker that held the environment of each attempt at a trajectory."""
    unanswered: dict[str, list[float]] = field(default_factory=dict)
    """When a worker was asked whether it answers, in nanoseconds, and did not."""
    calls: RecordedCalls = field(default_factory=RecordedCalls)
    prompt_tokens: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Tokens of the conversation at the call of (trajectory, attempt, turn)."""
    decisions: list[Decision] = field(default_factory=list)
    stop: Answer | None = None
    """When somebody asked the run to end."""
    eval_items: int = 0
    _attempts: dict[str, int] = field(default_factory=dict)
    _latest: dict[str, Answer] = field(default_factory=dict)  # of each trajectory that has not ended
    _starting: dict[str, Record] = field(default_factory=dict)  # engines
    _updates: dict[str, int] = field(default_factory=dict)  # engine -> attempt of its sync
    _expired: set[Key] = field(default_factory=set)
    _learner: Key | None = ("learner_start",)  # what it does now, where no event says that it began
    _learner_since: Record | None = None
    _learner_failed: Answer | None = None
    _durables: dict[int, Key] = field(default_factory=dict)
    _waits: dict[int, Record] = field(default_factory=dict)  # for the disk

    @classmethod
    def of(cls, records: Iterable[Record]) -> Recording:
        """Fold a log; `lacks` says whether it can be reproduced."""
        recording = cls()
        for record in records:
            recording.apply(record)
        recording.calls.settle(recording.first)
        return recording

    @property
    def ended(self) -> bool:
        """Return whether the log has the end of the run."""
        return self.last is not None and isinstance(self.last.event, RunFinished | RunFailed)

    @property
    def cancelled(self) -> bool:
        """Return whether the run was cancelled from outside."""
        last = self.last.event if self.last is not None else None
        return isinstance(last, RunFailed) and last.error == "cancelled"

    def answer(self, key: Key) -> Answer | None:
        """Return the answer to a call, None if the log does not know it."""
        return self.calls.answers.get(key)

    # The fold

    def apply(self, record: Record) -> None:
        """Fold one record."""
        self.last = record
        event = record.event
        if isinstance(event, RunStarted | RunResumed):
            self._begin_life(record)
        elif self.opening and record.actor == "run" and isinstance(event, OPENING) and not self.decisions:
            self.opening.append(event)
            return
        decision = decision_of(record)
        if decision is not None:
            self.decisions.append(decision)
        if type(event) not in FOLLOW_UPS or (isinstance(event, TrajectoryStarted) and event.attempt > 0):
            self.calls.part()
        for fold in _FOLDS.get(type(event), ()):
            fold(self, record)
        if isinstance(event, EngineUp | EnvironmentWorkerUp):
            self.calls.part()  # calls are routed to it from its time on
        match event:
            case PromptDrawn():
                self.drawn[event.prompt] = event.index
            case PromptQuarantined():
                self.quarantined.append(event.index)
            case StopRequested(reason="interrupted"):
                self.stop = self.calls.end(record, ("stop",), "completed")
            case EvalStarted():
                self.eval_items = event.trajectories

    def _begin_life(self, record: Record) -> None:
        if isinstance(record.event, RunStarted):
            self.started = record.event
            self.config = RunConfig.model_validate(record.event.config)
        else:
            self.lives += 1
            self.opening = [record.event]
        self.first = self._learner_since = record
        self.calls.clear()
        for kept in (self.prompt_tokens, self.engines, self._attempts, self._latest):
            kept.clear()
        for more in (self.workers, self.homes, self.unanswered):
            more.clear()
        for also in (self._starting, self._durables, self._waits, self._expired, self.decisions):
            also.clear()
        self.stop = self._learner_failed = None
        self._learner = ("learner_start",)
        assert self.config is not None
        for name in map(worker_name, range(self.config.environment.workers)):
            self.calls.begin(record, ("worker_start", name, 0))

    def _trajectories(self, record: Record) -> None:
        """Fold what engines and environments answer to trajectories."""
        match record.event:
            case TrajectoryStarted() as event:
                self._attempts[event.trajectory] = event.attempt
            case LlmCallStarted() as event:
                attempt = self._attempts.get(event.trajectory, 0)
                if event.part == 0:
                    self.prompt_tokens[event.trajectory, attempt, event.turn] = event.prompt_tokens
                self.calls.begin(record, ("llm", event.trajectory, attempt, event.turn, event.part))
            case LlmCallFinished() as event:
                attempt = self._attempts.get(event.trajectory, 0)
                self._latest[event.trajectory] = self.calls.end(
                    record, ("llm", event.trajectory, attempt, event.turn, event.part), event.outcome
                )
            case EnvStepStarted() as event:
                self.calls.begin(record, self._env_key(event))
                if event.worker:
                    self.homes[event.trajectory, self._attempts.get(event.trajectory, 0)] = event.worker
            case EnvStepFinished() as event:
                self._latest[event.trajectory] = self._answered(record, event)
            case RewardScored() as event:
                self._latest[event.trajectory].reward = event.reward
            case TrajectoryFailed() as event if event.trajectory in self._latest:
                self._latest.pop(event.trajectory).failure = event
            case TrajectoryCompleted() as event if event.trajectory in self._latest:
                self._latest.pop(event.trajectory).failure = event  # where the context was full: see `Words`

    def _env_key(self, event: EnvStepStarted | EnvStepFinished) -> Key:
        return (event.call, event.trajectory, self._attempts.get(event.trajectory, 0), event.turn)

    def _answered(self, record: Record, event: EnvStepFinished) -> Answer:
        key = self._env_key(event)
        began = self.calls.began(key)
        at_once = began is not None and record.seq == began.seq + 1 and event.seconds < AT_ONCE_S
        return self.calls.end(record, key, event.outcome, at_once=at_once)

    def _learning(self, record: Record) -> None:
        """Fold what the learner answers."""
        match record.event:
            case LearnerUp() as event:
                self._of_learner(record, "completed")
                self._learner, self._learner_since = ("publish", event.version), record
            case BatchTaken():
                self._learner = None
            case StepStarted() as event:
                self.calls.begin(record, ("train", event.step))
            case StepCompleted() as event:
                self.calls.end(record, ("train", event.step), "completed")
                self._learner, self._learner_since = ("publish", event.version), record
            case StepFailed() as event:
                self._learner_failed = self.calls.end(record, ("train", event.step), event.outcome)
            case WeightsPublished() as event:
                self._of_learner(record, "completed")
            case CheckpointStarted() as event:
                self._learner = None
                self.calls.begin(record, ("checkpoint", event.step))
            case CheckpointCommitted() as event:
                self.calls.end(record, ("checkpoint", event.step), "completed")
            case CheckpointFailed() as event:
                late = ("checkpoint",) in self._expired
                self._learner_failed = self.calls.end(
                    record, ("checkpoint", event.step), "expired" if late else "failed"
                )
            case LearnerLost() as event:
                if self._learner_failed is not None:
                    self._learner_failed.failure = event
                elif self._learner is not None:
                    effect = "learner_start" if self._learner[0] == "learner_start" else "publish"
                    self._of_learner(record, "expired" if (effect,) in self._expired else "lost")
            case RunFailed() as event if self._learner_failed is not None and not self._learner_failed.failure:
                self._learner_failed.failure = event
            case DeadlineExpired() as event:
                self._expired |= {(event.effect,), (event.effect, event.subject)}

    def _of_learner(self, record: Record, outcome: str) -> None:
        if self._learner is not None and self._learner_since is not None:
            self.calls.end(record, self._learner, outcome, since=self._learner_since)
        self._learner = None

    def _engines(self, record: Record) -> None:
        """Fold starts, losses and weight syncs of engines."""
        match record.event:
            case WeightsPublished() if not self._starting:
                self._starting[""] = record  # all of them
            case EngineRestarted() as event:
                self._starting[event.engine] = record
            case EngineUp() as event:
                self._engine_started(record, event.engine, "completed")
            case EngineLost() as event if event.engine not in self.engines or event.engine in self._starting:
                late = ("engine_start", event.engine) in self._expired
                self._engine_started(record, event.engine, "expired" if late else "lost")
            case SyncStarted() as event:
                self._updates[event.engine] = 1
                self.calls.begin(record, ("load", event.engine, event.version, 1))
            case SyncRetried() as event:
                self._updates[event.engine] = event.attempt + 1
                self.calls.end(record, ("load", event.engine, event.version, event.attempt), "failed")
                self.calls.begin(record, ("load", event.engine, event.version, event.attempt + 1))
            case SyncAcknowledged() as event:
                attempt = self._updates.pop(event.engine, 1)
                self.calls.end(record, ("load", event.engine, event.version, attempt), "completed")
            case SyncFailed() as event:
                attempt = self._updates.pop(event.engine, 1)
                self.calls.end(record, ("load", event.engine, event.version, attempt), event.outcome)

    def _engine_started(self, record: Record, engine: str, outcome: str) -> None:
        number = self.engines.get(engine, 0)
        self.engines[engine] = number + 1
        key = ("start", engine, number)
        since = self._starting.pop(engine, None) or self._starting.get("") or self.first
        self.calls.end(record, key, outcome, since=since)

    def _workers(self, record: Record) -> None:
        """Fold starts and losses of workers of environments."""
        match record.event:
            case EnvironmentWorkerRestarted() as event:
                self.calls.begin(record, ("worker_start", event.worker, self.workers.get(event.worker, 0)))
            case EnvironmentWorkerUp() as event:
                self._worker_started(record, event.worker, "completed")
            case EnvironmentWorkerLost(worker=name):
                late = ("environment_worker_start", name) in self._expired
                self._worker_started(record, name, "expired" if late else "lost")
            case DeadlineExpired(effect="environment_worker_ping") as event:
                asked_ns = record.mono - event.limit_s * 1e9
                self.unanswered.setdefault(event.subject, []).append(asked_ns)

    def _worker_started(self, record: Record, worker: str, outcome: str) -> None:
        number = self.workers.get(worker, 0)
        if self.calls.began(("worker_start", worker, number)) is not None:
            self.workers[worker] = number + 1
            self.calls.end(record, ("worker_start", worker, number), outcome)

    def _disk(self, record: Record) -> None:
        """Fold how long the trainer waited for an intent to be on disk, and the collector for a slow disk."""
        event = record.event
        if isinstance(event, StepStarted | WeightsPublished | CheckpointStarted | CheckpointCommitted):
            self._durables[record.seq] = durable_key(event)
        elif isinstance(event, Blocked) and event.edge == "durable":
            self._waits[record.seq] = record
            if event.waiter == "collector":
                made = sum(decision.actor == "collector" for decision in self.decisions)
                self._durables[record.seq] = ("behind", made)
        elif isinstance(event, Unblocked) and event.blocked in self._waits:
            began = self._waits.pop(event.blocked)
            assert isinstance(began.event, Blocked)
            awaited = began.seq if event.waiter == "collector" else int(began.event.awaited.rpartition(" ")[2])
            key = self._durables.pop(awaited, None)
            if key is not None:
                outcome = "completed" if event.outcome == "ready" else event.outcome
                self.calls.end(record, key, outcome, since=began)

_FOLDS: dict[type[Event], tuple[Callable[[Recording, Record], None], ...]] = {
    **dict.fromkeys(
        (
            TrajectoryStarted,
            LlmCallStarted,
            LlmCallFinished,
            EnvStepStarted,
            EnvStepFinished,
            RewardScored,
            TrajectoryFailed,
            TrajectoryCompleted,
        ),
        (Recording._trajectories,),
    ),
    **dict.fromkeys((Blocked, Unblocked), (Recording._disk,)),
    **dict.fromkeys((StepStarted, CheckpointStarted, CheckpointCommitted), (Recording._learning, Recording._disk)),
    WeightsPublished: (Recording._learning, Recording._engines, Recording._disk),
    **dict.fromkeys(
        (LearnerUp, BatchTaken, StepCompleted, StepFailed, CheckpointFailed, LearnerLost, RunFailed),
        (Recording._learning,),
    ),
    DeadlineExpired: (Recording._learning, Recording._workers),
    **dict.fromkeys(
        (EnvironmentWorkerRestarted, EnvironmentWorkerUp, EnvironmentWorkerLost), (Recording._workers,)
    ),
    **dict.fromkeys(
        (EngineRestarted, EngineUp, EngineLost, SyncStarted, SyncRetried, SyncAcknowledged, SyncFailed),
        (Recording._engines,),
    ),
}
"""Which part of the fold takes which events: most of a log are calls."""


def durable_key(event: StepStarted | WeightsPublished | CheckpointStarted | CheckpointCommitted) -> Key:
    """Return what a wait for the disk is about."""
    return ("durable", event.kind, event.version)
