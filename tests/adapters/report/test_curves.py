"""Thinning: bounded in size, and what matters of a curve is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eventrain.adapters.report.curves import KEPT, STRETCHES, Curve, Interval, gather, thin, totals_s

CURVES = st.lists(st.tuples(st.integers(0, 1_000), st.integers(-50, 50)), min_size=1, max_size=300)


@given(CURVES, st.integers(8, 60))
def test_thinning_keeps_the_ends_and_the_extremes(points: list[tuple[int, int]], count_max: int) -> None:
    """However few points are left, the first, the last, the lowest and the highest value are among them."""
    at = sorted(when for when, _ in points)
    values = [float(value) for _, value in points]
    kept = thin(at, values, count_max)
    assert kept == sorted(set(kept))
    assert len(kept) <= count_max + 2
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    assert min(values[index] for index in kept) == min(values)
    assert max(values[index] for index in kept) == max(values)


def test_a_curve_of_any_length_stays_small() -> None:
    """Half a million points are kept as a few thousand, with a peak that lasted for one of them."""
    curve = Curve()
    for index in range(500_000):
        curve.add(index, 99.0 if index == 123_456 else index % 7)
    assert len(curve.values) < KEPT
    at, values = curve.points(500)
    assert len(values) <= 502
    assert at[values.index(99.0)] == 123_456


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10**9)), min_size=1, max_size=400),
    st.integers(1, 50),
)
def test_gathered_intervals_have_the_same_sums(lengths: list[tuple[str, int]], count_max: int) -> None:
    """Each name has the same time in all, and there are not many more than stretches times names."""
    intervals, at = [], 0
    for name, length in lengths:
        intervals.append(Interval(name, at, at + length))
        at += length
    gathered = gather(intervals, count_max)
    assert {name: round(s, 6) for name, s in totals_s(gathered).items()} == {
        name: round(s, 6) for name, s in totals_s(intervals).items()
    }
    assert len(gathered) <= max(count_max, STRETCHES * 3 + STRETCHES)


def test_what_is_open_or_long_is_not_gathered() -> None:
    """A phase that lasts for a tenth of the run, and the one that is not over, stay as they are."""
    short = [Interval("ab"[index % 2], index, index + 1) for index in range(9_000)]
    long, last = Interval("long", 9_000, 10_000), Interval("a", 10_000, 10_001, open=True)
    gathered = gather([*short, long, last], 100)
    assert long in gathered
    assert last in gathered
    assert len(gathered) < 600
