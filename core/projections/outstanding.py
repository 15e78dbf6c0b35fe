"""What the run has asked of the outside and has no answer to yet, and how long such answers usually take.

Together with the open waits this is the wait-for graph: while anything is outstanding, something may still happen.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...events.record import Record
from ...events.types import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointStarted,
    EngineLost,
    EngineRestarted,
    EngineUp,
    EnvironmentWorkerLost,
    EnvironmentWorkerRestarted,
    EnvironmentWorkerUp,
    EnvStepFinished,
    EnvStepStarted,
    EvalCompleted,
    EvalStarted,
    GroupDiscarded,
    GroupFailed,
    LearnerLost,
    LearnerUp,
    LlmCallFinished,
    LlmCallStarted,
    RetryScheduled,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepStarted,
    SyncAcknowledged,
    SyncFailed,
    SyncStarted,
    TrajectoryStarted,
    WeightsPublished,
)
from .environment_workers import worker_name, workers_of
from .fold import Folded, on

_ENV_KINDS = {"reset": "env_reset", "step": "env_step", "reward": "reward"}


class Effect(NamedTuple):
    """One thing that was begun outside and has not ended."""

    kind: str
    """llm_call, env_reset, env_step, reward, retry, train_step, publish, weight_sync, eval, checkpoint,
    engine_start, environment_worker_start or learner_start."""
    subject: str
    """For whom or what: a trajectory, a step, a version."""
    place: str
    """Where it is: the name of an engine or of a worker of environments, ``environment``, ``learner``, ``timer``."""
    since_ns: int
    seq: int
    """Of the event with which it began."""


@dataclass
class Durations:
    """How long the finished effects of one kind took, in buckets of an eighth of a power of two."""

    count: int = 0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, ns: int) -> None:
        """Count one that took `ns`."""
        self.count += 1
        power = max(ns.bit_length(), 4)
        bucket = power * 8 + ((ns >> (power - 4)) & 7)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def quantile_s(self, share: float) -> float:
        """Return seconds that `share` of the finished ones did not exceed, rounded up to a bucket; 0 if none."""
        left = math.ceil(share * self.count)
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                power, eighth = divmod(bucket, 8)
                return ((9 + eighth) << (power - 4)) / 1e9
        return 0.0


@dataclass
class Outstanding(Folded):
    """Every effect without an end yet, oldest first, and the durations of those that have one."""

    open: dict[Hashable, Effect] = field(default_factory=dict)
    finished: dict[str, Durations] = field(default_factory=dict)
    """By kind; only those that were completed."""
    engines: int = 0
    """Engines that are to come up; 0 when the log does not say."""
    environment_workers: int = 0
    """Workers of environments that are to come up."""
    _named: set[str] = field(default_factory=set)

    def _begin(self, record: Record, key: Hashable, kind: str, subject: str, place: str) -> None:
        self.open[key] = Effect(kind, subject, place, record.mono, record.seq)

    def _end(self, record: Record, key: Hashable, *, completed: bool = True) -> None:
        effect = self.open.pop(key, None)
        if effect is not None and completed:
            durations = self.finished.get(effect.kind)
            if durations is None:
                durations = self.finished[effect.kind] = Durations()
            durations.add(record.mono - effect.since_ns)

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self.engines, self.environment_workers = event.engines or 0, workers_of(event.config)
        self._begun(record)

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        if event.engines is not None:
            self.engines = event.engines
        if event.config is not None:
            self.environment_workers = workers_of(event.config)
        self.open.clear()
        self._named.clear()
        self._begun(record)

    def _begun(self, record: Record) -> None:
        self._begin(record, "learner", "learner_start", "the learner", "learner")
        for name in map(worker_name, range(self.environment_workers)):
            self._begin(record, ("worker", name), "environment_worker_start", name, name)

    @on(RunFinished, RunFailed)
    def _ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self.open.clear()

    # Rollouts

    @on(LlmCallStarted)
    def _call_started(self, record: Record, event: LlmCallStarted) -> None:
        self._begin(record, ("llm", event.trajectory), "llm_call", event.trajectory, event.engine)

    @on(LlmCallFinished)
    def _call_finished(self, record: Record, event: LlmCallFinished) -> None:
        self._end(record, ("llm", event.trajectory), completed=event.outcome == "completed")

    @on(EnvStepStarted)
    def _env_started(self, record: Record, event: EnvStepStarted) -> None:
        kind = _ENV_KINDS[event.call]
        self._begin(record, ("env", event.trajectory), kind, event.trajectory, event.worker or "environment")

    @on(EnvStepFinished)
    def _env_finished(self, record: Record, event: EnvStepFinished) -> None:
        self._end(record, ("env", event.trajectory), completed=event.outcome == "completed")

    @on(RetryScheduled)
    def _retry(self, record: Record, event: RetryScheduled) -> None:
        self._begin(record, ("retry", event.trajectory), "retry", event.trajectory, "timer")

    @on(TrajectoryStarted)
    def _retried(self, record: Record, event: TrajectoryStarted) -> None:
        self.open.pop(("retry", event.trajectory), None)

    @on(GroupFailed, GroupDiscarded)
    def _group_ended(self, record: Record, event: GroupFailed | GroupDiscarded) -> None:
        prefix = f"{event.group}/"
        retries = [
            e.subject for e in self.open.values() if e.kind == "retry" and e.subject.startswith(prefix)
        ]
        for trajectory in retries:
            del self.open["retry", trajectory]

    # The learner

    @on(LearnerUp)
    def _learner_up(self, record: Record, event: LearnerUp) -> None:
        self._end(record, "learner")
        self._begin(record, "publish", "publish", f"weights {event.version}", "learner")

    @on(LearnerLost)
    def _learner_lost(self, record: Record, event: LearnerLost) -> None:
        for key in ("learner", "publish", "step"):
            self.open.pop(key, None)

    @on(StepStarted)
    def _step_started(self, record: Record, event: StepStarted) -> None:
        self._begin(record, "step", "train_step", f"step {event.step}", "learner")

    @on(StepCompleted)
    def _step_completed(self, record: Record, event: StepCompleted) -> None:
        self._end(record, "step")
        self._begin(record, "publish", "publish", f"weights {event.version}", "learner")

    @on(StepFailed)
    def _step_failed(self, record: Record, event: StepFailed) -> None:
        self.open.pop("step", None)

    @on(WeightsPublished)
    def _published(self, record: Record, event: WeightsPublished) -> None:
        self._end(record, "publish")
        if not self._named:  # the first weights: now all engines start
            for number in range(self.engines):
                self._begin(record, ("first start", number), "engine_start", "an engine", "an engine")

    @on(CheckpointStarted)
    def _checkpoint(self, record: Record, event: CheckpointStarted) -> None:
        self._begin(record, "checkpoint", "checkpoint", f"version {event.version}", "learner")

    @on(CheckpointCommitted, CheckpointFailed)
    def _checkpoint_ended(self, record: Record, event: CheckpointCommitted | CheckpointFailed) -> None:
        self._end(record, "checkpoint", completed=isinstance(event, CheckpointCommitted))

    @on(EvalStarted)
    def _eval(self, record: Record, event: EvalStarted) -> None:
        self._begin(record, "eval", "eval", f"eval{event.eval}", "engines")

    @on(EvalCompleted)
    def _eval_ended(self, record: Record, event: EvalCompleted) -> None:
        self._end(record, "eval", completed=event.outcome == "completed")

    # Engines

    @on(EngineUp, EngineLost)
    def _engine(self, record: Record, event: EngineUp | EngineLost) -> None:
        completed = isinstance(event, EngineUp)
        if event.engine not in self._named:
            self._named.add(event.engine)
            first = next((k for k in self.open if isinstance(k, tuple) and k[0] == "first start"), None)
            self._end(record, first, completed=completed)
        self._end(record, ("start", event.engine), completed=completed)

    @on(EngineRestarted)
    def _restarted(self, record: Record, event: EngineRestarted) -> None:
        self._begin(record, ("start", event.engine), "engine_start", event.engine, event.engine)

    @on(SyncStarted)
    def _sync(self, record: Record, event: SyncStarted) -> None:
        self._begin(record, ("sync", event.engine), "weight_sync", f"version {event.version}", event.engine)

    @on(SyncAcknowledged, SyncFailed)
    def _sync_ended(self, record: Record, event: SyncAcknowledged | SyncFailed) -> None:
        self._end(record, ("sync", event.engine), completed=isinstance(event, SyncAcknowledged))

    # Workers of environments

    @on(EnvironmentWorkerUp, EnvironmentWorkerLost)
    def _worker(self, record: Record, event: EnvironmentWorkerUp | EnvironmentWorkerLost) -> None:
        self._end(record, ("worker", event.worker), completed=isinstance(event, EnvironmentWorkerUp))

    @on(EnvironmentWorkerRestarted)
    def _worker_restarted(self, record: Record, event: EnvironmentWorkerRestarted) -> None:
        name = event.worker
        self._begin(record, ("worker", name), "environment_worker_start", name, name)
