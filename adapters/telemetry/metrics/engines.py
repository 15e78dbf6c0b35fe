"""The engine pool: its state, its engines and their weights, and the calls that are open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import get_args

from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import (
    EngineLost,
    EnginePaused,
    EngineRestarted,
    EngineResumed,
    EngineUp,
    LlmCallFinished,
    LlmCallStarted,
    Outcome,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    SyncAcknowledged,
    SyncFailed,
    SyncStarted,
)
from .catalog import CALL_BOUNDS_S, SYNC_BOUNDS_S
from .distribution import Buckets
from .part import Part, StateClock
from .snapshot import Snapshot

POOL_STATES = ("serving", "draining", "syncing", "idle", "down")
ENGINE_STATES = ("serving", "paused", "lost", "restarting")
ENGINES_MAX = 512
"""Engines that have a series of their own for their weights."""


@dataclass(slots=True)
class _Engine:
    state: str
    version: int
    slots: int = 0
    syncing: bool = False


class Engines(Part):
    """State of the pool, in this order: down (no engine is up), draining (one takes no calls, and no weights yet),
    syncing (one takes weights), idle (no call is open), serving.
    """  # fmt: skip

    def __init__(self) -> None:
        self.clock = StateClock(POOL_STATES, "down")
        self.up = 0
        self.slots = 0
        """Calls that the engines which are up can answer at the same time."""
        self.calls: dict[str, int] = {}
        """Open calls: trajectory -> when it was started, on the monotonic clock."""
        self.ever_up = False
        """Whether an engine has been up since the run began or was resumed."""
        self._engines: dict[str, _Engine] = {}
        self._held = "down"  # the pool's state as far as it does not depend on calls; empty: idle or serving
        self._calls_since_ns = 0
        self._wall_ns = 0  # with at least one call open
        self._call_ns = 0  # of all calls that have ended
        self._started_sum_ns = 0  # of the starts of the open calls: how old they are together, at any time
        self._ended = dict.fromkeys(get_args(Outcome), 0)
        self._duration = Buckets(CALL_BOUNDS_S)
        self._sync = Buckets(SYNC_BOUNDS_S)

    @on(RunStarted, RunResumed)
    def _begun(self, record: Record, event: RunStarted | RunResumed) -> None:
        self.clock.start("down", record.mono)

    @on(RunFinished, RunFailed)
    def _run_ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self.clock.stop(record.mono)
        self._end_calls(record.mono)

    def interrupted(self, at_ns: int) -> None:
        """End all calls, and forget the engines."""
        self._end_calls(at_ns)
        self.clock.stop(at_ns)
        self._engines.clear()
        self.up, self.slots, self._held, self.ever_up = 0, 0, "down", False

    # Engines

    @on(EngineUp)
    def _engine_up(self, record: Record, event: EngineUp) -> None:
        self._engines[event.engine] = _Engine("serving", event.version, event.slots)
        self.ever_up = True
        self._recount(record.mono)

    @on(EngineLost, EngineRestarted, EnginePaused, EngineResumed)
    def _engine_changed(
        self, record: Record, event: EngineLost | EngineRestarted | EnginePaused | EngineResumed
    ) -> None:
        engine = self._engines.setdefault(event.engine, _Engine("lost", -1))
        match event:
            case EngineLost():
                engine.state, engine.syncing = "lost", False
            case EngineRestarted():
                engine.state = "restarting"
            case EnginePaused():
                engine.state = "paused"
            case EngineResumed():
                engine.state = "serving"
        self._recount(record.mono)

    @on(SyncStarted, SyncFailed)
    def _sync_changed(self, record: Record, event: SyncStarted | SyncFailed) -> None:
        engine = self._engines.setdefault(event.engine, _Engine("lost", -1))
        engine.syncing = isinstance(event, SyncStarted)
        self._recount(record.mono)

    @on(SyncAcknowledged)
    def _synced(self, record: Record, event: SyncAcknowledged) -> None:
        engine = self._engines.setdefault(event.engine, _Engine("lost", -1))
        engine.syncing, engine.version = False, event.version
        self._sync.observe(event.seconds)
        self._recount(record.mono)

    def _recount(self, now_ns: int) -> None:
        alive = [engine for engine in self._engines.values() if engine.state in ("serving", "paused")]
        self.up, self.slots = len(alive), sum(engine.slots for engine in alive)
        if not alive:
            self._held = "down"
        elif any(engine.state == "paused" and not engine.syncing for engine in alive):
            self._held = "draining"
        else:
            self._held = "syncing" if any(engine.syncing for engine in alive) else ""
        self.clock.enter(self._held or ("serving" if self.calls else "idle"), now_ns)

    # Calls

    @on(LlmCallStarted)
    def _call_started(self, record: Record, event: LlmCallStarted) -> None:
        now_ns, calls = record.mono, self.calls
        if not calls:
            self._calls_since_ns = now_ns
            if not self._held:
                self.clock.enter("serving", now_ns)
        if event.trajectory not in calls:
            calls[event.trajectory] = now_ns
            self._started_sum_ns += now_ns

    @on(LlmCallFinished)
    def _call_finished(self, record: Record, event: LlmCallFinished) -> None:
        now_ns = record.mono
        started_ns = self.calls.pop(event.trajectory, None)
        if started_ns is None:
            return
        self._ended[event.outcome] += 1
        self._started_sum_ns -= started_ns
        self._call_ns += now_ns - started_ns
        self._duration.observe((now_ns - started_ns) / 1e9)
        if not self.calls:
            self._wall_ns += now_ns - self._calls_since_ns
            if not self._held:
                self.clock.enter("idle", now_ns)

    def _end_calls(self, at_ns: int) -> None:
        if self.calls:
            self._wall_ns += at_ns - self._calls_since_ns
            self._call_ns += at_ns * len(self.calls) - self._started_sum_ns
        self.calls.clear()
        self._started_sum_ns = 0

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write the state of the pool, of its engines, and the times of calls."""
        into.set_state("rl_pool_state", self.clock.state, POOL_STATES, "engine")
        for state, seconds in self.clock.seconds(now_ns).items():
            into.set("rl_pool_state_seconds_total", seconds, "engine", state)
        into.set_each("rl_engines", Counter(engine.state for engine in self._engines.values()), ENGINE_STATES)
        for name, engine in list(self._engines.items())[:ENGINES_MAX]:
            into.set("rl_engine_weight_version", engine.version, name)
        opened = len(self.calls)
        wall_ns = self._wall_ns + (now_ns - self._calls_since_ns if opened else 0)
        into.set("rl_llm_wall_seconds_total", wall_ns / 1e9)
        into.set("rl_llm_call_seconds_total", (self._call_ns + now_ns * opened - self._started_sum_ns) / 1e9)
        into.set_each("rl_llm_calls_total", self._ended)
        into.distribution("rl_llm_call_duration_seconds", self._duration)
        into.distribution("rl_weight_sync_duration_seconds", self._sync)
