"""Device-seconds, busy and idle, by phase and by cause: integrated over event time, whatever the scrape interval.

A sample says how busy a device was over a window, and windows do not end where phases do. Each one is split at the
boundaries of phases, and of causes, in proportion to the overlap, so the sums are exact wherever a window lies in one
phase, and never further off than the use within one window varies.
"""

from __future__ import annotations

from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import DeviceSampled
from .idle import CAUSES, Idle
from .part import Part, bounded
from .phases import Phases
from .snapshot import Snapshot

DEVICES_MAX = 128
"""Devices that have series of their own; all others are counted together as ``other``."""


class Devices(Part):
    """Allocated, busy and idle seconds of every device that was sampled, and its last sample."""

    def __init__(self, phases: Phases, idle: Idle) -> None:
        self._phases = phases
        self._idle = idle
        self._names: set[str] = set()
        self._allocated: dict[tuple[str, str, str], float] = {}
        self._busy: dict[tuple[str, str, str], float] = {}
        self._sm_active: dict[tuple[str, str, str], float] = {}
        self._idle_s: dict[tuple[str, str], float] = {}
        self._last: dict[tuple[str, str], DeviceSampled] = {}

    def interrupted(self, at_ns: int) -> None:
        """Forget the last samples: what is not sampled again is gone."""
        self._last.clear()

    @on(DeviceSampled)
    def _sampled(self, record: Record, event: DeviceSampled) -> None:
        pool, window_s, busy = event.pool, event.window_s, event.utilization
        device = bounded(event.device, self._names, len(self._names), DEVICES_MAX)
        if device not in self._names:
            self._names.add(device)
        end_ns = record.mono
        begin_ns = end_ns - round(window_s * 1e9)
        for phase, share in self._phases.track.shares(begin_ns, end_ns).items():
            key = pool, phase, device
            self._allocated[key] = self._allocated.get(key, 0.0) + window_s * share
            self._busy[key] = self._busy.get(key, 0.0) + window_s * share * busy
            if event.sm_active is not None:
                self._sm_active[key] = self._sm_active.get(key, 0.0) + window_s * share * event.sm_active
        for cause, share in self._idle.shares(pool, begin_ns, end_ns).items():
            spared = pool, cause
            self._idle_s[spared] = self._idle_s.get(spared, 0.0) + window_s * share * (1 - busy)
        self._last[pool, device] = event

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write the seconds, and the last samples."""
        for name, table in (
            ("rl_gpu_allocated_seconds_total", self._allocated),
            ("rl_gpu_busy_seconds_total", self._busy),
            ("rl_gpu_sm_active_seconds_total", self._sm_active),
        ):
            for key, seconds in table.items():
                into.set(name, seconds, *key)
        for pool in sorted({pool for pool, _ in self._idle_s}):
            for cause in CAUSES:
                into.set("rl_gpu_idle_seconds_total", self._idle_s.get((pool, cause), 0.0), pool, cause)
        for (pool, device), sample in self._last.items():
            into.set("rl_gpu_utilization", sample.utilization, pool, device)
            into.set("rl_gpu_memory_bytes", sample.memory_bytes, pool, device)
