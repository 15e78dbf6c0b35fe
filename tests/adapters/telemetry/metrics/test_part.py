"""Splitting a window by what held in it: as a plain walk over all changes splits it."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventrain.adapters.telemetry.metrics import part
from eventrain.adapters.telemetry.metrics.part import Track


def plainly(changes: list[tuple[int, str]], begin_ns: int, end_ns: int) -> dict[str, float]:
    """Return the shares of a window by a walk over all `changes`; the first counts for all that was before it."""
    held: dict[str, int] = {}
    begins = [min(begin_ns, changes[0][0]), *(since for since, _ in changes[1:]), max(end_ns, changes[-1][0])]
    for (since, until), (_, value) in zip(pairwise(begins), changes, strict=True):
        overlap_ns = min(until, end_ns) - max(since, begin_ns)
        if overlap_ns > 0:
            held[value] = held.get(value, 0) + overlap_ns
    return {value: ns / (end_ns - begin_ns) for value, ns in held.items()}


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abcd")), max_size=40),
    kept=st.integers(1, 12),
    begin_ns=st.integers(-5, 120),
    window_ns=st.integers(1, 120),
)
def test_a_window_is_split_as_a_walk_over_all_changes_splits_it(
    steps: list[tuple[int, str]], kept: int, begin_ns: int, window_ns: int
) -> None:
    """Whether it begins before what is kept, ends before the last change, or lies between two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, "INTERVALS_MAX", kept)
        track = Track("a")
    changes = [(0, "a")]
    for at_ns, (_, value) in zip(accumulate(after for after, _ in steps), steps, strict=True):
        track.enter(value, at_ns)
        if value != changes[-1][1]:
            changes.append((at_ns, value))
    end_ns = begin_ns + window_ns
    assert track.shares(begin_ns, end_ns) == plainly(changes[-kept:], begin_ns, end_ns)
    assert track.since_ns == changes[-1][0]


def test_an_empty_window_is_all_of_the_value_now() -> None:
    """A device that measured for no time at all is not divided by zero."""
    track = Track("a")
    track.enter("b", 10)
    assert track.shares(5, 5) == {"b": 1.0}
