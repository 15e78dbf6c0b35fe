"""The simulated engine: places are a limit, and who waits for one waits in order."""

from __future__ import annotations

import asyncio

from eventrain.adapters.simulated.engine import SimulatedEngine
from eventrain.adapters.simulated.virtual_time import VirtualClock, run_virtual
from eventrain.adapters.simulated.world import simulated_weights
from eventrain.core.ports import GenerateRequest, Generation
from eventrain.core.weight_update import update


def request(number: int, tokens: int = 9) -> GenerateRequest:
    return GenerateRequest(
        request=str(number),
        prompt_ids=(1,),
        max_tokens=tokens,
        temperature=1.0,
        top_p=1.0,
        stop_token_ids=(2,),
        seed=number,
    )


def test_an_engine_answers_as_many_requests_at_a_time_as_it_has_places() -> None:
    """Five requests of one second on two places: two wait one second, and the last two."""

    async def ask() -> list[Generation]:
        engine = SimulatedEngine("engine-0", VirtualClock(), slots=2)
        await engine.start(simulated_weights(0))
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(engine.generate(request(number))) for number in range(5)]
        return [task.result() for task in asked]

    assert [round(answer.queue_s, 6) for answer in run_virtual(ask())] == [0, 0, 1, 1, 2]


def test_a_request_that_is_cancelled_leaves_its_place_to_the_next() -> None:
    """One place, the first request given up after half a second: the second is whole one second later."""

    async def ask() -> float:
        clock = VirtualClock()
        engine = SimulatedEngine("engine-0", clock, slots=1)
        await engine.start(simulated_weights(0))
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(engine.generate(request(0)))
            tasks.create_task(engine.generate(request(1)))
            await clock.sleep(0.5)
            first.cancel()
        return clock.mono_ns() / 1e9

    assert run_virtual(ask()) == 1.5


def test_tokens_are_sampled_evenly_and_carry_the_version_of_their_time() -> None:
    """New weights after 0.3 s of one second: of a hundred tokens thirty are old and seventy are new."""

    async def ask() -> Generation:
        clock = VirtualClock()
        engine = SimulatedEngine("engine-0", clock, length=lambda request: 100)
        await engine.start(simulated_weights(4))
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(engine.generate(request(0, tokens=100)))
            await clock.sleep(0.3)
            await update(engine, simulated_weights(5), 1)
        return asked.result()

    assert run_virtual(ask()).version_spans == ((4, 30), (5, 70))


def test_a_pause_stops_sampling() -> None:
    """Paused for a second after 0.6 s, with new weights meanwhile: the answer comes a second later, 60 to 40."""

    async def ask() -> tuple[Generation, float]:
        clock = VirtualClock()
        engine = SimulatedEngine("engine-0", clock, length=lambda request: 100)
        await engine.start(simulated_weights(4))
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(engine.generate(request(0, tokens=100)))
            await clock.sleep(0.6)
            await engine.pause("pause")
            await clock.sleep(0.5)
            await update(engine, simulated_weights(5), 1)
            await clock.sleep(0.5)
            await engine.resume()
        return asked.result(), clock.mono_ns() / 1e9

    answer, seconds = run_virtual(ask())
    assert answer.version_spans == ((4, 60), (5, 40))
    assert seconds == 2.0


def test_an_answer_that_takes_no_time_has_one_version() -> None:
    """All tokens of an instant are of the version that is served then."""

    async def ask() -> Generation:
        engine = SimulatedEngine("engine-0", VirtualClock(), seconds=lambda request: 0.0)
        await engine.start(simulated_weights(4))
        return await engine.generate(request(0))

    assert run_virtual(ask()).version_spans == ((4, 3),)
