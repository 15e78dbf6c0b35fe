"""Both engines as a run sees them: a real vLLM, a real tiny model."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM
from vllm_models import CONTEXT_TOKENS, VOCABULARY, ask, expected_logprobs

from eventrain.adapters.vllm.updating import Serving
from eventrain.core.ports import (
    EngineError,
    EngineGone,
    Generation,
    PromptRefused,
    PromptTooLong,
    Receipt,
    Weights,
)

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(360)]

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
LONG = 3000
"""Tokens that take vLLM long enough for a pause to come in between."""
TOLERANCE = 1e-4


async def started(served: Any) -> None:
    """Return when the engine has sampled tokens of a request in flight, and long before it has all of them.

    It is asked seldom: where every token takes less than a millisecond, counting would hold up what comes after it.
    """
    before = (await served.engine.sampled()).sampled_tokens
    async with asyncio.timeout(30):
        # Some more than one: those of a request that was aborted before may be counted late.
        while (await served.engine.sampled()).sampled_tokens < before + 5:  # noqa: ASYNC110 - vLLM counts
            await asyncio.sleep(0.1)


def test_it_says_what_it_is(served: Any) -> None:
    """Context and slots are vLLM's own, and it runs on this machine."""
    info = served.info
    assert (info.context_tokens, info.slots, info.device, info.node) == (CONTEXT_TOKENS, 8, "cpu", "")


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8)])
def test_logprobs_are_of_the_distribution_sampled_from(
    served: Any, models: list[LlamaForCausalLM], temperature: float, top_p: float
) -> None:
    """Log-probs equal those of transformers under the same temperature and top_p, so the weights are the right ones."""
    request = ask("a", PROMPT, 40, temperature=temperature, top_p=top_p)
    answer: Generation = served.run(served.engine.generate(request))
    wanted = expected_logprobs(models[0], PROMPT, list(answer.token_ids), temperature, top_p)
    assert answer.logprobs == pytest.approx(wanted, abs=TOLERANCE)
    assert answer.finish_reason == "length"
    assert answer.version_spans == ((0, 40),)


def test_equal_seeds_sample_equal_tokens_whatever_shares_the_batch(served: Any) -> None:
    """A request's tokens depend on its seed and not on its company."""

    async def all_of_them() -> list[Generation]:
        seeds = [7, 8, 7, 9]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(served.engine.generate(ask(f"s{n}", PROMPT, 20, seed=seed)))
                for n, seed in enumerate(seeds)
            ]
        return [task.result() for task in tasks]

    first, second, third, _ = served.run(all_of_them())
    assert first.token_ids == third.token_ids
    assert first.token_ids != second.token_ids


def test_a_stop_token_ends_the_answer_and_is_part_of_it(served: Any) -> None:
    """What was sampled is returned whole, with its log-prob."""
    free = served.run(served.engine.generate(ask("free", PROMPT, 20)))
    stop = free.token_ids[4]
    answer = served.run(served.engine.generate(ask("stop", PROMPT, 20, stop_token_ids=(stop,))))
    end = list(free.token_ids).index(stop) + 1
    assert list(answer.token_ids) == list(free.token_ids)[:end]
    assert len(answer.logprobs) == end
    assert answer.finish_reason == "stop"


def test_an_answer_ends_with_the_context(served: Any) -> None:
    """Wanting more tokens than there is room for is no error."""
    answer = served.run(served.engine.generate(ask("long", [1] * (CONTEXT_TOKENS - 6), 50)))
    assert (len(answer.token_ids), answer.finish_reason) == (6, "length")


@pytest.mark.parametrize("length", [CONTEXT_TOKENS, CONTEXT_TOKENS + 1, CONTEXT_TOKENS + 100])
def test_a_prompt_that_does_not_fit_is_refused_as_too_long(served: Any, length: int) -> None:
    """Whatever words vLLM has for it."""
    with pytest.raises(
        PromptTooLong, match=f"prompt has {length} tokens, the engine's context {CONTEXT_TOKENS}"
    ):
        served.run(served.engine.generate(ask("too long", [1] * length)))


