"""The engine as the run sees it: a real process, a real tiny model."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventrain.adapters.engine_setup import EngineSetup
from eventrain.adapters.torch.engine import TorchEngine
from eventrain.adapters.torch.proving import plain_logprobs
from eventrain.core.config import DeadlineSection, EngineSection, RolloutSection
from eventrain.core.ports import (
    EngineError,
    EngineGone,
    GenerateRequest,
    Generation,
    PromptRefused,
    PromptTooLong,
    Receipt,
    Weights,
)
from eventrain.core.weight_update import update

CONTEXT = 200
SLOTS = 2


def engine_at(model: Path, log: Path, **section: Any) -> TorchEngine:
    """Return an engine that is not started."""
    setup = EngineSetup(
        "engine0",
        model,
        EngineSection(**{"slots": SLOTS, "device": "cpu", **section}),
        RolloutSection(max_tokens=100, context_tokens=CONTEXT),
        log,
        DeadlineSection(start_s=60, close_s=10),
    )
    return TorchEngine(setup)


class Served:
    """An engine with weights 0, on an event loop that outlives a test."""

    def __init__(self, engine: TorchEngine, weights: list[Weights]) -> None:
        self.runner = asyncio.Runner()
        self.engine = engine
        self.weights = weights
        self.leases = count()

    async def take(self, number: int, version: int | None = None) -> Receipt:
        """Update the engine to the weights `number`, under a lease of its own."""
        weights = self.weights[number]
        return await update(
            self.engine, replace(weights, version=number if version is None else version), next(self.leases)
        )

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)


@pytest.fixture(scope="module", name="served")
def _served(
    tiny_model: Path, tiny_weights: list[Weights], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("engine") / "engine0.log"
    served = Served(engine_at(tiny_model, log), tiny_weights)
    with served.runner:
        served.run(served.engine.start(served.weights[0]))
        yield served
        served.run(served.engine.close())


def request(
    name: str = "1/0/0", prompt: Any = (1, 2, 3), max_tokens: int = 8, **rest: Any
) -> GenerateRequest:
    """Return a request with the usual settings."""
    usual = {"temperature": 1.0, "top_p": 1.0, "stop_token_ids": (), "seed": 0}
    return GenerateRequest(name, prompt, max_tokens, **{**usual, **rest})


async def until_active(engine: TorchEngine, active: int, waiting: int = 0) -> None:
    """Return once so many requests hold a slot, and so many wait for one."""
    async with asyncio.timeout(30):
        while await engine.occupancy() != (active, waiting):
            pass


def assert_of(model: Any, prompt: Any, answer: Generation) -> None:
    """Check the answer's log-probs against the model's own."""
    expected = plain_logprobs(model, prompt, answer.token_ids)
    assert np.abs(expected - answer.logprobs).max() < 1e-4


def test_an_answer_is_the_models_own(served, tiny) -> None:
    """Log-probs equal the plain model's, versions cover every token, and the same seed gives the same again."""

    async def main() -> None:
        engine = served.engine
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(engine.generate(request(f"{n}/0/0", [n, 5, 6], 20, seed=n)))
                for n in range(7)
            ]
        for number, task in enumerate(tasks):
            answer = task.result()
            assert_of(tiny(0), [number, 5, 6], answer)
            assert answer.version_spans == ((0, 20),)
            assert answer.finish_reason == "length"
            assert answer.queue_s >= 0
            assert answer.engine_s >= answer.queue_s
        alone = await engine.generate(request("9/0/0", [4, 5, 6], 20, seed=4))
        assert alone.token_ids == tasks[4].result().token_ids
        other = await engine.generate(request("9/0/0", [4, 5, 6], 20, seed=5))
        assert other.token_ids != alone.token_ids
        stop = alone.token_ids[5]
        stopped = await engine.generate(request("9/0/0", [4, 5, 6], 20, seed=4, stop_token_ids=[stop]))
        assert stopped.token_ids == alone.token_ids[: alone.token_ids.index(stop) + 1]
        assert stopped.finish_reason == "stop"

    served.run(main())


