"""The history of a run as a person looks at it: what held when, on one time axis, from one pass over the log.

It knows nothing of pages: whatever draws a run's past (a report, a trace of another format) reads it from here.
All times are nanoseconds since the start of the run, without the time in which it was stopped between two processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import MethodType
from typing import Literal, NamedTuple

from ...core.config import RunConfig
from ...core.projections import Folded, View, on
from ...events.record import Record
from ...events.types import (
    BatchTaken,
    Blocked,
    DeviceSampled,
    EngineLost,
    EnginePaused,
    EngineRestarted,
    EngineResumed,
    EngineUp,
    EvalCompleted,
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
    PolicyChanged,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    SyncAcknowledged,
    SyncFailed,
    SyncStarted,
    Unblocked,
)
from .curves import Curve, Interval, gather
from .devices import Devices, Recent
from .rollouts import Rollouts
from .troubles import Troubles

PoolState = Literal["starting", "serving", "draining", "syncing", "idle", "down"]
"""What the engines do as a whole: come up for the first time, answer calls, end those they have, take weights,
nothing, or none of them is up any more."""


WAITING = ("waiting_for_buffer", "generating")
"""Phases in which the trainer waits for groups."""


class Restart(NamedTuple):
    """A place on the time axis where the run goes on after it was stopped."""

    at_ns: int
    step: int
    """The first one that is trained from here on."""
    down_s: float
    """How long it was stopped; this time is not on the axis."""
    forked_from: str
    rolled_back: int
    ts: int
    """UTC nanoseconds at which it goes on."""


@dataclass
class History(Folded):
    """Everything that is drawn of a run. `view` is folded by whoever folds this, record by record before it."""

    view: View = field(default_factory=View)
    intervals_max: int | None = 100_000
    """Intervals of a kind that are kept at most; where there are more, short ones are gathered. None: keep all."""
    phases: list[Interval] = field(default_factory=list)
    """The trainer's phases that have ended."""
    pool: list[Interval] = field(default_factory=list)
    """States of the engine pool that have ended."""
    in_flight: Curve = field(default_factory=Curve)
    """Groups that are being generated."""
    buffered: Curve = field(default_factory=Curve)
    """Groups that wait to be trained."""
    capacity: Curve = field(default_factory=Curve)
    """Groups in flight and buffered that the settings allow together."""
    calls: Curve = field(default_factory=Curve)
    """Slots of engines in use."""
    slots: Curve = field(default_factory=Curve)
    """Slots of the engines that are up."""
    slots_used_s: float = 0.0
    slots_there_s: float = 0.0
    gated_s: Counter[str] = field(default_factory=Counter)
    """Seconds that the collector waited, by the edge that it waited for."""
    waited_s: Counter[str] = field(default_factory=Counter)
    """Seconds that the trainer waited for groups, by what the engines idled for meanwhile, or ``serving``."""
    rollouts: Rollouts = field(default_factory=Rollouts)
    devices: Devices = field(default_factory=Devices)
    troubles: Troubles = field(default_factory=Troubles)
    eval_at: dict[int, int] = field(default_factory=dict)
    """When each evaluation ended."""
    restarts: list[Restart] = field(default_factory=list)
    changes: list[tuple[int, PolicyChanged]] = field(default_factory=list)
    """Settings that were changed at a restart, and when."""
    end_ns: int = 0
    """When the last record was made."""

    def __post_init__(self) -> None:
        self._offset_ns = 0
        self._last_ts = 0
        self._slots_since_ns = 0
        self._slots_now = (0, 0)
        self._waited_since_ns = 0
        self._phase = Recent(lambda ended: self._keep(self.phases, ended))
        self._pool = Recent(lambda ended: self._keep(self.pool, ended))
        self._engine_cause = Recent()
        self._routes: dict[type[Event], tuple[MethodType, ...]] = {}
        for part in (self, self.rollouts, self.troubles):
            for event, handler in part.handlers.items():
                self._routes[event] = (*self._routes.get(event, ()), MethodType(handler, part))

    def apply(self, record: Record) -> None:
        """Fold one record, which `view` has folded already."""
        event = record.event
        kind = type(event)
        if kind is RunStarted:
            self._offset_ns = record.mono
        elif kind is RunResumed:
            self._offset_ns = record.mono - self.end_ns
        self.end_ns = max(self.end_ns, record.mono - self._offset_ns)
        for handler in self._routes.get(kind, ()):
            handler(record, event)
        self._last_ts = record.ts

    def _keep(self, intervals: list[Interval], ended: Interval) -> None:
        intervals.append(ended)
        if self.intervals_max is not None and len(intervals) > self.intervals_max:
            intervals[:] = gather(intervals, self.intervals_max // 2)

    def at(self, mono_ns: int) -> int:
        """Return where the run's monotonic time `mono_ns`, of the present process, lies on the axis."""
        return mono_ns - self._offset_ns

    def phases_until(self, now_ns: int) -> list[Interval]:
        """Return the trainer's phases; the one that has not ended counts up to `now_ns`."""
        return [*self.phases, *_open(self._phase, now_ns)]

    def pool_until(self, now_ns: int) -> list[Interval]:
        """Return the states of the engine pool; the one that has not ended counts up to `now_ns`."""
        return [*self.pool, *_open(self._pool, now_ns)]

    def slots_use(self) -> float | None:
        """Return the share of the engines' slots that was used while they were up; None where no engine was."""
        return self.slots_used_s / self.slots_there_s if self.slots_there_s else None

    # The run and its phases

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self._phase.enter("starting", 0, 0)
        for curve in (self.in_flight, self.buffered, self.calls, self.slots):
            curve.add(0, 0)
        self.capacity.add(0, RunConfig.model_validate(event.config).scheduler.buffer_or_default)
        self._look(record, None)

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        down_s = max(0.0, (record.ts - self._last_ts) / 1e9)
        now = self.end_ns
        self.restarts.append(
            Restart(now, event.step, down_s, event.forked_from, event.rolled_back, record.ts)
        )
        if event.config is not None:
            self.capacity.add(now, RunConfig.model_validate(event.config).scheduler.buffer_or_default)
        self._phase.enter("starting", now, event.step)
        self._look(record, None)

    @on(RunFinished, RunFailed)
    def _ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self._count_waited()
        self._phase.leave(self.end_ns)
        self._pool.leave(self.end_ns)
        self._count_slots()

    @on(PhaseEntered)
    def _phase_entered(self, record: Record, event: PhaseEntered) -> None:
        self._count_waited()
        self._phase.leave(self.end_ns)
        if event.phase != "finished":
            self._phase.enter(event.phase, self.end_ns, event.step)

    @on(EvalCompleted)
    def _evaluated(self, record: Record, event: EvalCompleted) -> None:
        self.eval_at[event.eval] = self.end_ns

    @on(PolicyChanged)
    def _changed(self, record: Record, event: PolicyChanged) -> None:
        self.changes.append((self.end_ns, event))

    # Groups

    @on(
        GroupDispatched,
        GroupBuffered,
        GroupFiltered,
        GroupFailed,
        GroupEvicted,
        GroupDiscarded,
        GroupRestored,
        BatchTaken,
    )
    def _groups(self, record: Record, event: Event) -> None:
        groups = self.view.groups
        _step_to(self.in_flight, self.end_ns, groups.in_flight)
        _step_to(self.buffered, self.end_ns, groups.buffered)
        self._look(record, None)

    # Engines

    @on(LlmCallStarted, LlmCallFinished)
    def _called(self, record: Record, event: Event) -> None:
        self._count_slots()
        if (self._slots_now[0] > 0) != (self._pool.name == "serving"):
            self._look(record, None)

    @on(
        EngineUp,
        EnginePaused,
        EngineResumed,
        EngineLost,
        EngineRestarted,
        SyncStarted,
        SyncAcknowledged,
        SyncFailed,
    )
    def _look(self, record: Record, event: Event | None) -> None:
        self._count_slots()
        self._count_waited()
        state = pool_state(self.view)
        if state != self._pool.name:
            self._pool.enter(state, self.end_ns)
        cause = idle_cause(self.view, state)
        if cause != self._engine_cause.name:
            self._engine_cause.enter(cause, self.end_ns)

    def _count_waited(self) -> None:
        """Add the time since the last look to what the trainer waited for, if it did."""
        if self._phase.name in WAITING:
            waited: dict[str, float] = self.waited_s  # type: ignore[assignment]  # a Counter's values are ints to mypy
            what = "serving" if self._pool.name == "serving" else self._engine_cause.name
            waited[what] = waited.get(what, 0.0) + (self.end_ns - self._waited_since_ns) / 1e9
        self._waited_since_ns = self.end_ns

    def _count_slots(self) -> None:
        """Integrate the use of the slots up to now, and look at it anew."""
        used, there = self._slots_now
        spent_s = (self.end_ns - self._slots_since_ns) / 1e9
        self.slots_used_s += used * spent_s
        self.slots_there_s += there * spent_s
        self._slots_since_ns = self.end_ns
        engines = self.view.engines
        if engines.busy != used:
            self.calls.add(self.end_ns, engines.busy)
        if engines.slots != there:
            self.slots.add(self.end_ns, engines.slots)
        self._slots_now = (engines.busy, engines.slots)

    # Waits and devices

    @on(Blocked)
    def _blocked(self, record: Record, event: Blocked) -> None:
        if event.waiter == "collector":
            self._look(record, None)

    @on(Unblocked)
    def _unblocked(self, record: Record, event: Unblocked) -> None:
        if event.waiter == "collector":
            gated: dict[str, float] = self.gated_s  # type: ignore[assignment]  # a Counter's values are ints to mypy
            gated[event.edge] = gated.get(event.edge, 0.0) + event.seconds
            self._look(record, None)

    @on(DeviceSampled)
    def _sampled(self, record: Record, event: DeviceSampled) -> None:
        now = self.end_ns
        self.devices.sample(
            device=event.device,
            source=event.source,
            pool=event.pool,
            use=event.utilization,
            window=(max(0, now - round(event.window_s * 1e9)), now),
            phases=self._phase.newest_first(now),
            engine_causes=self._engine_cause.newest_first(now),
        )


def read_history(records: Iterable[Record]) -> History:
    """Return the history of all `records`, in seq order."""
    history = History()
    for record in records:
        history.view.apply(record)
        history.apply(record)
    return history


def pool_state(view: View) -> PoolState:
    """Return what the engines do as a whole.

    Weights that one engine takes while others answer do not stop the pool; it is 'syncing' when all that are up take
    some, and 'draining' when all are paused and still have calls.
    """
    up = view.engines.up()
    if not up:
        return "down" if view.engines.by_name else "starting"
    if all(engine.syncing_to is not None for engine in up):
        return "syncing"
    if all(engine.state == "paused" for engine in up):
        return "draining" if view.engines.busy else "syncing"
    return "serving" if view.engines.busy else "idle"


def idle_cause(view: View, state: PoolState) -> str:
    """Return why an engine's device would idle now."""
    if state in ("down", "starting"):
        return "fault" if state == "down" else "starting"
    if state in ("syncing", "draining"):
        return "weight_sync"
    if view.groups.in_flight and state == "idle":
        return "environment"  # what is in flight is there, and not at an engine
    wait = view.waits.by_waiter.get("collector")
    if wait is not None and wait.edge == "version":
        return "staleness_gate"
    if wait is not None and wait.edge == "permit" and not view.groups.in_flight:
        return "backpressure"
    return "low_use"


def _open(recent: Recent, now_ns: int) -> list[Interval]:
    if not recent.name or now_ns <= recent.since_ns:
        return []
    return [Interval(recent.name, recent.since_ns, now_ns, recent.step, open=True)]


def _step_to(curve: Curve, at_ns: int, value: int) -> None:
    if not curve.values or curve.values[-1] != value:
        curve.add(at_ns, value)
