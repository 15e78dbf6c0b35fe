"""Small programs for the seeded loop, most with a race in them. Needs the standard library only."""

from __future__ import annotations

import asyncio
import sys

from eventrain.adapters.simulated.seeded_loop import run_seeded
from eventrain.adapters.simulated.tape import Tape


class Broken(AssertionError):
    """The planted bug showed."""


async def check_then_act() -> None:
    """Look at the last permit, do something else, and take it, in two tasks."""
    permits = 1

    async def take(other_first: int) -> None:
        nonlocal permits
        for _ in range(other_first):
            await asyncio.sleep(0)
        if permits:
            await asyncio.sleep(0)
            permits -= 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(take(0))
        tasks.create_task(take(2))  # in asyncio's own order it comes too late to be fooled
    if permits < 0:
        raise Broken("one permit was taken twice")


async def lost_wakeup() -> None:
    """Take what is in the box, and only then clear the flag that says there is something in it."""
    box: list[int] = []
    flag, taken = asyncio.Event(), []

    async def read() -> None:
        while len(taken) < 2:
            await flag.wait()
            taken.extend(box)
            box.clear()
            await asyncio.sleep(0)
            flag.clear()

    async def write(number: int) -> None:
        await asyncio.sleep(0.1)
        for _ in range(number * 4):  # in asyncio's own order the second comes when the flag was cleared
            await asyncio.sleep(0)
        box.append(number)
        flag.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        tasks.create_task(write(0))
        tasks.create_task(write(1))


async def ab_deadlock() -> None:
    """Take two locks in opposite order, in two tasks ten milliseconds apart."""
    a, b = asyncio.Lock(), asyncio.Lock()

    async def both(first: asyncio.Lock, second: asyncio.Lock, after_s: float) -> None:
        await asyncio.sleep(after_s)
        async with first:
            await asyncio.sleep(0.001)
            async with second:
                pass

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(both(a, b, 0.01))
        tasks.create_task(both(b, a, 0.02))


async def callbacks_in_order() -> None:
    """Rely on the order of call_soon, as correct code may."""
    loop, seen = asyncio.get_running_loop(), []
    done = loop.create_future()
    for number in range(5):
        loop.call_soon(seen.append, number)
    loop.call_soon(done.set_result, None)
    await done
    if seen != [0, 1, 2, 3, 4]:
        raise Broken(f"callbacks ran as {seen}")


async def workers() -> list[str]:
    """Use what orders things in asyncio: tasks, a queue, a semaphore, timeouts, and a group that is cancelled."""
    queue: asyncio.Queue[int] = asyncio.Queue(3)
    permits, seen = asyncio.Semaphore(2), []

    async def make(first: int) -> None:
        for number in range(first, first + 5):
            await asyncio.sleep(0.01 * (number % 3))
            await queue.put(number)

    async def work(name: str) -> None:
        while True:
            number = await queue.get()
            async with permits:
                try:
                    async with asyncio.timeout(0.05):
                        await asyncio.sleep(0.02 * (number % 4))
                except TimeoutError:
                    seen.append(f"{name} late {number}")
                seen.append(f"{name} {number}")

    async def all_of_it() -> None:
        async with asyncio.TaskGroup() as tasks:
            for n in range(4):
                tasks.create_task(work(f"worker {n}"))
            async with asyncio.TaskGroup() as makers:
                for n in range(3):
                    makers.create_task(make(n * 10))
            await asyncio.sleep(1)
            raise ZeroDivisionError

    try:
        await all_of_it()
    except* ZeroDivisionError:
        seen.append("ended")
    return seen


if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        print(*run_seeded(workers(), Tape(seed)))
