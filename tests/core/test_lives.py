"""What a pool does about a loss while the pool itself is ending."""

from __future__ import annotations

import asyncio

import pytest
from worlds import World, config

from eventrain.adapters.simulated.virtual_time import run_virtual
from eventrain.core.engine_pool import EnginePool
from eventrain.core.projections import View
from eventrain.core.waits import Waiter
from eventrain.events.bus import Bus


def test_a_loss_beside_a_defect_does_not_hide_it() -> None:
    """In the turn in which a defect ends the pool's tasks, a loss is an event and nothing more."""
    world = World(config(), engines=1)
    lost: list[str] = []

    async def main() -> None:
        bus = Bus(world.clock)
        view = bus.register(View())
        waiter = Waiter(bus, world.clock, "engine_pool")
        pool = EnginePool(view, world.config, world.pool, world.artifacts, waiter)

        async def defective() -> None:
            raise ValueError("the defect")

        async with asyncio.TaskGroup() as tasks:
            with pool.lives.within(tasks):
                tasks.create_task(defective())
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:  # the group takes no more tasks from here on
                    pool.lives.lose("engine-0", "lost meanwhile", 0)
                    lost.append(view.engines.by_name["engine-0"].lost_message)
                    raise

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(main())
    assert [str(error) for error in caught.value.exceptions] == ["the defect"]
    assert lost == ["lost meanwhile"]
