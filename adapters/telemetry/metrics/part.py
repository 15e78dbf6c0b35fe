"""What the parts of the meter share: how they are written, and how states and recent intervals are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable

from ....core.projections.fold import Folded
from .snapshot import Snapshot

INTERVALS_MAX = 8192
"""Recent intervals of a track that are kept; a window with more changes in it is split by the newest of them."""


class Part(Folded):
    """A fold of one concern. It never forgets what it counted; a resume only ends what was open."""

    def interrupted(self, at_ns: int) -> None:
        """End whatever is open: the process that had it is gone, and was last heard of at `at_ns`."""

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write the values at `now_ns` of the run's monotonic clock; changes nothing."""
        raise NotImplementedError


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
    """The recent intervals of a value that changes, to split a window by them."""

    __slots__ = ("_answer", "_asked", "_changes", "value")

    def __init__(self, value: str) -> None:
        self.value = value
        self._changes: deque[tuple[int, str]] = deque([(0, value)], maxlen=INTERVALS_MAX)
        self._asked = (0, 0, 0)
        self._answer: dict[str, float] = {}

    @property
    def since_ns(self) -> int:
        """Since when the present value holds."""
        return self._changes[-1][0]

    def enter(self, value: str, now_ns: int) -> None:
        """Go over to `value` at `now_ns`, which is not before the last change."""
        if value != self.value:
            self.value = value
            self._changes.append((now_ns, value))

    def shares(self, begin_ns: int, end_ns: int) -> dict[str, float]:
        """Return which share of the window each value held; they sum to 1.

        What lies before the oldest interval that is kept counts for that one. An empty window is all of the value now.
        """
        asked = (begin_ns, end_ns, self.since_ns)
        if asked != self._asked:  # all devices of one round of samples have the same window
            self._asked, self._answer = asked, self._split(begin_ns, end_ns)
        return self._answer

    def _split(self, begin_ns: int, end_ns: int) -> dict[str, float]:
        if end_ns <= begin_ns:
            return {self.value: 1.0}
        held: dict[str, int] = {}
        until, last = end_ns, len(self._changes) - 1
        for place, (since, value) in enumerate(reversed(self._changes)):
            begin = begin_ns if place == last else max(since, begin_ns)
            if begin < until:
                held[value] = held.get(value, 0) + until - begin
                until = begin
            if since <= begin_ns:
                break
        window = end_ns - begin_ns
        return {value: ns / window for value, ns in held.items()}


def bounded(label: str, known: Container[str], count: int, limit: int) -> str:
    """Return `label`, or ``other`` if it is not among the `count` known ones and those are `limit` already."""
    return label if label in known or count < limit else "other"
