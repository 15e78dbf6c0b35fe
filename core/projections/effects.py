"""What starts must end once, and every token has a version: the part of the ledger about calls, waits and weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

from ...events.record import Record
from ...events.types import (
    Blocked,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointStarted,
    EngineUp,
    EnvStepFinished,
    EnvStepStarted,
    EvalCompleted,
    EvalStarted,
    GroupDispatched,
    LlmCallFinished,
    LlmCallStarted,
    SyncAcknowledged,
    SyncFailed,
    SyncStarted,
    SyncVerified,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
    Unblocked,
    VersionSpans,
    WeightsPublished,
)
from .fold import Folded, on


@dataclass(frozen=True, slots=True)
class Breach:
    """A law that does not hold."""

    law: str
    seq: int
    """First event after which it did not."""
    expected: str
    found: str


@dataclass
class Effects(Folded):
    """The part of the books about what was begun; `Ledger` is the whole."""

    breaches: list[Breach] = field(default_factory=list)
    _dispatch: dict[int, GroupDispatched] = field(default_factory=dict)
    _open: defaultdict[str, set[Hashable]] = field(default_factory=lambda: defaultdict(set))
    _failed_calls: dict[str, str] = field(default_factory=dict)
    """Of attempts that run: the call that was not completed."""
    _trained: int | None = None
    _published: int | None = None
    _digest: str = ""
    """Of the published weights; empty in logs of before it was said."""
    _verified: dict[str, str] = field(default_factory=dict)
    """Engine whose sync is under way -> digest of its receipt."""

    def _broken(self, law: str, record: Record, expected: str, found: str) -> None:
        if not any(breach.law == law for breach in self.breaches):
            self.breaches.append(Breach(law, record.seq, expected, found))

    # What starts must end once

    @on(TrajectoryStarted)
    def _trajectory_started(self, record: Record, event: TrajectoryStarted) -> None:
        self._begin("trajectory", record, (event.trajectory, event.attempt, event.group))

    @on(TrajectoryCompleted, TrajectoryFailed)
    def _trajectory_ended(self, record: Record, event: TrajectoryCompleted | TrajectoryFailed) -> None:
        self._close("trajectory", record, (event.trajectory, event.attempt, event.group))
        failed = self._failed_calls.pop(event.trajectory, None)
        if type(event) is not TrajectoryCompleted:
            return
        if failed is not None:
            self._broken("trajectory", record, "complete when all its calls are", f"{event.trajectory}: {failed}")
        dispatch = None if event.group is None else self._dispatch.get(event.group)
        self._sampled(record, event.version_spans, event.completion_tokens, dispatch)

    @on(LlmCallStarted)
    def _llm_started(self, record: Record, event: LlmCallStarted) -> None:
        self._begin("llm call", record, (event.trajectory, event.turn, event.engine))

    @on(LlmCallFinished)
    def _llm_finished(self, record: Record, event: LlmCallFinished) -> None:
        self._close("llm call", record, (event.trajectory, event.turn, event.engine))
        self._sampled(record, event.version_spans, event.tokens, None)
        if event.outcome != "completed":
            self._failed_calls[event.trajectory] = f"llm call {event.outcome}: {event.message}"

    def _sampled(
        self, record: Record, spans: VersionSpans, tokens: int, dispatch: GroupDispatched | None
    ) -> None:
        """Check that every token has a version, published by now and not older than its group."""
        total = 0
        for _, count in spans:
            total += count
        if total != tokens:
            self._broken("tokens", record, f"a version for each of {tokens} tokens", str(spans))
        oldest = dispatch.version if dispatch is not None else 0
        newest = self._published if self._published is not None else oldest
        for version, _ in spans:
            if not oldest <= version <= newest:
                self._broken("versions", record, f"tokens of versions {oldest} to {newest}", str(spans))

    @on(EnvStepStarted)
    def _env_started(self, record: Record, event: EnvStepStarted) -> None:
        self._begin("env call", record, (event.trajectory, event.turn, event.call))

    @on(EnvStepFinished)
    def _env_finished(self, record: Record, event: EnvStepFinished) -> None:
        self._close("env call", record, (event.trajectory, event.turn, event.call))
        if event.outcome != "completed":
            self._failed_calls[event.trajectory] = f"env {event.call} {event.outcome}: {event.message}"

    @on(EvalStarted)
    def _eval_started(self, record: Record, event: EvalStarted) -> None:
        self._begin("eval", record, event.eval)

    @on(EvalCompleted)
    def _eval_ended(self, record: Record, event: EvalCompleted) -> None:
        self._close("eval", record, event.eval)

    @on(CheckpointStarted)
    def _checkpoint_started(self, record: Record, event: CheckpointStarted) -> None:
        self._begin("checkpoint", record, event.version)

    @on(CheckpointCommitted, CheckpointFailed)
    def _checkpoint_ended(self, record: Record, event: CheckpointCommitted | CheckpointFailed) -> None:
        self._close("checkpoint", record, event.version)

    @on(SyncStarted)
    def _sync_started(self, record: Record, event: SyncStarted) -> None:
        self._begin("sync", record, event.engine)
        if self._published is not None and event.version > self._published:
            self._broken("versions", record, f"at most {self._published}", f"sync of {event.version}")

    @on(SyncAcknowledged, SyncFailed)
    def _sync_ended(self, record: Record, event: SyncAcknowledged | SyncFailed) -> None:
        self._close("sync", record, event.engine)
        verified = self._verified.pop(event.engine, None)
        if isinstance(event, SyncAcknowledged):
            self._current(record, event)
            if self._digest and verified != self._digest:
                found = f"{event.engine} acknowledged {'others' if verified else 'unverified ones'}"
                self._broken("versions", record, f"weights with digest {self._digest}", found)

    @on(SyncVerified)
    def _sync_verified(self, record: Record, event: SyncVerified) -> None:
        self._verified[event.engine] = event.digest

    @on(EngineUp)
    def _current(self, record: Record, event: EngineUp | SyncAcknowledged) -> None:
        """Check that an engine serves what was published last, and nothing older."""
        if self._published is not None and event.version != self._published:
            self._broken("versions", record, f"weights {self._published}", f"{event.engine}: {event.version}")

    @on(Blocked)
    def _blocked(self, record: Record, event: Blocked) -> None:
        self._begin("wait", record, record.seq)

    @on(Unblocked)
    def _unblocked(self, record: Record, event: Unblocked) -> None:
        self._close("wait", record, event.blocked)

    @on(WeightsPublished)
    def _published_weights(self, record: Record, event: WeightsPublished) -> None:
        if self._published is not None and event.version != self._published + 1:
            self._broken("versions", record, f"version {self._published + 1}", f"version {event.version}")
        if self._trained is not None and event.version != self._trained:
            self._broken("versions", record, f"the trained version {self._trained}", f"{event.version}")
        self._published, self._digest = event.version, event.digest

    def _begin(self, kind: str, record: Record, key: Hashable) -> None:
        opened = self._open[kind]
        if key in opened:
            self._broken(kind, record, "one at a time", f"{key} started twice")
        opened.add(key)

    def _close(self, kind: str, record: Record, key: Hashable) -> None:
        opened = self._open[kind]
        if key in opened:
            opened.remove(key)
        else:
            self._broken(kind, record, "a start before its end", f"{key} ended and was not open")
