"""Curves and intervals whose size is bounded, however long the run: what is thinned keeps its extremes and its sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

POINTS = 2_000
"""Points of one curve that are plotted at most: more than a screen has pixels."""
KEPT = 16_384
"""Points of one curve that are kept at most while a log is folded."""
STRETCHES = 250
"""Stretches of equal length into which intervals are gathered when there are too many of them."""


class Interval(NamedTuple):
    """Something that held from `from_ns` to `to_ns`, nanoseconds since the start of the run."""

    name: str
    from_ns: int
    to_ns: int
    step: int = -1
    open: bool = False
    """Whether it had not ended where the log ends."""

    together: bool = False
    """Whether it stands for several that were gathered."""

    @property
    def seconds(self) -> float:
        """How long it held."""
        return (self.to_ns - self.from_ns) / 1e9


@dataclass
class Curve:
    """A value that changes at points in time, thinned where it has more than `KEPT` points."""

    at_ns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, at_ns: int, value: float) -> None:
        """Append a point."""
        values = self.values
        self.at_ns.append(at_ns)
        values.append(value)
        if len(values) >= KEPT:
            self._keep(thin(self.at_ns, values, KEPT // 2))

    def set(self, at_ns: int, value: float) -> None:
        """Append a point, or move the last one if it is of the same time."""
        if self.at_ns and self.at_ns[-1] == at_ns:
            self.values[-1] = value
        else:
            self.add(at_ns, value)

    def points(self, count_max: int = POINTS) -> tuple[list[int], list[float]]:
        """Return times and values of at most `count_max` points, with every lowest and highest one."""
        kept = thin(self.at_ns, self.values, count_max)
        return [self.at_ns[index] for index in kept], [self.values[index] for index in kept]

    def _keep(self, indices: Sequence[int]) -> None:
        self.at_ns = [self.at_ns[index] for index in indices]
        self.values = [self.values[index] for index in indices]


def thin(at: Sequence[float], values: Sequence[float], count_max: int) -> list[int]:
    """Return indices of at most `count_max` points: the first, the last, and the extremes of equal stretches of `at`.

    Stretches are equal in time, so that a busy minute does not take the points of a quiet hour.
    """
    count = len(values)
    if count <= count_max:
        return list(range(count))
    stretches = max(1, (count_max - 2) // 2)
    width = (at[-1] - at[0]) / stretches or 1
    lowest: dict[int, int] = {}
    highest: dict[int, int] = {}
    for index, value in enumerate(values):
        stretch = min(int((at[index] - at[0]) / width), stretches - 1)
        if stretch not in lowest or value < values[lowest[stretch]]:
            lowest[stretch] = index
        if stretch not in highest or value > values[highest[stretch]]:
            highest[stretch] = index
    return sorted({0, count - 1, *lowest.values(), *highest.values()})


def gather(intervals: Sequence[Interval], count_max: int = POINTS) -> list[Interval]:
    """Return at most about `count_max` intervals that show the same.

    Where there are more, those that are shorter than a stretch are put together: each of `STRETCHES` parts of the time
    shows them one after the other, by name, with the length that all of a name have there together. Sums by name stay
    as they are. Those that are longer stay too, and so does one that is open.
    """
    if len(intervals) <= count_max:
        return list(intervals)
    begin = intervals[0].from_ns
    width = max(1, -(-(intervals[-1].to_ns - begin) // STRETCHES))
    whole: list[Interval] = []
    gathered: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in intervals:
        if one.open or one.to_ns - one.from_ns >= width:
            whole.append(one)
        else:
            gathered[(one.from_ns - begin) // width][one.name] += one.to_ns - one.from_ns
    for stretch, lengths in gathered.items():
        at = begin + stretch * width
        for name, length in sorted(lengths.items()):
            whole.append(Interval(name, at, at + length, together=True))
            at += length
    return sorted(whole, key=lambda one: one.from_ns)


def totals_s(intervals: Iterable[Interval]) -> dict[str, float]:
    """Return the seconds of all intervals of each name."""
    totals: dict[str, float] = {}
    for one in intervals:
        totals[one.name] = totals.get(one.name, 0.0) + one.seconds
    return totals
