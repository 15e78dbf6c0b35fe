"""Prompt groups: how they leave flight, how they leave the buffer, and how old they are by then."""

from __future__ import annotations

from collections import deque

from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import (
    BatchTaken,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    RunResumed,
)
from .catalog import ENVIRONMENT_BOUNDS_S, STALENESS_BOUNDS
from .distribution import Buckets
from .identity import Identity
from .part import Part
from .snapshot import Snapshot

DURATIONS_KEPT = 64
"""Groups whose time in flight says how long one usually takes."""


class Groups(Part):
    """Every group in flight or buffered. They outlive the process: a resume tells of each what becomes of it."""

    def __init__(self, identity: Identity) -> None:
        self.flight: dict[int, int] = {}
        """Groups in flight: when each was dispatched, on the monotonic clock, oldest first."""
        self.usual_ns = 0
        """Median time in flight of the last whole groups; 0 before the first."""
        self._identity = identity
        self._step = 0
        self._version: dict[int, int] = {}
        self._buffer: dict[int, tuple[int, int]] = {}
        self._for_target: dict[int, int] = {}
        self._durations: deque[int] = deque(maxlen=DURATIONS_KEPT)
        self._dispatched = 0
        self._left_flight = dict.fromkeys(
            ("committed", "filtered", "failed", "dropped_stale", "discarded"), 0
        )
        self._left_buffer = dict.fromkeys(("trained", "dropped_stale", "discarded"), 0)
        self._dwell = Buckets(ENVIRONMENT_BOUNDS_S)
        self._staleness = Buckets(STALENESS_BOUNDS)

    @property
    def per_step(self) -> int:
        """Groups of a batch."""
        return self._identity.groups_per_step

    @property
    def missing(self) -> int:
        """Groups that the next batch lacks; 0 and less: it is complete."""
        at_hand = self._for_target.get(self._step, 0) if self._identity.targeted else len(self._buffer)
        return self._identity.groups_per_step - at_hand

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        self._step = event.step

    @on(GroupDispatched)
    def _sent(self, record: Record, event: GroupDispatched) -> None:
        self._dispatched += 1
        self.flight[event.group] = record.mono
        self._version[event.group] = event.version

    def _land(self, group: int, disposition: str) -> int | None:
        since_ns = self.flight.pop(group, None)
        if since_ns is not None:
            self._left_flight[disposition] += 1
        return since_ns

    @on(GroupBuffered, GroupFiltered)
    def _whole(self, record: Record, event: GroupBuffered | GroupFiltered) -> None:
        buffered = isinstance(event, GroupBuffered)
        since_ns = self._land(event.group, "committed" if buffered else "filtered")
        if since_ns is not None:
            self._durations.append(record.mono - since_ns)
            self.usual_ns = sorted(self._durations)[len(self._durations) // 2]
        if isinstance(event, GroupBuffered):
            self._keep(event.group, event.target, record.mono)
        else:
            self._version.pop(event.group, None)

    @on(GroupRestored)
    def _restored(self, record: Record, event: GroupRestored) -> None:
        self._version[event.group] = event.version
        self._keep(event.group, event.target, record.mono)

    @on(GroupFailed, GroupEvicted, GroupDiscarded)
    def _given_up(self, record: Record, event: GroupFailed | GroupEvicted | GroupDiscarded) -> None:
        how = {GroupFailed: "failed", GroupEvicted: "dropped_stale"}.get(type(event), "discarded")
        if self._land(event.group, how) is None and self._release(event.group) is not None:
            self._left_buffer[how] += 1
        self._version.pop(event.group, None)

    @on(BatchTaken)
    def _taken(self, record: Record, event: BatchTaken) -> None:
        self._step = event.step + 1
        for group in event.groups:
            since_ns = self._release(group)
            version = self._version.pop(group, event.step)
            self._staleness.observe(event.step - version)
            self._left_buffer["trained"] += 1
            if since_ns is not None:
                self._dwell.observe((record.mono - since_ns) / 1e9)

    def _keep(self, group: int, target: int, now_ns: int) -> None:
        self._release(group)
        self._buffer[group] = now_ns, target
        self._for_target[target] = self._for_target.get(target, 0) + 1

    def _release(self, group: int) -> int | None:
        since_ns, target = self._buffer.pop(group, (None, 0))
        if since_ns is not None:
            left = self._for_target[target] - 1
            if left:
                self._for_target[target] = left
            else:
                del self._for_target[target]
        return since_ns

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write the counts of groups, and the ages of those that were trained."""
        into.set("rl_groups_dispatched_total", self._dispatched)
        into.set("rl_groups_inflight", len(self.flight))
        into.set_each("rl_groups_total", self._left_flight)
        into.set_each("rl_buffer_left_total", self._left_buffer)
        into.set("rl_buffer_groups", len(self._buffer))
        into.distribution("rl_buffer_dwell_seconds", self._dwell)
        into.distribution("rl_staleness_versions", self._staleness)
