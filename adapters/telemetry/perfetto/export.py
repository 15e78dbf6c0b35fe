"""A log as a Perfetto trace, written as it is read: what is kept is what is open, so memory does not grow with it.

Times are UTC that never goes back (`telemetry/utc.py`). Counters are the values of the projections that the run itself
decides by.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import IO, Protocol

from ....core.projections import Engines, Folded, Groups, Identity, Trainer
from ....events.record import Record
from ....events.types import Event, RunResumed
from ..utc import UtcClock
from . import SLOTS_MAX
from .buffer_tracks import BufferTracks
from .engine_tracks import EngineTracks
from .flows import Flows
from .rollout_tracks import RolloutTracks
from .trace_file import Told, TraceFile
from .trainer_tracks import TrainerTracks

_INTERRUPTED: Told = {"interrupted": True}
_OPEN: Told = {"open": True}


class _Tracks(Protocol):
    def end_all(self, told: Told) -> None: ...


class TraceExport:
    """Writes the records of one log to `file`. Raises `MissingExtra` where the package ``perfetto`` is missing."""

    def __init__(self, file: IO[bytes], first: Record, slots_max: int = SLOTS_MAX) -> None:
        self._clock = UtcClock()
        self._clock.advance(first)
        self._identity = Identity()
        self._file = TraceFile(file, self._clock.now)
        trainer, groups, engines, flows = Trainer(), Groups(), Engines(), Flows()
        training = TrainerTracks(self._file, flows, engines)
        weights = EngineTracks(self._file, flows, engines, trainer, self._clock)
        buffer = BufferTracks(self._file, flows, groups)
        self._rollouts = RolloutTracks(self._file, flows, slots_max)  # last: it may have hundreds of lanes
        self._tracks: tuple[_Tracks, ...] = (training, weights, buffer, self._rollouts)
        self._routes: dict[type[Event], tuple[MethodType, ...]] = {}
        # The projections before the tracks, which show them.
        self._route(self._identity, trainer, groups, engines, training, weights, buffer, self._rollouts)
        self.events = 0

    @property
    def lanes(self) -> int:
        """Tracks that were made."""
        return self._file.tracks

    @property
    def slices(self) -> int:
        """Slices that were written."""
        return self._file.slices

    @property
    def size_bytes(self) -> int:
        """What was written."""
        return self._file.size_bytes

    @property
    def left_out(self) -> int:
        """Attempts at trajectories that found no lane, and are only counted."""
        return self._rollouts.left_out

    def write(self, records: Iterable[Record]) -> None:
        """Write all `records`, and end what is open where they end, also where that is an exception."""
        clock, file, routes = self._clock, self._file, self._routes
        try:
            for record in records:
                event = record.event
                if (
                    type(event) is RunResumed
                ):  # what the process before had open ended with it, not with the resume
                    self._end_all(_INTERRUPTED)
                clock.advance(record)
                file.now = clock.now
                for handler in routes.get(type(event), ()):
                    handler(record, event)
                self.events += 1
        finally:
            self._end_all(_OPEN)
            file.name_process(
                self._identity.run or "run"
            )  # the fork's, where the log begins as another run's
            file.flush()

    def _end_all(self, told: Told) -> None:
        for tracks in self._tracks:
            tracks.end_all(told)

    def _route(self, *parts: Folded) -> None:
        for part in parts:
            for event, handler in part.handlers.items():
                self._routes[event] = (*self._routes.get(event, ()), MethodType(handler, part))
