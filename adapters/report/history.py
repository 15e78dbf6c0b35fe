"""The history of a run as a person looks at it: what held when, on one time axis, from one pass over the log.

It knows nothing of pages: whatever draws a run's past (a report, a trace of another format) reads it from here.
All times are nanoseconds since the start of the run, without the time in which it was stopped between two processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import MethodType
from typing import NamedTuple

from ...core.config import recorded_scheduler
from ...core.projections import Folded, View, on
from ...events.record import Record
from ...events.types import (
    BatchTaken,
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
)
from ..telemetry.metrics.meter import Meter
from .curves import Curve, Interval, gather
from .devices import Devices
from .lane import Lane
from .rollouts import Rollouts
from .troubles import Troubles

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
    """Everything that is drawn of a run. `view` is folded by whoever folds this, record by record before it.

    What the engines do, and why devices are idle, is what the run's metrics say.
    """

    view: View = field(default_factory=View)
    meter: Meter = field(default_factory=Meter)
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
    caused_s: dict[tuple[str, bool], float] = field(default_factory=dict)
    """Seconds by why an engine's device would have been idle, and by whether the trainer waited for groups."""
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
        self._cause, self._cause_since_ns = "", 0
        self._phase = Lane(lambda ended: self._keep(self.phases, ended))
        self._pool = Lane(lambda ended: self._keep(self.pool, ended))
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
        elif type(event) is RunResumed:
            self._interrupted(event)
            self._offset_ns = record.mono - self.end_ns
        now_ns = record.mono - self._offset_ns
        self.end_ns = max(self.end_ns, now_ns)
        meter = self.meter
        meter.apply(record)
        for handler in self._routes.get(kind, ()):
            handler(record, event)
        if not meter.ended:
            state, cause = meter.engines.clock.state, meter.idle.engine.value
            if state != self._pool.name:
                self._pool.enter(state, self.end_ns)
            if cause != self._cause:
                self._count_cause()
                self._cause = cause
        self._last_ts = record.ts

    def _interrupted(self, event: RunResumed) -> None:
        """End what was open when the process before was last heard of."""
        if not self.meter.ended and event.last_mono is not None:
            self.end_ns = max(self.end_ns, self.at(event.last_mono))
        self._stop()

    def _keep(self, intervals: list[Interval], ended: Interval) -> None:
        intervals.append(ended)
        if self.intervals_max is not None and len(intervals) > self.intervals_max:
            intervals[:] = gather(intervals, self.intervals_max // 2)

    def at(self, mono_ns: int) -> int:
        """Return where the run's monotonic time `mono_ns`, of the present process, lies on the axis."""
        return mono_ns - self._offset_ns

    def on_axis(self, wall_ns: int) -> int:
        """Return where a time since the start by the clock on the wall lies on the axis, which has no downtimes."""
        down_ns = 0
        for restart in self.restarts:
            if wall_ns - down_ns > restart.at_ns:
                down_ns += min(round(restart.down_s * 1e9), wall_ns - down_ns - restart.at_ns)
        return wall_ns - down_ns

    def phases_until(self, now_ns: int) -> list[Interval]:
        """Return the trainer's phases; the one that has not ended counts up to `now_ns`."""
        return [*self.phases, *self._phase.open_until(now_ns)]

    def pool_until(self, now_ns: int) -> list[Interval]:
        """Return the states of the engine pool; the one that has not ended counts up to `now_ns`."""
        return [*self.pool, *self._pool.open_until(now_ns)]

    def slots_use(self) -> float | None:
        """Return the share of the engines' slots that was used while they were up; None where no engine was."""
        return self.slots_used_s / self.slots_there_s if self.slots_there_s else None

    # The run and its phases

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self._phase.enter("starting", 0, 0)
        for curve in (self.in_flight, self.buffered, self.calls, self.slots):
            curve.add(0, 0)
        self.capacity.add(0, recorded_scheduler(event.config).buffer_or_default)

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        down_s = max(0.0, (record.ts - self._last_ts) / 1e9)
        now = self.end_ns
        self.restarts.append(
            Restart(now, event.step, down_s, event.forked_from, event.rolled_back, record.ts)
        )
        if event.config is not None:
            self.capacity.add(now, recorded_scheduler(event.config).buffer_or_default)
        self._phase.enter("starting", now, event.step)
        self._count_slots()

    @on(RunFinished, RunFailed)
    def _ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self._stop()

    def _stop(self) -> None:
        self._count_cause()
        self._phase.leave(self.end_ns)
        self._pool.leave(self.end_ns)
        self._count_slots()

    @on(PhaseEntered)
    def _phase_entered(self, record: Record, event: PhaseEntered) -> None:
        self._count_cause()
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

    # Engines

    @on(
        LlmCallStarted,
        LlmCallFinished,
        EngineUp,
        EnginePaused,
        EngineResumed,
        EngineLost,
        EngineRestarted,
        SyncStarted,
        SyncAcknowledged,
        SyncFailed,
    )
    def _engines_changed(self, record: Record, event: Event) -> None:
        self._count_slots()

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

    # Devices

    def _count_cause(self) -> None:
        """Add the time for which the engines' cause and the trainer's phase have held."""
        key = self._cause, self._phase.name in WAITING
        spent_s = (self.end_ns - self._cause_since_ns) / 1e9
        self.caused_s[key] = self.caused_s.get(key, 0.0) + spent_s
        self._cause_since_ns = self.end_ns

    @on(DeviceSampled)
    def _sampled(self, record: Record, event: DeviceSampled) -> None:
        self.devices.sample(event, self.end_ns)


def read_history(records: Iterable[Record]) -> History:
    """Return the history of all `records`, in seq order."""
    history = History()
    for record in records:
        history.view.apply(record)
        history.apply(record)
    return history


def _step_to(curve: Curve, at_ns: int, value: int) -> None:
    if not curve.values or curve.values[-1] != value:
        curve.add(at_ns, value)
