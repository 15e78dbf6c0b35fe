"""What went wrong: groups that were given up, failed attempts, expired deadlines, prompts set aside, broken laws."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from ...core.projections.fold import Folded, on
from ...events.record import Record
from ...events.types import (
    DeadlineExpired,
    EngineLost,
    EnvironmentWorkerLost,
    GroupDiscarded,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    InvariantBroken,
    LogTailCut,
    PromptQuarantined,
    TelemetryDegraded,
    TelemetryDropped,
    TrajectoryFailed,
)

Key = TypeVar("Key")

QUARANTINED = 50
"""Prompts set aside that are kept with their message."""


@dataclass(slots=True)
class Trouble:
    """What went wrong in one way, and how often. The last time is told."""

    count: int = 0
    last: str = ""
    last_seq: int = -1


@dataclass
class Troubles(Folded):
    """Counts by reason."""

    groups: dict[tuple[str, str], Trouble] = field(default_factory=dict)
    """By what became of them (failed, evicted, filtered, discarded) and why."""
    attempts: dict[tuple[str, str], Trouble] = field(default_factory=dict)
    """Failed attempts at trajectories, by failure and by whom it is charged to."""
    expired: dict[tuple[str, float], Trouble] = field(default_factory=dict)
    """By effect and limit in seconds."""
    engines_lost: dict[str, Trouble] = field(default_factory=dict)
    workers_lost: dict[str, Trouble] = field(default_factory=dict)
    """Of environments."""
    quarantined: list[tuple[int, PromptQuarantined]] = field(default_factory=list)
    """The first `QUARANTINED` ones with the seq of their event."""
    quarantined_count: int = 0
    laws: list[InvariantBroken] = field(default_factory=list)
    """At most one of each law."""
    telemetry: dict[str, Trouble] = field(default_factory=dict)
    tails_cut: int = 0

    @on(GroupFailed)
    def _failed(self, record: Record, event: GroupFailed) -> None:
        reason = f"{event.failure} ({_whose(event.blame)})"
        _count(self.groups, ("failed", reason), record, f"group {event.group}: {event.message}")

    @on(GroupEvicted)
    def _evicted(self, record: Record, event: GroupEvicted) -> None:
        _count(self.groups, ("evicted", f"lag would be {event.lag}"), record, f"group {event.group}")

    @on(GroupDiscarded)
    def _discarded(self, record: Record, event: GroupDiscarded) -> None:
        _count(self.groups, ("discarded", event.reason), record, f"group {event.group}")

    @on(GroupFiltered)
    def _filtered(self, record: Record, event: GroupFiltered) -> None:
        text = f"group {event.group}: every reward was {event.reward_mean:.4g}"
        _count(self.groups, ("filtered", event.reason), record, text)

    @on(TrajectoryFailed)
    def _attempt(self, record: Record, event: TrajectoryFailed) -> None:
        key = (event.failure, _whose(event.blame))
        _count(self.attempts, key, record, f"{event.trajectory}: {event.message}")

    @on(DeadlineExpired)
    def _expired(self, record: Record, event: DeadlineExpired) -> None:
        _count(self.expired, (event.effect, event.limit_s), record, event.subject)

    @on(EngineLost)
    def _engine_lost(self, record: Record, event: EngineLost) -> None:
        _count(self.engines_lost, event.engine, record, event.message)

    @on(EnvironmentWorkerLost)
    def _worker_lost(self, record: Record, event: EnvironmentWorkerLost) -> None:
        _count(self.workers_lost, event.worker, record, event.message)

    @on(PromptQuarantined)
    def _quarantined(self, record: Record, event: PromptQuarantined) -> None:
        self.quarantined_count += 1
        if len(self.quarantined) < QUARANTINED:
            self.quarantined.append((record.seq, event))

    @on(InvariantBroken)
    def _broken(self, record: Record, event: InvariantBroken) -> None:
        if all(known.law != event.law for known in self.laws):
            self.laws.append(event)

    @on(TelemetryDegraded)
    def _degraded(self, record: Record, event: TelemetryDegraded) -> None:
        _count(self.telemetry, f"{event.part}: {event.missing}", record, event.works)

    @on(TelemetryDropped)
    def _dropped(self, record: Record, event: TelemetryDropped) -> None:
        key = f"{event.signal} lost ({event.reason})"
        _count(self.telemetry, key, record, f"{event.count} the last time")

    @on(LogTailCut)
    def _cut(self, record: Record, event: LogTailCut) -> None:
        self.tails_cut += 1


def _whose(blame: str) -> str:
    return "nobody's fault" if blame == "nobody" else f"charged to the {blame}"


def _count(table: dict[Key, Trouble], key: Key, record: Record, text: str) -> None:
    trouble = table.setdefault(key, Trouble())
    trouble.count += 1
    trouble.last, trouble.last_seq = text, record.seq
