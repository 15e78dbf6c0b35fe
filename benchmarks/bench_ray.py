"""What a turn of a trajectory costs more when its environment lives elsewhere.

The same step of the same environment, which itself takes microseconds: called in the controller, in a worker process
of this machine, and in an actor of a Ray of our own. One after the other, and 64 at a time; with a short action and
with one of 4,096 tokens::

    python benchmarks/bench_ray.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from eventrain.adapters.environments.number_hunt import NumberHunt
from eventrain.adapters.launching import LOCAL, Launcher
from eventrain.adapters.ray import RayLauncher
from eventrain.core.config import RunConfig
from eventrain.core.ports import Action

HERE = Path(__file__).parent
TOKENS_LONG = 4096
AT_A_TIME = 64
Step = Callable[[bytes], Awaitable[Any]]


class Game:
    """An environment behind two calls that msgpack can carry."""

    def __init__(self) -> None:
        self._environment = NumberHunt(12, 1_000_000_000)

    async def step(self, tokens: bytes) -> list[str]:
        """Answer an action of so many four-byte token ids."""
        outcome = await self._environment.step(Action("1", memoryview(tokens).cast("i")))
        return [message.content for message in outcome.messages]


def make(settings: dict[str, Any]) -> Game:
    """Return the game. Called in the worker."""
    return Game(**settings)


def configured(engine_cpus: float = 0, environment_cpus: float = 1, **cluster: str) -> RunConfig:
    """Return settings that ask for an engine and an environment worker, with so many CPUs each."""
    cpus = {"engine_cpus": engine_cpus, "learner_cpus": 0, "environment_cpus": environment_cpus}
    return RunConfig.model_validate(
        {
            "run": {"steps": 1},
            "model": {"path": "none"},
            "data": {"kind": "generated", "size": 1},
            "environment": {"kind": "number_hunt", "workers": 1},
            "scheduler": {"groups_per_step": 1},
            "cluster": {"kind": "ray", **cpus, **cluster},
        }
    )


async def timed(step: Step, tokens: int, at_a_time: int, calls: int) -> list[float]:
    """Return the milliseconds of each call, sorted."""
    action = bytes(4 * tokens)
    spent: list[float] = []

    async def turns(count: int) -> None:
        for _ in range(count):
            began = time.perf_counter()
            await step(action)
            spent.append((time.perf_counter() - began) * 1e3)

    await turns(min(50, calls))  # warm
    spent.clear()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_a_time):
            group.create_task(turns(calls // at_a_time))
    return sorted(spent)


async def through(launcher: Launcher, measure: Callable[[Step], Awaitable[None]]) -> None:
    """Measure calls of a worker that `launcher` starts."""
    worker = await launcher.start(
        "bench_ray:make", {}, name="environment-0", log_path=None, deadline_s=120, env={"PYTHONPATH": str(HERE)}
    )
    try:
        await measure(lambda tokens: worker.call("step", tokens=tokens))
    finally:
        await worker.close(10)


async def main(calls: int) -> None:
    """Print the table."""
    found: dict[tuple[str, int, int], list[float]] = {}

    def measuring(where: str) -> Callable[[Step], Awaitable[None]]:
        async def measure(step: Step) -> None:
            for tokens in (8, TOKENS_LONG):
                for at_a_time in (1, AT_A_TIME):
                    found[where, tokens, at_a_time] = await timed(step, tokens, at_a_time, calls)

        return measure

    game = Game()
    await measuring("in the controller")(game.step)
    await through(LOCAL, measuring("worker process"))
    launcher = RayLauncher(configured())
    try:
        await through(launcher, measuring("Ray actor"))
    finally:
        await launcher.close()

    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {calls} calls each\n")
    head = ("tokens", "at a time", "where", "p50 ms", "p99 ms", "added p50", "of a process")
    print("{:>6} {:>9}  {:<18} {:>8} {:>8} {:>10} {:>13}".format(*head))
    for (where, tokens, at_a_time), spent in sorted(found.items(), key=lambda one: one[0][1:]):
        p50, p99 = spent[len(spent) // 2], spent[int(len(spent) * 0.99)]
        direct = found["in the controller", tokens, at_a_time]
        process = found["worker process", tokens, at_a_time]
        added = p50 - direct[len(direct) // 2]
        ratio = p50 / process[len(process) // 2]
        print(f"{tokens:>6} {at_a_time:>9}  {where:<18} {p50:>8.3f} {p99:>8.3f} {added:>10.3f} {ratio:>12.1f}x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    asyncio.run(main(640 if parser.parse_args().quick else 6400))
