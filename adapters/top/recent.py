"""What the last events of a log say: how fast it grows, where the time of rollouts goes, how busy the devices are."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ...core.projections import Folded, on
from ...events.record import Record
from ...events.types import TRAJECTORY_PARTS, DeviceSampled, TrajectoryCompleted, part_seconds

EVENTS = 16_384
"""Events that count as the last ones. What is older says nothing here, so the state at any point of a log is the
fold of so many events before it, whether it was reached from the beginning or from just there."""
TRAJECTORIES = 50
RATE_S = 5.0
"""Seconds over which events are counted."""


@dataclass
class Recent(Folded):
    """The fold of the last `EVENTS` records."""

    _times: deque[int] = field(default_factory=lambda: deque(maxlen=EVENTS))
    _completed: deque[Record] = field(default_factory=lambda: deque(maxlen=TRAJECTORIES))
    _devices: dict[str, Record] = field(default_factory=dict)
    _last_seq: int = -1

    def apply(self, record: Record) -> None:
        """Fold one record."""
        self._times.append(record.mono)
        self._last_seq = record.seq
        super().apply(record)

    def completed(self) -> list[TrajectoryCompleted]:
        """Return the last `TRAJECTORIES` training trajectories that were completed, newest last."""
        oldest = self._last_seq - EVENTS
        return [
            record.event
            for record in self._completed
            if record.seq > oldest and isinstance(record.event, TrajectoryCompleted)
        ]

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each of `TRAJECTORY_PARTS`, summed over `completed`."""
        done = [part_seconds(one) for one in self.completed()]
        sums = map(sum, zip(*done, strict=True))
        return dict(zip(TRAJECTORY_PARTS, sums, strict=True)) if done else {}

    def rate(self, now_ns: int) -> float:
        """Return events a second over the last `RATE_S` seconds before `now_ns`, the run's monotonic time.

        Where the events at hand do not reach back so far, it is over the time that they reach.
        """
        if not self._times:
            return 0.0
        begin = now_ns - round(RATE_S * 1e9)
        if self._times[0] > begin:
            span_s = (now_ns - self._times[0]) / 1e9
            return (len(self._times) - 1) / span_s if span_s > 0 else 0.0
        count = 0
        for time in reversed(self._times):
            if time <= begin:
                break
            count += 1
        return count / RATE_S

    def devices(self) -> list[Record]:
        """Return the last sample of each device, as its record, in the order of their names."""
        oldest = self._last_seq - EVENTS
        return [self._devices[name] for name in sorted(self._devices) if self._devices[name].seq > oldest]

    @on(TrajectoryCompleted)
    def _complete(self, record: Record, event: TrajectoryCompleted) -> None:
        if event.group is not None:
            self._completed.append(record)

    @on(DeviceSampled)
    def _sampled(self, record: Record, event: DeviceSampled) -> None:
        self._devices[event.device] = record