def test_the_context_limits_prompts_and_answers(served) -> None:
    """A prompt that fills the context is refused; one that leaves room gets what room there is."""

    async def main() -> None:
        with pytest.raises(PromptTooLong, match=r"^prompt has 200 tokens, the engine's context 200$"):
            await served.engine.generate(request(prompt=[1] * CONTEXT))
        answer = await served.engine.generate(request(prompt=[1] * (CONTEXT - 3), max_tokens=50))
        assert (len(answer.token_ids), answer.finish_reason) == (3, "length")
        for wrong in ([], [1, 64], [-1]):
            with pytest.raises(PromptRefused):
                await served.engine.generate(request(prompt=wrong))

    served.run(main())


def test_cancelling_frees_the_slot(served) -> None:
    """A cancelled request leaves its slot to the next in line, and a waiting one leaves the line."""

    async def main() -> None:
        engine = served.engine
        await engine.pause("pause")
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(engine.generate(request(f"{n}/0/0", max_tokens=150))) for n in range(5)
            ]
            await until_active(engine, 0, 5)
            tasks[4].cancel()
            await until_active(engine, 0, 4)
            await engine.resume()
            await engine.pause("pause")
            assert await engine.occupancy() in {(0, 4), (2, 2)}
            tasks[0].cancel()
            tasks[1].cancel()
            await until_active(engine, 0, 2)
            await engine.resume()
        assert [task.cancelled() for task in tasks] == [True, True, False, False, True]
        assert await engine.occupancy() == (0, 0)

    served.run(main())


def test_weights_change_under_requests_in_flight(served, tiny) -> None:
    """With updates between its steps, every token has the log-prob of the weights that its span names."""

    async def main() -> Generation:
        engine = served.engine
        async with asyncio.TaskGroup() as group:
            task = group.create_task(engine.generate(request(prompt=[7, 8], max_tokens=180)))
            await until_active(engine, 1)
            version = 0
            while not task.done():
                version += 1
                await served.take(version % 2, version)
        await served.take(0)
        return task.result()

    answer = served.run(main())
    assert len(answer.version_spans) > 1
    assert sum(tokens for _, tokens in answer.version_spans) == len(answer.token_ids)
    by_weights = [plain_logprobs(tiny(seed), [7, 8], answer.token_ids) for seed in (0, 1)]
    position = 0
    for version, tokens in answer.version_spans:
        span = slice(position, position + tokens)
        assert np.abs(by_weights[version % 2][span] - answer.logprobs[span]).max() < 1e-4
        position += tokens


def test_pause_freezes_and_load_works_meanwhile(served) -> None:
    """Paused, nothing is sampled; what is in flight goes on after resume with the weights loaded meanwhile."""

    async def main() -> None:
        engine = served.engine
        async with asyncio.TaskGroup() as group:
            task = group.create_task(engine.generate(request(max_tokens=150)))
            await until_active(engine, 1)
            await engine.pause("pause")
            await engine.pause("pause")
            late = group.create_task(engine.generate(request("2/0/0", max_tokens=3)))
            await until_active(engine, 1, 1)
            await served.take(1)
            assert await engine.occupancy() == (1, 1)
            assert not task.done()
            await engine.resume()
        assert [version for version, _ in task.result().version_spans] == [0, 1]
        assert late.result().version_spans == ((1, 3),)
        assert late.result().queue_s > 0
        await served.take(0)

    served.run(main())


def test_drain_finishes_what_has_a_slot(served) -> None:
    """Drained, the slots are empty, and what waited is sampled after resume, with the new weights."""

    async def main() -> None:
        engine = served.engine
        await engine.pause("drain")  # of an idle engine: at once
        await engine.resume()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(engine.generate(request(f"{n}/0/0", max_tokens=60))) for n in range(4)]
            await until_active(engine, 2, 2)
            await engine.pause("drain")
            assert await engine.occupancy() == (0, 2)
            await served.take(1)
            assert not tasks[2].done()
            await engine.resume()
        assert [task.result().version_spans for task in tasks] == [((0, 60),)] * 2 + [((1, 60),)] * 2
        await served.take(0)

    served.run(main())


def test_wrong_weights_are_an_engine_error(served, tiny, published, tmp_path) -> None:
    """A missing, damaged or foreign file is refused, and the engine goes on with what it had."""

    async def main() -> None:
        damaged, foreign = tmp_path / "damaged.safetensors", tmp_path / "foreign.safetensors"
        damaged.write_bytes(b"\x80\x04not tensors")
        others = published(tiny(0, kv_heads=4), foreign, 9)
        before = await served.engine.generate(request())
        for path in (tmp_path / "none.safetensors", damaged, foreign):
            with pytest.raises(EngineError):
                await update(served.engine, replace(others, path=str(path)), next(served.leases))
        after = await served.engine.generate(request())
        assert after.token_ids == before.token_ids
        assert after.version_spans == ((0, 8),)

    served.run(main())


