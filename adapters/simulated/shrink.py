"""Make a failing tape short: write zeros wherever the run still breaks the same law.

0 is the ordinary choice of everything, so what is left of the tape is what the failure needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .tape import FAMILIES, Family

Values = dict[Family, list[int]]
SIMPLEST_FIRST: tuple[Family, ...] = ("latency", "schedule", "fault", "data")


def shrink(
    values: Mapping[Family, Sequence[int]], fails: Callable[[Values], bool], *, tries_max: int = 200
) -> Values:
    """Return a tape with fewer choices other than 0 that still `fails`, after at most `tries_max` runs.

    Whole families are tried first, then halves of what is left, down to single choices.
    """
    best: Values = {family: list(values.get(family, ())) for family in FAMILIES}
    left = tries_max

    def attempt(family: Family, places: Sequence[int]) -> bool:
        nonlocal best, left
        if left <= 0 or not places:
            return False
        left -= 1
        zeroed = list(best[family])
        for place in places:
            zeroed[place] = 0
        candidate = {**best, family: zeroed}
        if not fails(candidate):
            return False
        best = candidate
        return True

    for family in SIMPLEST_FIRST:
        attempt(family, _chosen(best[family]))
    for family in SIMPLEST_FIRST:
        size = max(1, len(_chosen(best[family])) // 2)
        while left > 0 and _chosen(best[family]):
            places = _chosen(best[family])
            zeroed = [attempt(family, places[first : first + size]) for first in range(0, len(places), size)]
            if size == 1 and not any(zeroed):
                break
            size = max(1, size // 2)
    return {family: _trimmed(best[family]) for family in FAMILIES}


def _chosen(values: Sequence[int]) -> list[int]:
    return [place for place, value in enumerate(values) if value]


def _trimmed(values: Sequence[int]) -> list[int]:
    """Return `values` without the zeros at their end, which a tape goes on with anyway."""
    chosen = _chosen(values)
    return list(values[: chosen[-1] + 1]) if chosen else []
