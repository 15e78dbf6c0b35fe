"""Environments in real processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from eventrain.adapters.environments import environment_factory
from eventrain.adapters.environments.crossing import pack_item, unpack_item
from eventrain.adapters.environments.workers import WorkerEnvironments
from eventrain.adapters.launching import LocalLauncher
from eventrain.core.config import DeadlineSection, EnvironmentSection, RolloutSection
from eventrain.core.ports import Action, Environment, EnvironmentFailed, EnvironmentWorkerGone, Message

OWN = '''
import asyncio, os, threading
from eventrain.core.ports import Message, StepOutcome

class Told:
    """Does what its item tells it to."""

    async def reset(self, item, seed):
        self.item = item
        await self._do(item.get("reset", ""))
        return [Message("user", f"{seed}: {item!r}")]

    async def step(self, action):
        await self._do(action.text)
        return StepOutcome([Message("tool", action.text), Message("user", str(action.token_ids))])

    async def reward(self):
        await self._do(self.item.get("reward", ""))
        return 0.25

    async def _do(self, what):
        if what == "hang":
            await asyncio.Event().wait()
        elif what == "block":
            threading.Event().wait()
        elif what == "die":
            os._exit(7)
        elif what == "cancel":
            raise asyncio.CancelledError
        elif what == "raise":
            raise ValueError("no such tool: hammer")
'''


def worker_of(folder: Path, kind: str = "told:Told") -> WorkerEnvironments:
    """Return a worker for environments of `kind`; nothing is started."""
    (folder / "told.py").write_text(OWN)
    return WorkerEnvironments(
        "environment-0",
        LocalLauncher(),
        EnvironmentSection(kind=kind, workers=1),
        RolloutSection(max_turns=6),
        folder,
        folder / "environment-0.log",
        DeadlineSection(start_s=60, close_s=1),
    )


@asynccontextmanager
async def closing(worker: WorkerEnvironments) -> AsyncIterator[None]:
    """Close a worker behind a block."""
    try:
        yield
    finally:
        await worker.close()


@asynccontextmanager
async def started(folder: Path, kind: str = "told:Told") -> AsyncIterator[WorkerEnvironments]:
    """Give a worker that is up, for the length of a block."""
    worker = worker_of(folder, kind)
    await worker.start()
    async with closing(worker):
        yield worker


def act(text: str) -> Action:
    """Return an action."""
    return Action(text, [1, 2])


async def play(environment: Environment, number: int, seed: int) -> list[object]:
    """Play number hunt by halving; return everything that it said."""
    told: list[object] = list(await environment.reset({"number": number}, seed))
    low, high = 0, 64
    for _ in range(6):
        middle = (low + high) // 2
        outcome = await environment.step(act(str(middle)))
        told += [outcome.done, *outcome.messages]
        if outcome.done:
            break
        if "higher" in outcome.messages[-1].content:
            low = middle + 1
        else:
            high = middle
    return [*told, await environment.reward()]


# What crosses


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"text": "ü", "none": None, "yes": True, "half": 0.5, "raw": b"\x00", "many": [1, [2]]},
        {"place": (1, (2, [3, (4,)])), "steps": [("up", 2)]},
        {"large": 10**40, "negative": -(10**30), "edge": [2**64 - 1, 2**64, -(2**63)], 7: {(1, 2): "key"}},
    ],
)
def test_an_item_is_the_same_on_the_other_side(item: dict[Any, Any]) -> None:
    """Equal, with tuples still tuples and large numbers still numbers."""
    back = unpack_item(pack_item(item))
    assert back == item
    assert repr(back) == repr(item)


def test_an_item_that_cannot_be_sent_is_refused_by_its_place() -> None:
    """What is no plain data is never turned into something else."""
    with pytest.raises(TypeError, match=r"^item\['rows'\]\[1\]\['day'\] is a date, and to a worker only"):
        pack_item({"rows": [{}, {"day": date(2026, 1, 2)}]})


# Workers


def test_environments_in_a_worker_play_as_those_in_the_controller(tmp_path: Path) -> None:
    """Twenty games at once over one worker say and score what they do without one, and none is left behind."""
    section, rollout = EnvironmentSection(kind="number_hunt"), RolloutSection(max_turns=6)
    here = environment_factory(section, rollout, tmp_path)

    async def main() -> None:
        async with started(tmp_path, "number_hunt") as worker:
            games = [(number, 100 + number) for number in range(20)]
            async with asyncio.TaskGroup() as tasks:
                there = [tasks.create_task(play(worker.make(), *game)) for game in games]
            assert [task.result() for task in there] == [await play(here(), *game) for game in games]
            assert await worker.held() == []

    asyncio.run(main())


def test_items_actions_and_answers_arrive_as_they_were(tmp_path: Path) -> None:
    """The environment sees tuples, seed, text and token ids; the controller sees messages of every role."""

    async def main() -> None:
        async with started(tmp_path) as worker:
            environment = worker.make()
            opening = await environment.reset({"at": (1, 2)}, 2**62)
            assert opening == [Message("user", f"{2**62}: {{'at': (1, 2)}}")]
            outcome = await environment.step(act("look"))
            assert (outcome.done, outcome.messages) == (False, [Message("tool", "look"), Message("user", "[1, 2]")])
            assert await environment.reward() == 0.25
            environment.drop()

    asyncio.run(main())


def test_failures_keep_their_words(tmp_path: Path) -> None:
    """What an environment raises is told as it would be in the controller; the worker and the others live on."""

    async def main() -> None:
        async with started(tmp_path) as worker:
            one, other = worker.make(), worker.make()
            await other.reset({}, 1)
            with pytest.raises(EnvironmentFailed, match=r"^Told\.reset raised ValueError: no such tool: hammer$"):
                await one.reset({"reset": "raise"}, 1)
            with pytest.raises(EnvironmentFailed, match=r"^Told\.step raised ValueError: no such tool: hammer$"):
                await other.step(act("raise"))
            with pytest.raises(EnvironmentFailed, match=r"^the call was cancelled from within$"):
                await other.step(act("cancel"))
            with pytest.raises(EnvironmentFailed, match=r"^item\['day'\] is a date"):
                await worker.make().reset({"day": date(2026, 1, 2)}, 1)
            assert await other.reward() == 0.25

    asyncio.run(main())


def test_nothing_is_left_of_what_was_cancelled_failed_or_given_up(tmp_path: Path) -> None:
    """Calls that hang in the worker end there; what is dropped is gone with the next call that is answered."""

    async def hanging(environment: Environment, item: dict[str, Any], text: str = "") -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await environment.reset(item, 1)
                await environment.step(act(text))
                pytest.fail("it did not hang")

    async def main() -> None:
        async with started(tmp_path) as worker:
            resets, steps, fails, unasked = (worker.make() for _ in range(4))
            await hanging(resets, {"reset": "hang"})
            await hanging(steps, {}, "hang")
            with pytest.raises(EnvironmentFailed):
                await fails.reset({"reset": "raise"}, 1)
            scored = worker.make()
            await scored.reset({}, 1)
            assert await worker.held() == [1, 2, 3, 5]
            await scored.reward()
            for environment in (resets, steps, fails, unasked, scored, steps):
                environment.drop()
            await hanging(worker.make(), {"reset": "hang"})  # this call is cancelled, and what it told may be lost
            last = worker.make()
            await last.reset({}, 1)
            assert await worker.held() == [6, 7]
            assert worker._life is not None
            assert worker._life.dropped == set()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["killed", "own"])
def test_a_dead_worker_is_told_to_all_and_can_be_started_anew(tmp_path: Path, how: str) -> None:
    """Every call, under way or later, ends in `EnvironmentWorkerGone`; a new life has none of the old environments."""

    async def main() -> None:
        worker = worker_of(tmp_path)
        pid = (await worker.start()).pid
        assert pid is not None
        async with closing(worker):
            waiting, other = worker.make(), worker.make()
            await waiting.reset({}, 1)
            await other.reset({}, 1)
            words = "killed by SIGKILL" if how == "killed" else "exit code 7"

            async def end() -> None:
                await worker.ping()
                if how == "own":
                    await other.step(act("die"))
                os.kill(pid, signal.SIGKILL)

            calls = await asyncio.gather(waiting.step(act("hang")), end(), return_exceptions=True)
            assert isinstance(calls[0], EnvironmentWorkerGone)
            assert words in str(calls[0])
            with pytest.raises(EnvironmentWorkerGone, match=words):
                await other.reward()
            with pytest.raises(EnvironmentWorkerGone, match=words):
                await worker.ping()
            assert (await worker.start()).pid != pid
            assert await worker.held() == []
            with pytest.raises(EnvironmentWorkerGone):
                await waiting.reward()
            fresh = worker.make()
            await fresh.reset({}, 1)
            assert await fresh.reward() == 0.25

    asyncio.run(main())


def test_what_blocks_blocks_its_worker_alone(tmp_path: Path) -> None:
    """A worker in which an environment computes for ever answers nobody, and ends when it is closed."""

    async def main() -> None:
        async with started(tmp_path) as blocked, started(tmp_path) as free:
            environment, other = blocked.make(), free.make()
            await environment.reset({}, 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await environment.step(act("block"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await blocked.ping()
            await other.reset({}, 1)
            assert await other.reward() == 0.25
            await blocked.close()
            with pytest.raises(EnvironmentWorkerGone):
                await blocked.ping()

    asyncio.run(main())


def test_a_worker_that_cannot_make_environments_says_why(tmp_path: Path) -> None:
    """What is wrong with the environment is in the error of the start, and no process is left."""

    async def main() -> None:
        words = r"^environment-0 did not start: ValueError: .*no module 'nowhere'"
        with pytest.raises(EnvironmentWorkerGone, match=words):
            await worker_of(tmp_path, "nowhere:Nothing").start()

    asyncio.run(main())