@pytest.mark.slow
def test_a_killed_engine_is_gone_until_it_is_started_again(tiny_model, tiny_weights, tmp_path) -> None:
    """Kill -9 ends pending and later calls in EngineGone; a new start serves, at the version it is given."""

    async def main() -> None:
        engine = engine_at(tiny_model, tmp_path / "log")
        with pytest.raises(EngineGone, match="not started"):
            await engine.generate(request())
        info = await engine.start(replace(tiny_weights[0], version=0))
        assert (info.context_tokens, info.slots, info.device) == (CONTEXT, SLOTS, "cpu")
        await engine.pause("pause")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(gone(engine)) for _ in range(3)]
            await until_active(engine, 0, 3)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
        assert all("killed by SIGKILL" in task.result() for task in tasks)
        assert "killed by SIGKILL" in await gone(engine)
        await engine.start(replace(tiny_weights[1], version=5))
        assert (await engine.generate(request())).version_spans == ((5, 8),)
        await engine.close()
        await engine.close()
        with pytest.raises(EngineGone):
            await engine.pause("pause")

    asyncio.run(main())


async def gone(engine: TorchEngine) -> str:
    """Return the text of the EngineGone that a request ends in."""
    with pytest.raises(EngineGone) as caught:
        await engine.generate(request())
    return str(caught.value)


@pytest.mark.slow
def test_a_prepared_engine_starts_in_its_process(tiny_model, tiny_weights, tmp_path) -> None:
    """Start takes over a prepared process, which serves nothing before."""

    async def main() -> None:
        engine = engine_at(tiny_model, tmp_path / "log")
        await engine.prepare()
        prepared = engine.pid
        await engine.start(replace(tiny_weights[0], version=3))
        assert engine.pid == prepared
        assert (await engine.generate(request())).version_spans == ((3, 8),)
        await engine.prepare()
        assert engine.pid not in (prepared, None)
        with pytest.raises(EngineGone, match="not started"):
            await engine.generate(request())
        await engine.close()

    asyncio.run(main())


@pytest.mark.slow
def test_an_engine_that_cannot_start_says_why(tiny_model, tiny_weights, tmp_path) -> None:
    """A missing model folder or weights file is named in EngineGone, and no process is left."""

    async def main() -> None:
        none = replace(tiny_weights[0], path=str(tmp_path / "none.safetensors"))
        for model, weights, word in (
            (tmp_path / "nowhere", tiny_weights[0], "nowhere is no usable model folder"),
            (tiny_model, none, "none.safetensors cannot be read"),
        ):
            engine = engine_at(model, tmp_path / "log")
            with pytest.raises(EngineGone, match=word):
                await engine.start(weights)
            assert engine.pid is None

    asyncio.run(main())


ORPHANING = """\
import asyncio, json, sys
from pathlib import Path
from eventrain.adapters.engine_setup import EngineSetup
from eventrain.adapters.torch.engine import TorchEngine
from eventrain.core.config import DeadlineSection, EngineSection, RolloutSection
from eventrain.core.ports import GenerateRequest, Weights

async def main():
    model, weights, log = sys.argv[1:]
    section = EngineSection(device="cpu")
    setup = EngineSetup("e", Path(model), section, RolloutSection(), Path(log), DeadlineSection())
    engine = TorchEngine(setup)
    await engine.start(Weights(**json.loads(weights)))
    print(engine.pid, flush=True)
    while True:
        await engine.generate(GenerateRequest("1/0/0", [1, 2], 100, 1.0, 1.0, (), 0))

asyncio.run(main())
"""


