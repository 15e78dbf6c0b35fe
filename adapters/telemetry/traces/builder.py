"""The fold from records to finished spans.

It is pure: the same records give the same spans in the same order, whether they are read while the run goes on or
years later. A tree of spans (an attempt at a trajectory, a step) is handed out when its root has ended, so whoever
takes what `apply` returns never has a span without its parent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.projections import Identity
from ....events.record import Record
from ....events.types import (
    BatchTaken,
    Blocked,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointStarted,
    EnvStepFinished,
    EnvStepStarted,
    EvalCompleted,
    EvalStarted,
    Event,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    LlmCallFinished,
    LlmCallStarted,
    PhaseEntered,
    RetryScheduled,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StallDetected,
    StepCompleted,
    StepFailed,
    StepStarted,
    SyncAcknowledged,
    SyncFailed,
    SyncRetried,
    SyncStarted,
    SyncVerified,
    TrajectoryCompleted,
    TrajectoryDropped,
    TrajectoryFailed,
    TrajectoryStarted,
    Unblocked,
)
from ..utc import UtcClock
from .groups import HELD_MAX, Groups
from .origin import Origin, begun, went_on
from .sampling import Sampling
from .spans import Span
from .steps import Steps

Part = Callable[[Record, int, Any], None]


class TraceBuilder:
    """Folds the records of one log, from its first on.

    `sampling` None: what the log's own configuration says. `held_max`: spans that wait for the fate of their groups at
    most; beyond it the oldest group is let go, and counted in `let_go`.
    """

    def __init__(self, sampling: Sampling | None = None, *, held_max: int = HELD_MAX) -> None:
        self.origin: Origin | None = None
        self._asked = sampling
        self._config: dict[str, Any] = {}
        self._out: list[Span] = []
        self._clock, self._identity = UtcClock(), Identity()
        self._groups = Groups(sampling or Sampling(), self._out, held_max)
        self._steps = Steps(self._groups, self._out)
        self._before = self._last = (-1, 0)
        """Seq and time of the last two records."""
        self._copied = -1
        """Seq of the last stall, at which all that was open was copied."""
        self._closed = True
        self._parts = self._wired()

    @property
    def let_go(self) -> int:
        """Spans that were given up because too many were waiting."""
        return self._groups.let_go

    @property
    def held(self) -> int:
        """Spans that wait for the fate of their groups."""
        return self._groups.held

    def apply(self, record: Record) -> list[Span]:
        """Fold one record and return the spans that are finished by it; mostly none."""
        now_ns = self._clock.advance(record)
        self._before, self._last = self._last, (record.seq, now_ns)
        part = self._parts.get(type(record.event))
        if part is None:
            return []
        part(record, now_ns, record.event)
        if not self._out:
            return []
        finished = self._out[:]
        self._out.clear()
        return finished

    def cut(self, *, gone: bool = True) -> list[Span]:
        """Return copies of all that is open after the last record, for a log that ends here. Changes nothing.

        With `gone` the run's process is, and the copies are the ones that a resume would give; else it goes on, and
        what is open will still end. Nothing where the run has ended: its end has closed all.
        """
        if not self._closed:
            self._snapshot(*self._last, gone=gone)
        finished = self._out[:]
        self._out.clear()
        return finished

    def _wired(self) -> dict[type[Event], Part]:
        groups, steps = self._groups, self._steps
        return {
            RunStarted: self._started,
            RunResumed: self._resumed,
            RunFinished: self._ended,
            RunFailed: self._ended,
            StallDetected: self._stalled,
            GroupDispatched: groups.dispatched,
            GroupBuffered: groups.buffered,
            GroupRestored: groups.restored,
            GroupFiltered: groups.filtered,
            GroupFailed: groups.failed,
            GroupEvicted: groups.evicted,
            GroupDiscarded: groups.discarded,
            TrajectoryStarted: groups.started,
            TrajectoryCompleted: groups.ended,
            TrajectoryFailed: groups.ended,
            TrajectoryDropped: groups.dropped,
            RetryScheduled: groups.retried,
            LlmCallStarted: groups.called,
            LlmCallFinished: groups.answered,
            EnvStepStarted: groups.called,
            EnvStepFinished: groups.stepped,
            PhaseEntered: steps.phase,
            Blocked: steps.blocked,
            Unblocked: steps.unblocked,
            BatchTaken: steps.taken,
            StepStarted: steps.started,
            StepCompleted: steps.completed,
            StepFailed: steps.failed,
            SyncStarted: steps.syncs,
            SyncRetried: steps.noted,
            SyncVerified: steps.noted,
            SyncAcknowledged: steps.synced,
            SyncFailed: steps.synced,
            EvalStarted: steps.evaluates,
            EvalCompleted: steps.evaluated,
            CheckpointStarted: steps.saves,
            CheckpointCommitted: steps.saved,
            CheckpointFailed: steps.saved,
        }

    def _started(self, record: Record, now_ns: int, event: RunStarted) -> None:
        self._configure(event.config)
        self._identity.apply(record)
        self._enter(begun(self._identity, event), record.seq, now_ns, 0)

    def _resumed(self, record: Record, now_ns: int, event: RunResumed) -> None:
        if self.origin is None:
            return
        if not self._closed:
            self._abandon(*self._before)  # as of the last that was heard of that life, like who read the log then
        if event.config is not None:
            self._configure(event.config)
        self._identity.apply(record)
        origin = went_on(self.origin, self._identity, self._config, event)
        self._enter(origin, record.seq, now_ns, event.step)

    def _configure(self, config: dict[str, Any]) -> None:
        self._config = config
        if self._asked is None:
            asked = config.get("telemetry", {})
            default = Sampling()
            self._groups.sampling = Sampling(
                float(asked.get("trace_share", default.share)),
                int(asked.get("trace_slowest", default.slowest)),
            )

    def _enter(self, origin: Origin, seq: int, now_ns: int, step: int) -> None:
        self.origin, self._closed = origin, False
        self._groups.enter(origin)
        self._steps.enter(origin, seq, now_ns, step)

    def _stalled(self, record: Record, now_ns: int, event: StallDetected) -> None:
        self._snapshot(record.seq, now_ns)
        self._copied = record.seq

    def _snapshot(self, seq: int, now_ns: int, *, gone: bool = False) -> None:
        if seq == self._copied:
            return  # the stall was the last that was heard, and its copies are of all that is open
        self._groups.snapshot(seq, now_ns, gone=gone)
        self._steps.snapshot(seq, now_ns, gone=gone)

    def _ended(self, record: Record, now_ns: int, event: RunFinished | RunFailed) -> None:
        self._steps.end(now_ns)
        self._abandon(record.seq, now_ns)
        self._closed = True

    def _abandon(self, seq: int, now_ns: int) -> None:
        self._snapshot(seq, now_ns, gone=True)
        self._groups.forget(now_ns)
        self._steps.forget()
