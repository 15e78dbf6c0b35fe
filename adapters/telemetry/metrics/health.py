"""What is wrong: stalls, broken laws, expired deadlines, a late event loop, telemetry that is lost."""

from __future__ import annotations

from collections import Counter

from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import (
    LOOP_LAG_BOUNDS_S,
    DeadlineExpired,
    InvariantBroken,
    LoopLagSampled,
    PromptQuarantined,
    RunFailed,
    RunFinished,
    StallCleared,
    StallDetected,
    TelemetryDegraded,
    TelemetryDropped,
)
from .distribution import Buckets
from .part import Part
from .snapshot import Snapshot

STALL_CLASSES = ("deadlock", "overdue", "livelock", "degraded", "silent_loss")
PARTS = ("metrics", "traces", "devices", "trackers")


class Health(Part):
    """Verdicts that stand, and counts of what went wrong."""

    def __init__(self) -> None:
        self.stalls: dict[int, str] = {}
        """Verdicts that stand: number of the stall -> its class."""
        self._detected = dict.fromkeys(STALL_CLASSES, 0)
        self._quarantined = 0
        self._expired: Counter[str] = Counter()
        self._broken: Counter[str] = Counter()
        self._lag = Buckets(LOOP_LAG_BOUNDS_S)
        self._dropped: Counter[tuple[str, str]] = Counter()
        self._degraded: set[str] = set()

    def interrupted(self, at_ns: int) -> None:
        """Forget what stood in the process that is gone."""
        self.stalls.clear()
        self._degraded.clear()

    @on(RunFinished, RunFailed)
    def _ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self.stalls.clear()

    @on(StallDetected)
    def _stalled(self, record: Record, event: StallDetected) -> None:
        self.stalls[event.stall] = event.stall_kind
        self._detected[event.stall_kind] += 1

    @on(StallCleared)
    def _cleared(self, record: Record, event: StallCleared) -> None:
        self.stalls.pop(event.stall, None)

    @on(PromptQuarantined)
    def _quarantine(self, record: Record, event: PromptQuarantined) -> None:
        self._quarantined += 1

    @on(DeadlineExpired)
    def _deadline(self, record: Record, event: DeadlineExpired) -> None:
        self._expired[event.effect] += 1

    @on(InvariantBroken)
    def _breach(self, record: Record, event: InvariantBroken) -> None:
        self._broken[event.law] += 1

    @on(LoopLagSampled)
    def _late(self, record: Record, event: LoopLagSampled) -> None:
        self._lag.add(event.counts, event.sum_s)

    @on(TelemetryDropped)
    def _lost(self, record: Record, event: TelemetryDropped) -> None:
        self._dropped[event.signal, event.reason] += event.count

    @on(TelemetryDegraded)
    def _works_less(self, record: Record, event: TelemetryDegraded) -> None:
        self._degraded.add(event.part)

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write verdicts and counts."""
        standing = set(self.stalls.values())
        into.set_each("rl_stall_verdict", dict.fromkeys(standing, 1), STALL_CLASSES)
        into.set_each("rl_stalls_total", self._detected)
        into.set("rl_prompts_quarantined_total", self._quarantined)
        into.set_each("rl_deadlines_expired_total", self._expired)
        into.set_each("rl_invariants_broken_total", self._broken)
        into.distribution("rl_event_loop_lag_seconds", self._lag)
        for (signal, reason), count in self._dropped.items():
            into.set("rl_telemetry_dropped_total", count, signal, reason)
        into.set_each("rl_telemetry_degraded", dict.fromkeys(self._degraded, 1), PARTS)
