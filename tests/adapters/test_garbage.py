"""The collector of cycles, set for a process that runs for long."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from eventrain.adapters.garbage import YOUNG, settle


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Give the other tests the collector as they know it."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_built_by_then_is_never_looked_through_again() -> None:
    """Objects of the start are left out of all later collections; cycles made afterwards are still freed."""
    kept = [{"number": number} for number in range(3)]
    settle()
    tracked = {id(found) for found in gc.get_objects()}
    assert not any(id(one) in tracked for one in kept)
    assert gc.isenabled()
    assert gc.get_threshold()[0] == YOUNG
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1
