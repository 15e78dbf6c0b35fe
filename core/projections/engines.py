"""Every engine: its state, its weights, and what it has in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...events.record import Record
from ...events.types import (
    EngineLost,
    EnginePaused,
    EngineRestarted,
    EngineResumed,
    EngineUp,
    LlmCallFinished,
    LlmCallStarted,
    RunResumed,
    RunStarted,
    SyncAcknowledged,
    SyncFailed,
    SyncStarted,
)
from .fold import Folded, on

LATELY = 0.98
"""Weight of a call against the next one that is answered, where only the last ones count: about 50 of them."""
EngineState = Literal["serving", "paused", "lost", "restarting"]


@dataclass(slots=True)
class EngineStatus:
    """One engine."""

    name: str
    state: EngineState
    version: int
    slots: int = 0
    context_tokens: int = 0
    in_flight: int = 0
    syncing_to: int | None = None
    restarts: int = 0
    lost_seq: int | None = None
    lost_message: str = ""


@dataclass
class Engines(Folded):
    """The engine pool's state."""

    by_name: dict[str, EngineStatus] = field(default_factory=dict)
    calls: dict[tuple[str, int], str] = field(default_factory=dict)
    """Open calls: (trajectory, turn) -> engine."""
    busy: int = 0
    """Slots in use, of the engines that are up; what queues at an engine uses none."""
    slots: int = 0
    """All slots of the engines that are up."""
    low_since_ns: int | None = None
    """Since when the use of the slots is low; None while it is not, or no engine is up.

    It is low when less than `low_share` of the slots is used, or when so many calls queue at an engine while others
    have the slots for them.
    """
    low_share: float = 0.25
    queued: int = 0
    """Calls beyond the slots of their engine, of the engines that are up."""
    _calls_s: float = 0.0  # of the calls that were answered lately, and how much of it no engine had them
    _away_s: float = 0.0

    @property
    def away_share(self) -> float:
        """Share of their time for which no engine had the calls that were answered lately: they were on the way."""
        return self._away_s / self._calls_s if self._calls_s else 0.0

    @property
    def used(self) -> float:
        """Slots in use: calls at engines, less those that are on the way there, as far as the last answers tell."""
        return self.busy * (1 - self.away_share)

    def up(self) -> list[EngineStatus]:
        """Return the engines that hold weights and calls, paused ones included."""
        return [engine for engine in self.by_name.values() if engine.state in ("serving", "paused")]

    def idle(self) -> float:
        """Return how many engines the free slots make up: two engines that are half used are one idle."""
        return sum(1 - min(engine.in_flight, engine.slots) / max(1, engine.slots) for engine in self.up())

    def serving(self) -> list[EngineStatus]:
        """Return the engines that take requests, in order of their names."""
        return [engine for engine in self.by_name.values() if engine.state == "serving"]

    @property
    def generation_version(self) -> int | None:
        """Oldest version that a request sent now could be answered with; None when no engine is alive."""
        versions = [e.version for e in self.by_name.values() if e.state in ("serving", "paused")]
        return min(versions, default=None)

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self.low_share = event.config.get("watchdog", {}).get("degraded_share", self.low_share)

    @on(EngineUp)
    def _up(self, record: Record, event: EngineUp) -> None:
        engine = self.by_name.get(event.engine)
        if engine is None:
            engine = self.by_name[event.engine] = EngineStatus(event.engine, "serving", event.version)
        engine.state, engine.version, engine.syncing_to = "serving", event.version, None
        engine.slots, engine.context_tokens = event.slots, event.context_tokens
        self._recount(record)

    @on(EnginePaused)
    def _paused(self, record: Record, event: EnginePaused) -> None:
        self.by_name[event.engine].state = "paused"
        self.low_since_ns = None  # a weight sync empties the engines, and what follows fills them again

    @on(EngineResumed)
    def _resumed(self, record: Record, event: EngineResumed) -> None:
        self.by_name[event.engine].state = "serving"
        self._measure(record)

    @on(EngineLost)
    def _lost(self, record: Record, event: EngineLost) -> None:
        engine = self.by_name.setdefault(event.engine, EngineStatus(event.engine, "lost", -1))
        engine.state, engine.syncing_to = "lost", None
        engine.lost_seq, engine.lost_message = record.seq, event.message
        self._recount(record)

    @on(EngineRestarted)
    def _restarted(self, record: Record, event: EngineRestarted) -> None:
        engine = self.by_name[event.engine]
        engine.state, engine.restarts = "restarting", event.restart

    @on(RunResumed)
    def _run_resumed(self, record: Record, event: RunResumed) -> None:
        if event.config is not None:
            self.low_share = event.config.get("watchdog", {}).get("degraded_share", self.low_share)
        self.by_name.clear()
        self.calls.clear()
        self._recount(record)

    @on(SyncStarted)
    def _sync_started(self, record: Record, event: SyncStarted) -> None:
        self.by_name[event.engine].syncing_to = event.version

    @on(SyncAcknowledged)
    def _sync_acknowledged(self, record: Record, event: SyncAcknowledged) -> None:
        engine = self.by_name[event.engine]
        engine.version, engine.syncing_to = event.version, None

    @on(SyncFailed)
    def _sync_failed(self, record: Record, event: SyncFailed) -> None:
        self.by_name[event.engine].syncing_to = None

    @on(LlmCallStarted)
    def _call_started(self, record: Record, event: LlmCallStarted) -> None:
        self.calls[event.trajectory, event.turn] = event.engine
        engine = self.by_name[event.engine]
        full = engine.in_flight >= engine.slots
        self.busy += not full
        self.queued += full
        engine.in_flight += 1
        self._measure(record)

    @on(LlmCallFinished)
    def _call_finished(self, record: Record, event: LlmCallFinished) -> None:
        name = self.calls.pop((event.trajectory, event.turn), None)
        if name is None:
            return
        engine = self.by_name[name]
        engine.in_flight -= 1
        if engine.state in ("serving", "paused"):
            queued = engine.in_flight >= engine.slots
            self.busy -= not queued
            self.queued -= queued
            if event.outcome == "completed":
                self._calls_s = self._calls_s * LATELY + event.seconds + event.queue_s
                self._away_s = self._away_s * LATELY + (event.away_s or 0.0)
            self._measure(record)

    def _recount(self, record: Record) -> None:
        up = self.up()
        self.busy = sum(min(engine.in_flight, engine.slots) for engine in up)
        self.queued = sum(max(0, engine.in_flight - engine.slots) for engine in up)
        self.slots = sum(engine.slots for engine in up)
        self._measure(record)

    def _measure(self, record: Record) -> None:
        share = self.low_share * self.slots
        crowded = self.queued and min(self.queued, self.slots - self.busy) >= share
        if not self.slots or (self.used >= share and not crowded):
            self.low_since_ns = None
        elif self.low_since_ns is None:
            self.low_since_ns = record.mono
