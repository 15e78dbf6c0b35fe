"""The single-turn environment and its verifier functions."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventrain.adapters.environments.verifier import Verifier, last_number
from eventrain.core.ports import Action, EnvironmentFailed, Message


@pytest.mark.parametrize(
    ("function", "answer", "completion", "reward"),
    [
        ("exact", "Paris", " Paris\n", 1.0),
        ("exact", "Paris", "It is Paris", 0.0),
        ("contains", "Paris", "It is Paris.", 1.0),
        ("contains", "4", "14", 0.0),
        ("contains", "a+b", "so a+b it is", 1.0),
        ("number", 42, "6 x 7 = 42.", 1.0),
        ("number", "#### 1,234", "that makes 1234.0", 1.0),
        ("number", -3, "x = -3", 1.0),
        ("number", 5, "10-5", 1.0),
        ("number", 0.1, "0.10", 1.0),
        ("number", 42, "42, or rather 43", 0.0),
        ("number", 42, "no idea", 0.0),
    ],
)
def test_builtin_functions_judge_as_they_say(play, function, answer, completion, reward):
    """Each built-in verifier accepts what its sentence accepts, and no more."""
    assert play(Verifier(function), {"prompt": "?", "answer": answer}, completion) == reward


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "so {}.", "1 then {:,}", "= {}\n\n"]))
def test_the_last_number_is_found_in_any_sentence(number, sentence):
    """A whole number written at the end of a text is read back, with or without thousands."""
    assert last_number(sentence.format(number)) == number


def test_a_prompt_may_be_text_or_messages():
    """A string is a user message; messages stay as they are; a system line goes before either, once."""
    conversation = [{"role": "system", "content": "own"}, {"role": "user", "content": "q"}]

    def opening(prompt):
        return asyncio.run(Verifier("exact", system="be brief").reset({"prompt": prompt, "answer": ""}, 0))

    assert opening("q") == [Message("system", "be brief"), Message("user", "q")]
    assert opening(conversation[1:]) == [Message("system", "be brief"), Message("user", "q")]
    assert opening(conversation) == [Message("system", "own"), Message("user", "q")]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"question": "q"}, "the item has no 'prompt', only question"),
        ({"prompt": 3}, "a prompt is a string or a list of messages, found int"),
        ({"prompt": []}, "a prompt is a string or a list of messages, found list"),
        ({"prompt": ["q"]}, "a message is an object with 'role' and 'content', found 'q'"),
        (
            {"prompt": [{"role": "robot", "content": "q"}]},
            "a message has the role 'robot', expected one of system",
        ),
    ],
)
def test_an_item_without_a_usable_prompt_is_a_typed_failure(item, message):
    """What is wrong with an item is said in one line, as a failure of this trajectory."""
    with pytest.raises(EnvironmentFailed, match=message):
        asyncio.run(Verifier("exact").reset(item, 0))


def test_keys_are_configurable(play):
    """A dataset keeps its own column names."""
    verifier = Verifier("exact", prompt_key="q", answer_key="a")
    assert play(verifier, {"q": "?", "a": "yes"}, "yes") == 1.0


def test_a_plain_function_runs_beside_the_event_loop(play):
    """A function without async is called in another thread, with completion and item, and may return an int."""
    seen = []

    def judge(completion, item):
        seen.append((threading.current_thread() is threading.main_thread(), completion, item["answer"]))
        return 1

    assert play(Verifier(judge), {"prompt": "?", "answer": "a"}, "text") == 1.0
    assert seen == [(False, "text", "a")]


def test_an_async_function_is_awaited_in_the_loop(play):
    """An async function runs where it may await others."""

    async def judge(completion, item):
        await asyncio.sleep(0)
        assert threading.current_thread() is threading.main_thread()
        return 0.5

    assert play(Verifier(judge), {"prompt": "?"}, "text") == 0.5


def test_a_function_that_never_returns_holds_up_nobody():
    """Cancelling the reward leaves the loop free, and neither loop nor process waits for the lost thread."""
    release = threading.Event()

    async def give_up():
        loop, entered = asyncio.get_running_loop(), asyncio.Event()

        def judge(completion, item):
            loop.call_soon_threadsafe(entered.set)
            release.wait()
            return 1.0

        verifier = Verifier(judge)
        await verifier.reset({"prompt": "?"}, 0)
        await verifier.step(Action("text", []))
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(verifier.reward())
            await entered.wait()
            waiting.cancel()
        return waiting.cancelled()

    try:
        assert asyncio.run(give_up())
        assert any(thread.name == "verifier" and thread.daemon for thread in threading.enumerate())
    finally:
        release.set()


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]
)
def test_whatever_a_plain_function_raises_is_its_own_failure(play, error):
    """Also what is no Exception comes back at once as an error, and neither ends the loop nor is waited for."""

    def judge(completion, item):
        raise error

    with pytest.raises(RuntimeError, match=r"^the call (raised|tried to end the process)"):
        play(Verifier(judge), {"prompt": "?"}, "text")


def test_an_unanswered_prompt_is_worth_nothing():
    """When no answer came (the context was full at once), the reward is 0 and no function is called."""

    async def unanswered():
        verifier = Verifier(lambda completion, item: 1 / 0)
        await verifier.reset({"prompt": "?"}, 0)
        return await verifier.reward()

    assert asyncio.run(unanswered()) == 0.0
