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
    SyncAcknowledged,
    SyncFailed,
    SyncStarted,
)
from .fold import Folded, on

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

    def serving(self) -> list[EngineStatus]:
        """Return the engines that take requests, in order of their names."""
        return [engine for engine in self.by_name.values() if engine.state == "serving"]

    @property
    def generation_version(self) -> int | None:
        """Oldest version that a request sent now could be answered with; None when no engine is alive."""
        versions = [e.version for e in self.by_name.values() if e.state in ("serving", "paused")]
        return min(versions, default=None)

    @on(EngineUp)
    def _up(self, record: Record, event: EngineUp) -> None:
        engine = self.by_name.get(event.engine)
        if engine is None:
            engine = self.by_name[event.engine] = EngineStatus(event.engine, "serving", event.version)
        engine.state, engine.version, engine.syncing_to = "serving", event.version, None
        engine.slots, engine.context_tokens = event.slots, event.context_tokens

    @on(EnginePaused)
    def _paused(self, record: Record, event: EnginePaused) -> None:
        self.by_name[event.engine].state = "paused"

    @on(EngineResumed)
    def _resumed(self, record: Record, event: EngineResumed) -> None:
        self.by_name[event.engine].state = "serving"

    @on(EngineLost)
    def _lost(self, record: Record, event: EngineLost) -> None:
        engine = self.by_name.setdefault(event.engine, EngineStatus(event.engine, "lost", -1))
        engine.state, engine.syncing_to = "lost", None
        engine.lost_seq, engine.lost_message = record.seq, event.message

    @on(EngineRestarted)
    def _restarted(self, record: Record, event: EngineRestarted) -> None:
        engine = self.by_name[event.engine]
        engine.state, engine.restarts = "restarting", event.restart

    @on(RunResumed)
    def _run_resumed(self, record: Record, event: RunResumed) -> None:
        self.by_name.clear()
        self.calls.clear()

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
        self.by_name[event.engine].in_flight += 1

    @on(LlmCallFinished)
    def _call_finished(self, record: Record, event: LlmCallFinished) -> None:
        engine = self.calls.pop((event.trajectory, event.turn), None)
        if engine is not None:
            self.by_name[engine].in_flight -= 1
