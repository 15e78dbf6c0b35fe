"""The order of an epoch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventrain.adapters.data.order import EpochOrder


@given(
    length=st.integers(1, 200), seed=st.integers(0, 2**40), epoch=st.integers(0, 50), shuffle=st.booleans()
)
def test_an_epoch_gives_every_item_exactly_once(length, seed, epoch, shuffle):
    """The positions of an epoch are a permutation of the dataset, shuffled or not."""
    order = EpochOrder(length, seed, shuffle)
    assert sorted(order.index(epoch, position) for position in range(length)) == list(range(length))


@given(
    seed=st.integers(0, 1000),
    asked=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 29)), min_size=1, max_size=30),
)
def test_an_order_does_not_depend_on_what_was_asked_before(seed, asked):
    """A source that was asked in any sequence answers as a fresh one does."""
    used = EpochOrder(30, seed, shuffle=True)
    answers = [used.index(epoch, position) for epoch, position in asked]
    assert answers == [EpochOrder(30, seed, shuffle=True).index(*place) for place in asked]


def test_epochs_and_seeds_have_orders_of_their_own():
    """Two epochs of one seed differ, and so do two seeds."""
    first, other = EpochOrder(100, 1, shuffle=True), EpochOrder(100, 2, shuffle=True)
    orders = {
        tuple(source.index(epoch, p) for p in range(100)) for source in (first, other) for epoch in (0, 1)
    }
    assert len(orders) == 4


def test_another_process_with_other_hashes_gives_the_same_order():
    """The order survives a restart: it depends on no hash seed."""
    script = (
        "from eventrain.adapters.data.order import EpochOrder;"
        "o = EpochOrder(50, 7, True); print([o.index(3, p) for p in range(50)])"
    )
    here = EpochOrder(50, 7, shuffle=True)
    there = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert there.stdout.strip() == str([here.index(3, position) for position in range(50)])


@pytest.mark.parametrize(("epoch", "position"), [(0, 3), (0, -1), (-1, 0)])
def test_a_place_outside_is_refused(epoch, position):
    """A position or epoch that does not exist is an error, not another item."""
    with pytest.raises(IndexError):
        EpochOrder(3, 0, shuffle=True).index(epoch, position)