@pytest.mark.slow
def test_an_engine_ends_with_its_parent(tiny_model, tiny_weights, tmp_path) -> None:
    """When the run is killed in the middle of a generation, the engine's process ends as well."""
    weights = json.dumps(asdict(tiny_weights[0]))
    command = [sys.executable, "-c", ORPHANING, str(tiny_model), weights, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        handle = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([handle], [], [], 30)[0]
    finally:
        os.close(handle)


def test_an_update_that_fails_half_way_changes_nothing_and_is_made_again(served, tiny, published, tmp_path) -> None:
    """A damaged bucket and a missing one are refused; the same update, made again and whole, is then taken."""

    async def main() -> None:
        engine, lease = served.engine, next(served.leases)
        path = tmp_path / "two.safetensors"
        weights = published(tiny(2), path, 2)
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        await engine.begin_update(weights, lease)
        with pytest.raises(EngineError, match=r"bucket 0 of .* has not been transferred"):
            await engine.finish_update(lease)
        for bucket in range(weights.buckets - 1):
            await engine.transfer(bucket, lease)
        with pytest.raises(EngineError, match=f"bucket {weights.buckets - 1} has checksum"):
            await engine.transfer(weights.buckets - 1, lease)
        assert (await engine.generate(request())).version_spans == ((0, 8),)
        path.write_bytes(good)
        receipt = await update(engine, weights, lease)
        assert receipt == Receipt(2, weights.tensors, weights.digest)
        assert (await engine.generate(request())).version_spans == ((2, 8),)
        await served.take(0)

    served.run(main())


def test_an_update_takes_what_was_fetched(served, tiny, published, tmp_path) -> None:
    """Though the file has been replaced since; and what cannot be fetched changes nothing."""

    async def main() -> None:
        engine, path, other = served.engine, tmp_path / "two.safetensors", tmp_path / "other.safetensors"
        weights, torn = published(tiny(2), path, 2), path.read_bytes()[:-1]
        await engine.fetch(weights)
        other.write_bytes(torn)
        other.replace(path)
        with pytest.raises(EngineError, match="ends within bucket"):
            await engine.fetch(weights)
        assert (await engine.generate(request())).version_spans == ((0, 8),)
        assert await update(engine, weights, next(served.leases)) == Receipt(2, weights.tensors, weights.digest)
        assert (await engine.generate(request())).version_spans == ((2, 8),)
        with pytest.raises(EngineError, match="ends within bucket"):
            await update(engine, weights, next(served.leases))
        await served.take(0)

    served.run(main())


def test_an_update_has_its_effect_once_and_under_the_newest_lease_only(served) -> None:
    """Calls that are repeated give the same receipt; those of an older lease are refused and change nothing."""

    async def main() -> None:
        engine, old, new = served.engine, next(served.leases), next(served.leases)
        first, second = replace(served.weights[1], version=1), replace(served.weights[0], version=2)
        await engine.begin_update(first, old)
        await engine.begin_update(second, new)
        for _ in range(2):
            for bucket in range(second.buckets):
                await engine.transfer(bucket, new)
        for late in (engine.begin_update(first, old), engine.transfer(0, old), engine.finish_update(old)):
            with pytest.raises(EngineError, match=f"lease {old} is over: the newest one is {new}"):
                await late
        receipts = [await engine.finish_update(new) for _ in range(2)]
        assert receipts == [Receipt(2, second.tensors, second.digest)] * 2
        assert (await engine.generate(request())).version_spans == ((2, 8),)
        await served.take(0)

    served.run(main())


def test_abort_gives_the_tokens_so_far_and_they_can_be_taken_up_again(served, tiny) -> None:
    """Aborted, an answer ends with its tokens so far; sampled on behind them, the rest is of the new weights."""

    async def main() -> tuple[Generation, Generation]:
        engine = served.engine
        async with asyncio.TaskGroup() as group:
            task = group.create_task(engine.generate(request(prompt=[7, 8], max_tokens=180)))
            await until_active(engine, 1)
            await engine.pause("abort")
            first = await task
            assert await engine.occupancy() == (0, 0)
            await served.take(1)
            await engine.resume()
        prompt = [7, 8, *first.token_ids]
        rest = await engine.generate(request(prompt=prompt, max_tokens=180 - len(first.token_ids)))
        await served.take(0)
        return first, rest

    first, rest = served.run(main())
    assert first.finish_reason == "abort"
    assert 0 < len(first.token_ids) < 180
    assert first.version_spans == ((0, len(first.token_ids)),)
    assert np.abs(plain_logprobs(tiny(0), [7, 8], first.token_ids) - first.logprobs).max() < 1e-4
    assert rest.version_spans == ((1, 180 - len(first.token_ids)),)
