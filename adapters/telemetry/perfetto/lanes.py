"""Tracks on which slices never overlap badly: each open slice lies within the one opened before it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable

from .trace_file import Told, TraceFile

SPANS_MAX = 16
"""Slices of one kind, such as the trainer's waits, that are shown at the same time."""


class Lane:
    """One track, and the slices that are open on it, the outermost first."""

    __slots__ = ("_file", "_open", "number", "track")

    def __init__(self, file: TraceFile, track: int, number: int = 0) -> None:
        self._file = file
        self._open: list[Hashable] = []
        self.track = track
        self.number = number

    def begin(self, key: Hashable, name: str, told: Told | None = None, ends: Iterable[int] = ()) -> None:
        """Begin a slice within what is open."""
        self._open.append(key)
        self._file.begin(self.track, name, told, ends)

    def end(self, key: Hashable, told: Told | None = None, flows: Iterable[int] = ()) -> bool:
        """End the slice `key`, after all within it; return whether there was one."""
        if key not in self._open:
            return False
        while self._open[-1] != key:
            self._pop()
        self._pop(told, flows)
        return True

    def is_open(self, key: Hashable) -> bool:
        """Return whether a slice is open."""
        return key in self._open

    def end_within(self, depth: int) -> None:
        """End all but the `depth` outermost slices."""
        while len(self._open) > depth:
            self._pop()

    def end_all(self, told: Told | None = None) -> None:
        """End all slices, saying the same of each."""
        while self._open:
            self._pop(told)

    def _pop(self, told: Told | None = None, flows: Iterable[int] = ()) -> None:
        self._open.pop()
        self._file.end(self.track, told, flows)


class Lanes:
    """Like tracks, of which whoever comes takes the lowest free one; made when they are needed, `most` of them."""

    def __init__(
        self, file: TraceFile, parent: int, name: Callable[[int], str], most: int, rank: int | None = None
    ) -> None:
        self._file = file
        self._parent = parent
        self._name = name
        self._most = most
        self._rank = rank
        self._made = 0
        self._free: list[tuple[int, Lane]] = []

    def take(self) -> Lane | None:
        """Return the lowest free lane; None when all are taken."""
        if self._free:
            return heapq.heappop(self._free)[1]
        if self._made == self._most:
            return None
        track = self._file.track(self._name(self._made), self._parent, rank=self._rank)
        self._made += 1
        return Lane(self._file, track, self._made)

    def give(self, lane: Lane) -> None:
        """Return a lane that has nothing open."""
        heapq.heappush(self._free, (lane.number, lane))


class Spans:
    """Slices that may overlap, each on a lane of its own while it is open: ``waits``, and ``waits 2`` when needed."""

    def __init__(self, file: TraceFile, parent: int, name: str, rank: int | None = None) -> None:
        def numbered(number: int) -> str:
            return f"{name} {number + 1}" if number else name

        self._file = file
        self._lanes = Lanes(file, parent, numbered, SPANS_MAX, rank)
        self._open: dict[Hashable, Lane] = {}

    def begin(self, key: Hashable, name: str, told: Told | None = None, ends: Iterable[int] = ()) -> None:
        """Begin a slice. One of the same key that is still open ends now."""
        self.end(key)
        lane = self._lanes.take()
        if lane is not None:
            self._open[key] = lane
            lane.begin(key, name, told, ends)

    def mark(self, key: Hashable, name: str, told: Told | None = None) -> None:
        """Mark this moment of the slice `key`, if it is open."""
        lane = self._open.get(key)
        if lane is not None:
            self._file.instant(lane.track, name, told)

    def end(self, key: Hashable, told: Told | None = None, flows: Iterable[int] = ()) -> bool:
        """End the slice `key`; return whether it was open."""
        lane = self._open.pop(key, None)
        if lane is None:
            return False
        lane.end(key, told, flows)
        self._lanes.give(lane)
        return True

    def end_all(self, told: Told | None = None) -> None:
        """End all slices, saying the same of each."""
        for key in list(self._open):
            self.end(key, told)
