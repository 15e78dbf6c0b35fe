"""S2 on an event loop: a weight update in the gap between a look and a sleep, in thousands of interleavings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from legacy import FlagWaiter

from eventrain.adapters.simulated.seeded_loop import run_seeded
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.simulated.virtual_time import Stalled, VirtualClock
from eventrain.core.projections import View
from eventrain.core.waits import Edge, Waiter
from eventrain.events.bus import Bus
from eventrain.events.types import LearnerUp, WeightsPublished

UPDATES = 3
EDGE = Edge("version", "a version", "an older one")


async def updates(until: Callable[[Bus, View, Callable[[], bool]], Awaitable[None]], told: Callable[[], None]) -> None:
    """Publish three weight updates, and wait for each in turn as `until` does; who publishes calls `told`."""
    bus = Bus(VirtualClock())
    view = bus.register(View())

    async def collect() -> None:
        for version in range(UPDATES):
            await until(bus, view, lambda version=version: view.trainer.published >= version)

    async def train() -> None:
        for version in range(UPDATES):
            await asyncio.sleep(0)
            bus.publish("trainer", WeightsPublished(version=version, path="w", size_bytes=1, seconds=0))
            bus.fold()
            told()

    async def others() -> None:
        for _ in range(2):
            bus.publish("other", LearnerUp(version=0, parameters=1, device="cpu"))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(collect(), name="collector")
        tasks.create_task(train(), name="trainer")
        tasks.create_task(others(), name="other")


def sleeps_for_ever(tape: Tape, *, legacy: bool) -> bool:
    """Return whether somebody sleeps for ever although what he waits for has come."""

    async def shipped(bus: Bus, view: View, ready: Callable[[], bool]) -> None:
        await Waiter(bus, VirtualClock(), "collector").until(ready, lambda: EDGE)

    async def main() -> None:
        if not legacy:
            await updates(shipped, lambda: None)
            return
        flag = FlagWaiter()
        await updates(lambda bus, view, ready: flag.until(ready), flag.notify)

    try:
        run_seeded(main(), tape)
    except Stalled as stalled:
        return "collector" in str(stalled)
    return False


def test_the_legacy_waiter_sleeps_for_ever_under_some_seeds() -> None:
    """A flag that is cleared after the look loses an update in some of 200 interleavings, and not in all."""
    assert 0 < sum(sleeps_for_ever(Tape(seed), legacy=True) for seed in range(200)) < 200


def test_the_shipped_waiter_never_does() -> None:
    """`Waiter.until` misses no update in 1,000 interleavings."""
    assert not any(sleeps_for_ever(Tape(seed), legacy=False) for seed in range(1000))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_shipped_waiter_never_does_in_ten_thousand() -> None:
    """The same in 10,000 others."""
    assert not any(sleeps_for_ever(Tape(seed), legacy=False) for seed in range(1000, 11000))
