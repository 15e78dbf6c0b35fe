"""Numbers are shown as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventrain.adapters.cli.quantities import bar, clock_time, number, seconds, size, sparkline, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.000_34, "340 us"),
        (0.012, "12 ms"),
        (0.9996, "1.0 s"),
        (3.21, "3.2 s"),
        (59.4, "59 s"),
        (59.6, "1:00"),
        (247, "4:07"),
        (7447, "2:04:07"),
        (3 * 86_400, "3 days"),
        (-3.2, "-3.2 s"),
    ],
)
def test_seconds_pick_the_unit(value: float, text: str) -> None:
    """A duration is shown in the unit that suits it, without steps such as 60 s or 1000 ms."""
    assert seconds(value) == text


def test_numbers_sizes_and_clock_times() -> None:
    """Numbers lose useless digits, sizes get units, times are h:mm:ss.mmm."""
    assert [number(v) for v in (12.0, 0.41666, 3e-5, 1)] == ["12", "0.4167", "3e-05", "1"]
    assert [size(v) for v in (0, 812, 3400, 98_000_000, 999_999)] == [
        "0 B",
        "812 B",
        "3.4 kB",
        "98 MB",
        "1.0 MB",
    ]
    assert clock_time(3_723_004_000_000) == "1:02:03.004"


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(0, 80))
def test_a_sparkline_never_exceeds_its_width(values: list[float], width: int) -> None:
    """However many values there are, the curve fits, and has one character each where they fit."""
    assert len(sparkline(values, width)) == min(len(values), width)


def test_a_sparkline_climbs_with_its_values() -> None:
    """The lowest and the highest value get the lowest and the highest block."""
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, 1], 8) == "▄▄"
    assert sparkline([0, 0, 8, 8], 2) == "▁█"


@given(st.floats(-0.5, 1.5), st.integers(1, 40))
def test_a_bar_has_its_width(share: float, width: int) -> None:
    """A bar always fills its column, so that what stands behind it is aligned."""
    assert len(bar(share, width)) == width


def test_a_table_aligns_its_columns() -> None:
    """Columns are as wide as their widest cell, numbers flush right, without trailing blanks."""
    assert table([("a", "1"), ("bcd", "100")], right=(1,)) == ["a      1", "bcd  100"]