@pytest.mark.parametrize(
    "changes", [{"prompt": []}, {"prompt": [VOCABULARY]}, {"prompt": [-1]}, {"top_p": 2.0}]
)
def test_other_requests_that_are_wrong_are_refused_for_good(served: Any, changes: dict[str, Any]) -> None:
    """The engine lives on, though vLLM itself would die of a token id that the model has no row for."""
    with pytest.raises(PromptRefused):
        served.run(served.engine.generate(ask("wrong", **{"prompt": PROMPT, **changes})))
    assert served.run(served.engine.generate(ask("right", PROMPT))).finish_reason == "length"


def test_cancelling_aborts_the_request_in_vllm(served: Any) -> None:
    """Its slot is free soon after, long before it would have ended by itself."""

    async def cancel_one() -> int:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(served.engine.generate(ask("cancelled", PROMPT, LONG)))
            await started(served)
            task.cancel()
        async with asyncio.timeout(10):
            while (load := await served.engine.sampled()).running:  # noqa: ASYNC110 - vLLM counts
                await asyncio.sleep(0.01)
        return load.running + load.waiting

    before = served.run(served.engine.sampled()).sampled_tokens
    assert served.run(cancel_one()) == 0
    assert served.run(served.engine.sampled()).sampled_tokens - before < LONG


def test_it_counts_its_load(served: Any) -> None:
    """What vLLM counts itself grows by what it was asked."""
    before = served.run(served.engine.sampled())
    served.run(served.engine.generate(ask("counted", [2, 7, 1, 8], 16)))
    after = served.run(served.engine.sampled())
    assert after.sampled_tokens - before.sampled_tokens == 16
    assert after.prompt_tokens - before.prompt_tokens == 4
    assert (after.running, after.waiting, after.engine) == (0, 0, "engine-0")


# Weights


def receipt_of(weights: Weights) -> Receipt:
    """Return the receipt for weights that arrived whole."""
    return Receipt(weights.version, weights.tensors, weights.digest)


@pytest.mark.parametrize("mode", ["drain", "pause", "abort"])
def test_an_update_in_a_pause_changes_what_is_sampled(
    served: Any, weights: list[Weights], models: list[LlamaForCausalLM], mode: str
) -> None:
    """The receipt is of what was published, and log-probs afterwards are those of the new weights."""

    async def update() -> tuple[Receipt, Generation, Generation]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(served.engine.generate(ask("in flight", PROMPT, LONG)))
            await started(served)
            await served.engine.pause(mode)
            receipt = await served.update(weights[1])
            await served.engine.resume()
        return receipt, task.result(), await served.engine.generate(ask("after", PROMPT, 20))

    receipt, across, after = served.run(update())
    assert receipt == receipt_of(weights[1])
    assert after.version_spans == ((1, 20),)
    assert after.logprobs == pytest.approx(
        expected_logprobs(models[1], PROMPT, list(after.token_ids)), abs=TOLERANCE
    )
    if mode == "drain":
        assert (across.version_spans, across.finish_reason) == (((0, LONG),), "length")
    elif mode == "abort":
        assert across.finish_reason == "abort"
        assert across.version_spans == ((0, len(across.token_ids)),)
        assert len(across.logprobs) == len(across.token_ids) < LONG
    else:
        assert across.finish_reason == "length"
        assert [version for version, _ in across.version_spans] == [0, 1]


def test_an_update_in_flight_recomputes_what_the_old_weights_cached(
    served: Any, weights: list[Weights], models: list[LlamaForCausalLM]
) -> None:
    """Every token of a request in flight has its version, and each log-prob is that of its version's own forward pass.

    With keys and values of the old weights those after the update would differ.
    """

    async def update() -> Generation:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(served.engine.generate(ask("in flight", PROMPT, LONG)))
            await started(served)
            assert await served.update(weights[1]) == receipt_of(weights[1])
        return task.result()

    answer = served.run(update())
    (old, before), (new, after) = answer.version_spans
    assert (old, new, before + after) == (0, 1, LONG)
    tokens = list(answer.token_ids)
    wanted = [
        *expected_logprobs(models[0], PROMPT, tokens)[:before],
        *expected_logprobs(models[1], PROMPT, tokens)[before:],
    ]
    assert answer.logprobs == pytest.approx(wanted, abs=TOLERANCE)


