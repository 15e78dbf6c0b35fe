"""What a log says of the outside world: every answer that a run got, when it came, and what it was an answer to.

An answer is kept by what its call is about (a turn of an attempt at a trajectory, a step, a version), not by its place
in the log, so that a run that asks the same gets the same, in whatever order it asks. Of a resumed run only the last
life is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from ...core.config import RunConfig
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

Key = tuple[Hashable, ...]
"""The kind of a call first, and then what it is about."""

TOGETHER_NS = 250_000_000
"""Answers with no decision between them count as come at once within this time: nobody looked meanwhile."""
AT_ONCE_S = 0.05
"""An answer of the environment within this time, with no other event meanwhile, was given without a wait."""
STEP_NS = 10
"""Between answers of different instants, so that everybody has reacted to one before the next comes."""
FOLLOW_UPS = frozenset(
    {
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
    }
)
"""Events that decide nothing."""
OPENING = (RunResumed, LogTailCut, GroupRestored, GroupDiscarded, PromptReturned)
"""What a resumed run begins with."""


@dataclass(slots=True)
class Instant:
    """Answers that came at once: in the order of their seqs, at `at_s` from the beginning."""

    first_seq: int
    first_ns: int
    last_ns: int
    at_s: float = 0.0


@dataclass(slots=True, eq=False)
class Answer:
    """How one call ended. `event` says what came of it; without an `instant` it never ended."""

    key: Key
    seq: int
    seconds: float
    """From its call to its end."""
    outcome: str = "hangs"
    """completed, failed, lost, expired, cancelled; or hangs: the log does not see its end."""
    event: Event | None = None
    instant: Instant | None = None
    at_once: bool = False
    reward: float = 0.0
    failure: Event | None = None
    """Of what type it failed: what followed."""


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
    answers: dict[Key, Answer] = field(default_factory=dict)
    by_kind: defaultdict[Hashable, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    """The completed ones, of all lives."""
    prompt_tokens: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Tokens of the conversation at the call of (trajectory, attempt, turn)."""
    decisions: list[Decision] = field(default_factory=list)
    stop: Answer | None = None
    """When somebody asked the run to end."""
    eval_items: int = 0
    _instant: Instant | None = None
    _instants: list[Instant] = field(default_factory=list)
    _attempts: dict[str, int] = field(default_factory=dict)
    _open: dict[Key, Record] = field(default_factory=dict)
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
        recording._finish()
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
        return self.answers.get(key)

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
            self._instant = None
        for fold in _FOLDS.get(type(event), ()):
            fold(self, record)
        if isinstance(event, EngineUp):
            self._instant = None  # calls are routed to it from its time on
        match event:
            case PromptDrawn():
                self.drawn[event.prompt] = event.index
            case PromptQuarantined():
                self.quarantined.append(event.index)
            case StopRequested(reason="interrupted"):
                self.stop = self._ended(record, ("stop",), "completed")
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
        for kept in (
            self.answers,
            self.prompt_tokens,
            self.engines,
            self._attempts,
            self._open,
            self._latest,
        ):
            kept.clear()
        for also in (
            self._starting,
            self._durables,
            self._waits,
            self._expired,
            self.decisions,
            self._instants,
        ):
            also.clear()
        self.stop = self._instant = self._learner_failed = None
        self._learner = ("learner_start",)

    def _calls(self, record: Record) -> None:
        """Fold what engines and environments answer to trajectories."""
        match record.event:
            case TrajectoryStarted() as event:
                self._attempts[event.trajectory] = event.attempt
            case LlmCallStarted() as event:
                attempt = self._attempts.get(event.trajectory, 0)
                if event.part == 0:
                    self.prompt_tokens[event.trajectory, attempt, event.turn] = event.prompt_tokens
                self._call(record, ("llm", event.trajectory, attempt, event.turn, event.part))
            case LlmCallFinished() as event:
                attempt = self._attempts.get(event.trajectory, 0)
                self._latest[event.trajectory] = self._ended(
                    record, ("llm", event.trajectory, attempt, event.turn, event.part), event.outcome
                )
            case EnvStepStarted() as event:
                self._call(record, self._env_key(event))
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
        began = self._open.get(key)
        at_once = began is not None and record.seq == began.seq + 1 and event.seconds < AT_ONCE_S
        return self._ended(record, key, event.outcome, at_once=at_once)

    def _learning(self, record: Record) -> None:
        """Fold what the learner answers."""
        match record.event:
            case LearnerUp() as event:
                self._of_learner(record, "completed")
                self._learner, self._learner_since = ("publish", event.version), record
            case BatchTaken():
                self._learner = None
            case StepStarted() as event:
                self._call(record, ("train", event.step))
            case StepCompleted() as event:
                self._ended(record, ("train", event.step), "completed")
                self._learner, self._learner_since = ("publish", event.version), record
            case StepFailed() as event:
                self._learner_failed = self._ended(record, ("train", event.step), event.outcome)
            case WeightsPublished() as event:
                self._of_learner(record, "completed")
            case CheckpointStarted() as event:
                self._learner = None
                self._call(record, ("checkpoint", event.step))
            case CheckpointCommitted() as event:
                self._ended(record, ("checkpoint", event.step), "completed")
            case CheckpointFailed() as event:
                late = ("checkpoint",) in self._expired
                self._learner_failed = self._ended(
                    record, ("checkpoint", event.step), "expired" if late else "failed"
                )
            case LearnerLost() as event:
                if self._learner_failed is not None:
                    self._learner_failed.failure = event
                elif self._learner is not None:
                    effect = "learner_start" if self._learner[0] == "learner_start" else "publish"
                    self._of_learner(record, "expired" if (effect,) in self._expired else "lost")
            case RunFailed() as event if (
                self._learner_failed is not None and not self._learner_failed.failure
            ):
                self._learner_failed.failure = event
            case DeadlineExpired() as event:
                self._expired |= {(event.effect,), (event.effect, event.subject)}

    def _of_learner(self, record: Record, outcome: str) -> None:
        if self._learner is not None and self._learner_since is not None:
            self._open[self._learner] = self._learner_since
            self._ended(record, self._learner, outcome)
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
                self._call(record, ("load", event.engine, event.version, 1))
            case SyncRetried() as event:
                self._updates[event.engine] = event.attempt + 1
                self._ended(record, ("load", event.engine, event.version, event.attempt), "failed")
                self._call(record, ("load", event.engine, event.version, event.attempt + 1))
            case SyncAcknowledged() as event:
                attempt = self._updates.pop(event.engine, 1)
                self._ended(record, ("load", event.engine, event.version, attempt), "completed")
            case SyncFailed() as event:
                attempt = self._updates.pop(event.engine, 1)
                self._ended(record, ("load", event.engine, event.version, attempt), event.outcome)

    def _engine_started(self, record: Record, engine: str, outcome: str) -> None:
        number = self.engines.get(engine, 0)
        self.engines[engine] = number + 1
        key = ("start", engine, number)
        since = self._starting.pop(engine, None) or self._starting.get("") or self.first
        if since is not None:
            self._open[key] = since
        self._ended(record, key, outcome)

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
            awaited = (
                began.seq if event.waiter == "collector" else int(began.event.awaited.rpartition(" ")[2])
            )
            key = self._durables.pop(awaited, None)
            if key is not None:
                self._open[key] = began
                self._ended(record, key, "completed" if event.outcome == "ready" else event.outcome)

    def _call(self, record: Record, key: Key) -> None:
        self._open[key] = record
        self.answers[key] = Answer(key, record.seq, 0.0)

    def _ended(self, record: Record, key: Key, outcome: str, *, at_once: bool = False) -> Answer:
        began = self._open.pop(key, record)
        answer = Answer(
            key, record.seq, (record.mono - began.mono) / 1e9, outcome, record.event, at_once=at_once
        )
        if not at_once:
            answer.instant = self._instant_of(record, began)
        self.answers[key] = answer
        if outcome == "completed":
            self.by_kind[key[0]].append(answer)
        return answer

    def _instant_of(self, record: Record, began: Record) -> Instant:
        now = self._instant
        if now is None or began.seq > now.first_seq or record.mono - now.first_ns > TOGETHER_NS:
            now = self._instant = Instant(record.seq, record.mono, record.mono)
            self._instants.append(now)
        now.last_ns = record.mono
        return now

    def _finish(self) -> None:
        """Give every instant its time, each later than the one before."""
        assert self.first is not None or not self._instants
        before_ns = 0
        for instant in self._instants:
            assert self.first is not None
            before_ns = max(instant.last_ns - self.first.mono, before_ns + STEP_NS)
            instant.at_s = before_ns / 1e9


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
        (Recording._calls,),
    ),
    **dict.fromkeys((Blocked, Unblocked), (Recording._disk,)),
    **dict.fromkeys(
        (StepStarted, CheckpointStarted, CheckpointCommitted), (Recording._learning, Recording._disk)
    ),
    WeightsPublished: (Recording._learning, Recording._engines, Recording._disk),
    **dict.fromkeys(
        (
            LearnerUp,
            BatchTaken,
            StepCompleted,
            StepFailed,
            CheckpointFailed,
            LearnerLost,
            RunFailed,
            DeadlineExpired,
        ),
        (Recording._learning,),
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
