"""What the parts of the meter share: how they are written, and how states and recent intervals are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterable

from ....core.projections.fold import Folded
from .snapshot import Snapshot

INTERVALS_MAX = 8192
"""Recent intervals of a track that are kept; a window with more changes in it is split by the newest of them."""


class Part(Folded, ABC):
    """A fold of one concern. It never forgets what it counted; a resume only ends what was open."""

    def interrupted(self, at_ns: int) -> None:
        """End whatever is open: the process that had it is gone, and was last heard of at `at_ns`."""

    @abstractmethod
    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write the values at `now_ns` of the run's monotonic clock; changes nothing."""


class StateClock:
    """Which of several states holds, and for how long each has held; they sum to the time that was watched."""

    __slots__ = ("ns", "open", "since_ns", "state")

    def __init__(self, states: Iterable[str], state: str) -> None:
        self.ns = dict.fromkeys(states, 0)
        """Nanoseconds of the intervals that have ended."""
        self.state = state
        self.since_ns = 0
        self.open = False
        """Whether time passes; it does not before the run, and between its end and a resume."""

    def start(self, state: str, now_ns: int) -> None:
        """Begin to watch, in `state`."""
        self.state, self.since_ns, self.open = state, now_ns, True

    def enter(self, state: str, now_ns: int) -> None:
        """Go over to `state`; nothing changes if it holds already."""
        if state != self.state:
            if self.open:
                self.ns[self.state] += now_ns - self.since_ns
            self.state, self.since_ns = state, now_ns

    def stop(self, now_ns: int) -> None:
        """End the open interval; the state stays."""
        if self.open:
            self.ns[self.state] += now_ns - self.since_ns
            self.open = False

    def seconds(self, now_ns: int) -> dict[str, float]:
        """Return the seconds of each state, the open interval included."""
        seconds = {state: ns / 1e9 for state, ns in self.ns.items()}
        if self.open:
            seconds[self.state] = (self.ns[self.state] + max(0, now_ns - self.since_ns)) / 1e9
        return seconds


class Track:
    """The recent intervals of a value that changes, to split a window by them.

    With each change stands how long every value had held by then, so a window is split by a look at both its ends,
    however many changes lie in it.
    """

    __slots__ = ("_before", "_held_ns", "_places", "_since", "value")

    def __init__(self, value: str) -> None:
        self.value = value
        self._places: dict[str, int] = {}
        """Of each value that was seen: its place in the lists of nanoseconds."""
        self._held_ns: list[int] = []
        """Nanoseconds of the intervals that have ended."""
        self._since: deque[int] = deque(maxlen=INTERVALS_MAX)
        self._before: deque[tuple[str, tuple[int, ...]]] = deque(maxlen=INTERVALS_MAX)
        self._begin(value, 0)

    @property
    def since_ns(self) -> int:
        """Since when the present value holds."""
        return self._since[-1]

    def enter(self, value: str, now_ns: int) -> None:
        """Go over to `value` at `now_ns`, which is not before the last change."""
        if value != self.value:
            self._held_ns[self._places[self.value]] += now_ns - self.since_ns
            self._begin(value, now_ns)

    def _begin(self, value: str, now_ns: int) -> None:
        if value not in self._places:
            self._places[value] = len(self._places)
            self._held_ns.append(0)
        self.value = value
        self._since.append(now_ns)
        self._before.append((value, tuple(self._held_ns)))

    def shares(self, begin_ns: int, end_ns: int) -> dict[str, float]:
        """Return which share of the window each value held; they sum to 1.

        What lies before the oldest interval that is kept counts for that one. An empty window is all of the value now.
        """
        if end_ns <= begin_ns:
            return {self.value: 1.0}
        window = end_ns - begin_ns
        spans = zip(self._places, self._until(begin_ns), self._until(end_ns), strict=True)
        return {value: (until - before) / window for value, before, until in spans if until != before}

    def _until(self, at_ns: int) -> list[int]:
        """Return for how long each value had held at `at_ns`, in the order of their places."""
        place = max(0, bisect_right(self._since, at_ns) - 1)
        value, before = self._before[place]
        held = [*before, *(0,) * (len(self._places) - len(before))]
        held[self._places[value]] += at_ns - self._since[place]
        return held


def bounded(label: str, known: Container[str], count: int, limit: int) -> str:
    """Return `label`, or ``other`` if it is not among the `count` known ones and those are `limit` already."""
    return label if label in known or count < limit else "other"