def test_a_prompt_that_the_old_weights_cached_is_computed_anew(
    served: Any, weights: list[Weights], models: list[LlamaForCausalLM]
) -> None:
    """A prefix that vLLM would have taken from its cache is not taken across an update."""
    prompt = [n % 50 for n in range(200)]
    served.run(served.engine.generate(ask("fill", prompt, 4)))
    before = served.run(served.engine.sampled()).cached_tokens
    served.run(served.engine.generate(ask("hit", prompt, 4)))
    assert served.run(served.engine.sampled()).cached_tokens > before, "vLLM has a prefix cache"
    served.run(served.update(weights[1]))
    answer = served.run(served.engine.generate(ask("anew", prompt, 20)))
    assert answer.logprobs == pytest.approx(
        expected_logprobs(models[1], prompt, list(answer.token_ids)), abs=TOLERANCE
    )


def test_weights_are_fetched_while_it_decodes_and_the_update_takes_those(
    served: Any, weights: list[Weights], damaged: Weights, tmp_path: Path
) -> None:
    """What was fetched is taken though the file has been replaced since; what cannot be fetched changes nothing."""
    path = tmp_path / "fetched.safetensors"
    shutil.copy(weights[1].path, path)
    fetched = replace(weights[1], path=str(path))

    async def fetch_and_update() -> tuple[Generation, Generation]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(served.engine.generate(ask("beside", PROMPT, LONG)))
            await started(served)
            await served.engine.fetch(fetched)
            with pytest.raises(EngineError, match=f"bucket {damaged.buckets - 1} has checksum"):
                await served.engine.fetch(damaged)
            with pytest.raises(EngineError, match="cannot be read"):
                await served.engine.fetch(replace(damaged, path="/none"))
        shutil.move(damaged.path, path)
        assert await served.update(fetched) == receipt_of(weights[1])
        return task.result(), await served.engine.generate(ask("after", PROMPT, 4))

    beside, after = served.run(fetch_and_update())
    assert beside.version_spans == ((0, LONG),)
    assert after.version_spans == ((1, 4),)
    with pytest.raises(EngineError, match=f"bucket {damaged.buckets - 1} has checksum"):
        served.run(served.update(fetched))


def test_a_damaged_bucket_is_refused_and_the_update_made_again(
    served: Any, weights: list[Weights], damaged: Weights, models: list[LlamaForCausalLM]
) -> None:
    """Half updated, the engine can neither finish nor decode; the whole update made again repairs it."""

    async def fail_and_repair() -> Generation:
        await served.engine.pause("pause")
        with pytest.raises(EngineError, match=f"bucket {damaged.buckets - 1} has checksum"):
            await served.update(damaged)
        missing = f"bucket {damaged.buckets - 1} of {damaged.buckets} has not been transferred"
        with pytest.raises(EngineError, match=missing):
            await served.engine.finish_update(served.lease)
        with pytest.raises(EngineError, match="half updated"):
            await served.engine.resume()
        assert await served.update(weights[1]) == receipt_of(weights[1])
        await served.engine.resume()
        return await served.engine.generate(ask("repaired", PROMPT, 20))

    answer = served.run(fail_and_repair())
    assert answer.version_spans == ((1, 20),)
    assert answer.logprobs == pytest.approx(
        expected_logprobs(models[1], PROMPT, list(answer.token_ids)), abs=TOLERANCE
    )


def test_an_update_that_lacks_a_bucket_is_not_finished(served: Any, weights: list[Weights]) -> None:
    """It stays paused, and goes on once the bucket has come."""

    async def late_bucket() -> Receipt:
        served.lease += 1
        await served.engine.begin_update(weights[1], served.lease)
        for bucket in [0, 1, *range(3, weights[1].buckets)]:
            await served.engine.transfer(bucket, served.lease)
        with pytest.raises(EngineError, match=f"bucket 2 of {weights[1].buckets} has not been transferred"):
            await served.engine.finish_update(served.lease)
        await served.engine.transfer(2, served.lease)
        return await served.engine.finish_update(served.lease)

    assert served.run(late_bucket()) == receipt_of(weights[1])


def test_beginning_again_throws_away_what_was_transferred(
    served: Any, weights: list[Weights], models: list[LlamaForCausalLM]
) -> None:
    """Tensors of an update that was given up, whatever their number, leave no trace."""

    async def change_of_mind() -> tuple[Receipt, Generation]:
        for given in range(1, weights[1].buckets):
            served.lease += 1
            await served.engine.begin_update(weights[1], served.lease)
            for bucket in range(given):
                await served.engine.transfer(bucket, served.lease)
        receipt = await served.update(weights[0])
        return receipt, await served.engine.generate(ask("clean", PROMPT, 20))

    receipt, answer = served.run(change_of_mind())
    assert receipt == receipt_of(weights[0])
    assert answer.logprobs == pytest.approx(
        expected_logprobs(models[0], PROMPT, list(answer.token_ids)), abs=TOLERANCE
    )


