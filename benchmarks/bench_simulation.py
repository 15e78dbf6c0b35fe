"""How fast simulated time passes: steps of the event loop, of the director, of the whole system, chaos worlds.

Beside the seeded loop, in the same run: the plain virtual-time loop, which always takes asyncio's own order::

    python benchmarks/bench_simulation.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
import time
from collections.abc import Callable

from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.director import direct
from eventrain.adapters.simulated.exhaustive import search
from eventrain.adapters.simulated.judge import judge
from eventrain.adapters.simulated.message_world import Setting, setting
from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.seeded_loop import seeded_loop
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.simulated.virtual_time import run_virtual

TASKS = 8


async def pipeline(items: int) -> None:
    """Move `items` numbers through a queue: half of the tasks make them, half take them, all sleep now and then."""
    queue: asyncio.Queue[int] = asyncio.Queue(16)

    async def make(count: int) -> None:
        for number in range(count):
            await queue.put(number)
            if number % 4 == 0:
                await asyncio.sleep(0.01)

    async def take(count: int) -> None:
        for number in range(count):
            await queue.get()
            if number % 8 == 0:
                await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(TASKS // 2):
            tasks.create_task(make(items))
            tasks.create_task(take(items))


def loop_steps(items: int) -> tuple[int, float, float]:
    """Return the seeded loop's steps, its seconds, and those of the plain loop for the same program."""
    began = time.perf_counter()
    with seeded_loop(Tape(1)) as loop:
        loop.run_until_complete(pipeline(items))
        steps, seeded_s = loop.steps, time.perf_counter() - began
    began = time.perf_counter()
    run_virtual(pipeline(items))
    return steps, seeded_s, time.perf_counter() - began


def system(steps: int, tape: Callable[[], Tape]) -> tuple[int, float]:
    """Return the events of one healthy run, and its seconds: engines, rollouts, disk, codec, digest, ledger."""
    scenario = Scenario(config={"run": {"steps": steps}})
    began = time.perf_counter()
    run = simulate(scenario, tape())
    seconds = time.perf_counter() - began
    assert judge(run) is None
    return len(run.records), seconds


def chaos(seeds: int) -> tuple[int, int, float]:
    """Return how many chaos worlds kept every law, their events, and their seconds."""
    began, events, sound = time.perf_counter(), 0, 0
    for seed in range(seeds):
        tape = Tape(seed)
        run = simulate(draw_scenario(tape), tape)
        sound += judge(run) is None
        events += len(run.records)
    return sound, events, time.perf_counter() - began


def messages(policy: str, steps: int, **world: object) -> Setting:
    """Return a world of messages: four groups of eight a step and two engines, or as `world` says."""
    scheduler = {"policy": policy, "groups_per_step": 4, "max_staleness": 1, **world}
    config = {"run": {"steps": steps}, "scheduler": scheduler, "rollout": {"group_size": 8}}
    scenario = Scenario.model_validate({"config": config, "world": {"engines": 2}})
    return setting(scenario, fine=True, tick_ns=1_000_000)


def directed(given: Setting, tape: Callable[[], Tape]) -> tuple[int, int, float]:
    """Return the steps of one directed world (one move chosen and made each), its events, and its CPU seconds."""
    began = time.process_time()
    ended = direct(given, tape())
    seconds = time.process_time() - began
    assert ended.outcome == "completed"
    assert not ended.breaches
    return ended.moves, ended.events, seconds


def searched() -> tuple[int, int, float]:
    """Return the states and moves of a search of every order of a tiny world, and its CPU seconds."""
    tiny = {
        "config": {
            "run": {"steps": 2},
            "data": {"size": 4},
            "scheduler": {"groups_per_step": 2, "max_staleness": 1},
            "rollout": {"group_size": 2, "max_turns": 1},
        }
    }
    given = setting(Scenario.model_validate(tiny))
    began = time.process_time()
    seen = search(given)
    assert seen.found is None
    return seen.states, seen.transitions, time.process_time() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    small = parser.parse_args().quick
    steps, seeded_s, plain_s = min(
        (loop_steps(2_000 if small else 10_000) for _ in range(3)), key=lambda r: r[1]
    )
    run_steps = 5 if small else 60
    events, seconds = min((system(run_steps, lambda: Tape(1)) for _ in range(3)), key=lambda r: r[1])
    fifo_events, fifo_s = min((system(run_steps, lambda: Tape(0, {})) for _ in range(3)), key=lambda r: r[1])
    director = {
        policy: min(
            (directed(messages(policy, 10 if small else 200), lambda: Tape(1)) for _ in range(3)),
            key=lambda r: r[2],
        )
        for policy in ("targeted", "capacity", "windowed")
    }
    states, moves, search_s = searched()
    seeds = 20 if small else 200
    sound, chaos_events, chaos_s = chaos(seeds)
    print(f"Python {platform.python_version()}, {platform.machine()}, {sys.platform}")
    print(f"{'seeded loop':34}{steps / seeded_s:>12,.0f} steps/s     (goal 40,000)")
    print(f"{'plain virtual loop, same program':34}{steps / plain_s:>12,.0f} steps/s")
    for policy, (made, published, directed_s) in director.items():
        print(
            f"{f'director, {policy}':34}{made / directed_s:>12,.0f} steps/s     of CPU time (goal 150,000); "
            f"{published / made:.2f} events a step"
        )
    print(f"{'every order of a tiny world':34}{moves / search_s:>12,.0f} moves/s     of CPU time; {states:,} states")
    print(f"{'whole system, log encoded, hashed':34}{events / seconds:>12,.0f} events/s    (goal 15,000)")
    print(f"{'the same, a tape of zeros':34}{fifo_events / fifo_s:>12,.0f} events/s")
    print(f"{'chaos':34}{seeds / chaos_s:>12,.1f} seeds/s     {chaos_events / chaos_s:,.0f} events/s")
    print(f"{'chaos worlds that kept every law':34}{sound:>12,} of {seeds:,}")


if __name__ == "__main__":
    main()
