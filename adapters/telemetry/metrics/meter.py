"""All metrics of a run as one fold of its events.

Every figure is made here and nowhere else: the page that Prometheus reads, what is pushed by OTLP, and the export of
a finished run are three ways to carry the same snapshot. Two meters that folded the same records are at the same
values, however the records came to them.
"""

from __future__ import annotations

from types import MethodType

from ....events.record import Record
from ....events.types import Event, RunFailed, RunFinished, RunResumed
from .devices import Devices
from .dispatching import Dispatching
from .engine_load import EngineLoad
from .engines import Engines
from .groups import Groups
from .health import Health
from .identity import Identity
from .idle import Idle
from .learning import Learning
from .part import Part
from .phases import Phases
from .rollouts import Rollouts
from .snapshot import Snapshot


class Meter:
    """The metrics of one run. Not safe for threads; see `LiveMetrics`."""

    def __init__(self) -> None:
        self._identity = Identity()
        phases, self.engines, health, learning = Phases(), Engines(), Health(), Learning()
        rollouts, groups, dispatching = Rollouts(self._identity), Groups(self._identity), Dispatching()
        self.idle = Idle(phases, self.engines, rollouts, groups, dispatching, learning, health)
        # What reads other parts comes behind them, so that it sees them after the same event.
        self._parts: tuple[Part, ...] = (
            self._identity, phases, self.engines, rollouts, groups, dispatching, learning, health, self.idle,
            Devices(phases, self.idle), EngineLoad(),
        )  # fmt: skip
        self._routes: dict[type[Event], tuple[MethodType, ...]] = {}
        for part in self._parts:
            for event, handler in part.handlers.items():
                self._routes[event] = (*self._routes.get(event, ()), MethodType(handler, part))
        self.last_ts = 0
        """UTC nanoseconds of the newest record."""
        self.last_mono = 0
        """The run's monotonic clock at the newest record."""
        self.ended = False
        """Whether the run has ended, well or not."""
        self._events = 0

    @property
    def run(self) -> str:
        """The id of the run; empty before its first event."""
        return self._identity.run

    def apply(self, record: Record) -> None:
        """Fold one record."""
        event = record.event
        kind = type(event)
        if type(event) is RunResumed:
            at_ns = self.last_mono if event.last_mono is None else event.last_mono
            for part in self._parts:
                part.interrupted(at_ns)
            self.ended = False
        for handler in self._routes.get(kind, ()):
            handler(record, event)
        if kind is RunFinished or kind is RunFailed:
            self.ended = True
        self._events += 1
        self.last_ts, self.last_mono = record.ts, record.mono

    def snapshot(self, now_mono_ns: int) -> Snapshot:
        """Return all values at `now_mono_ns` of the run's monotonic clock, open intervals up to then.

        A run that has ended stays as it was at its end; and no snapshot is of a time before the newest record.
        """
        made = Snapshot(self.run, self._identity.started_ts)
        if not self.run:
            return made
        now_ns = self.last_mono if self.ended else max(now_mono_ns, self.last_mono)
        for part in self._parts:
            part.report(made, now_ns)
        made.set("rl_events_total", self._events)
        made.set("rl_event_last_timestamp_seconds", self.last_ts / 1e9)
        return made