def test_calls_of_an_older_lease_change_nothing_and_repeated_ones_count_once(
    served: Any, weights: list[Weights]
) -> None:
    """What comes late cannot reach into the update that replaced it."""

    async def late_and_twice() -> None:
        engine, lease = served.engine, served.lease + 10
        await engine.begin_update(weights[1], lease)
        for bucket in [0, 0, *range(weights[1].buckets), 3]:
            await engine.transfer(bucket, lease)
        for call in (
            engine.begin_update(weights[0], lease - 1),
            engine.transfer(0, lease - 1),
            engine.finish_update(lease - 1),
        ):
            with pytest.raises(EngineError, match=f"lease {lease - 1} has ended"):
                await call
        assert await engine.finish_update(lease) == receipt_of(weights[1])
        assert await engine.finish_update(lease) == receipt_of(weights[1])
        served.lease = lease

    served.run(late_and_twice())
    assert served.run(served.engine.generate(ask("served", PROMPT, 4))).version_spans == ((1, 4),)


def test_vllms_own_workers_refuse_an_older_lease_and_another_owner(
    served: Any, weights: list[Weights]
) -> None:
    """Also what bypasses the controller's own check is stopped, in the process that holds the model."""

    async def bypass() -> list[dict[str, Any]]:
        link = served.engine._link
        owner = served.engine._serving._owner
        await served.update(weights[0])
        request = {"version": 1, "path": weights[1].path}
        return [
            *await link.workers("eventrain_begin", {"owner": owner, "lease": served.lease - 1, **request}),
            *await link.workers("eventrain_begin", {"owner": "other", "lease": served.lease + 1, **request}),
        ]

    late, foreign = served.run(bypass())
    assert f"lease {served.lease - 1} is over" in late["refused"]
    assert "another run" in foreign["refused"]
    assert served.run(served.engine.generate(ask("unmoved", PROMPT, 4))).version_spans == ((0, 4),)


def test_weights_that_do_not_exist_leave_the_engine_as_it_was(served: Any, weights: list[Weights]) -> None:
    """Refused before the model was touched, it goes on decoding by itself."""
    missing = Weights(1, weights[1].path + ".gone", 1, 1, "")
    with pytest.raises(EngineError, match="cannot be read"):
        served.run(served.update(missing))
    assert served.run(served.engine.generate(ask("as before", PROMPT, 4))).version_spans == ((0, 4),)


def test_an_update_is_not_begun_by_a_bucket(served: Any) -> None:
    """Without `begin_update` there is nothing to transfer to, and nothing to finish."""
    for call in (served.engine.transfer(0, served.lease + 1), served.engine.finish_update(served.lease + 1)):
        with pytest.raises(EngineError, match="no update has begun"):
            served.run(call)


def test_weights_can_only_be_changed_in_a_pause(served: Any, weights: list[Weights]) -> None:
    """What decodes can read a file, and has no method that touches weights; what has one is of no use after the pause.

    A pause that ends half-way through an update does not resume: nothing is sampled from half of the weights.
    """
    assert [name for name in dir(Serving) if not name.startswith("_")] == ["fetch", "paused"]
    serving, lease = served.engine._serving, served.lease + 1
    served.lease = lease

    async def half() -> None:
        async with serving.paused("pause") as paused:
            await paused.begin(weights[1], lease)
            await paused.transfer(0, lease)

    async def outside() -> None:
        async with serving.paused("pause") as paused:
            pass
        for call in (paused.begin(weights[1], lease), paused.transfer(0, lease), paused.finish(lease)):
            with pytest.raises(EngineError, match="not paused any more"):
                await call
        with pytest.raises(EngineGone, match="half done"):
            await half()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await served.engine.generate(ask("half", PROMPT))

    served.run(outside())


def test_an_engine_that_is_not_started_is_gone(make_engine: Any) -> None:
    """Nothing can be asked of it, and closing it twice is fine."""
    engine = make_engine("vllm")
    with pytest.raises(EngineGone, match="engine-0 is not started"):
        asyncio.run(engine.generate(ask("early", PROMPT)))
    asyncio.run(engine.close())
    asyncio.run(engine.close())
