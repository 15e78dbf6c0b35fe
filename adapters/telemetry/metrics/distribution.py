"""Histograms with fixed buckets, as the fold keeps them and as exporters take them."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple


class Distribution(NamedTuple):
    """A histogram at one moment."""

    bounds: tuple[float, ...]
    """Upper bounds, included; what is above the last one is in one more bucket."""
    counts: tuple[int, ...]
    """In each bucket alone, not cumulative; one more than bounds."""
    sum: float

    @property
    def total(self) -> int:
        """How many values were observed."""
        return sum(self.counts)


class Buckets:
    """A histogram that grows."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, counts: tuple[int, ...], total: float) -> None:
        """Count values that somebody else has put into the same buckets; `total` is their sum."""
        for place, count in enumerate(counts[: len(self.counts)]):
            self.counts[place] += count
        self.sum += total

    def freeze(self) -> Distribution:
        """Return what was observed so far."""
        return Distribution(self.bounds, tuple(self.counts), self.sum)
