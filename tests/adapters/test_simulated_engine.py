"""The simulated engine: places are a limit, and who waits for one waits in order."""

from __future__ import annotations

import asyncio

from eventrain.adapters.simulated.virtual_time import VirtualClock, run_virtual
from eventrain.adapters.simulated.world import SimulatedEngine
from eventrain.core.ports import GenerateRequest, Generation


def request(number: int) -> GenerateRequest:
    return GenerateRequest(
        request=str(number),
        prompt_ids=(1,),
        max_tokens=9,
        temperature=1.0,
        top_p=1.0,
        stop_token_ids=(2,),
        seed=number,
    )


def test_an_engine_answers_as_many_requests_at_a_time_as_it_has_places() -> None:
    """Five requests of one second on two places: two wait one second, and the last two."""

    async def ask() -> list[Generation]:
        engine = SimulatedEngine("engine-0", VirtualClock(), slots=2)
        await engine.start("weights/0", 0)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(engine.generate(request(number))) for number in range(5)]
        return [task.result() for task in asked]

    assert [round(answer.queue_s, 6) for answer in run_virtual(ask())] == [0, 0, 1, 1, 2]


def test_a_request_that_is_cancelled_leaves_its_place_to_the_next() -> None:
    """One place, the first request given up after half a second: the second is whole one second later."""

    async def ask() -> float:
        clock = VirtualClock()
        engine = SimulatedEngine("engine-0", clock, slots=1)
        await engine.start("weights/0", 0)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(engine.generate(request(0)))
            tasks.create_task(engine.generate(request(1)))
            await clock.sleep(0.5)
            first.cancel()
        return clock.mono_ns() / 1e9

    assert run_virtual(ask()) == 1.5
