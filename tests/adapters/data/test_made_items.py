"""Items that are made, not read: numbers and reasoning-gym tasks."""

from __future__ import annotations

import inspect
import random
import re
import subprocess
import sys

import pytest

from eventrain.adapters.data import DataError, eval_prompt_source, prompt_source
from eventrain.adapters.data.gym import HASH_SEEDED_TASKS
from eventrain.adapters.environments.gym_answers import FORMULA_TASKS, LIST_TASKS
from eventrain.core.config import DataSection, EvalSection


def gym(**settings):
    return DataSection(**{"kind": "reasoning_gym", "task": "basic_arithmetic", "size": 20, **settings})


def test_numbers_are_distinct_and_evaluation_gets_others(tmp_path):
    """Generated items count from 0; evaluation goes on where training ends."""
    section = DataSection(kind="generated", size=5)
    train = prompt_source(section, seed=0, base=tmp_path)
    held_out = eval_prompt_source(section, EvalSection(prompts=3), seed=0, base=tmp_path)
    assert {train.item(0, p)[1]["number"] for p in range(len(train))} == {0, 1, 2, 3, 4}
    assert [held_out.item(0, p)[1]["number"] for p in range(len(held_out))] == [5, 6, 7]


def test_a_task_gives_the_same_items_whenever_it_is_asked(tmp_path):
    """Two sources of the same seed agree item by item, in any order of asking; another seed gives others."""
    one, two = (prompt_source(gym(), seed=4, base=tmp_path) for _ in range(2))
    forward = [one.item(0, position) for position in range(20)]
    assert list(reversed(forward)) == [two.item(0, position) for position in reversed(range(20))]
    other = prompt_source(gym(), seed=5, base=tmp_path)
    assert [item["question"] for _, item in forward] != [other.item(0, p)[1]["question"] for p in range(20)]


def test_evaluation_asks_other_questions(tmp_path):
    """A task's evaluation items come from another seed than training's."""
    train = prompt_source(gym(), seed=0, base=tmp_path)
    held_out = eval_prompt_source(gym(), EvalSection(prompts=20), seed=0, base=tmp_path)
    seen = {train.item(0, p)[1]["question"] for p in range(20)}
    assert len(seen & {held_out.item(0, p)[1]["question"] for p in range(20)}) <= 2


def test_options_reach_the_task(tmp_path):
    """What data.options say shapes the questions."""
    section = gym(options={"max_terms": 2, "operators": ["+"], "max_digits": 1, "allow_parentheses": False})
    source = prompt_source(section, seed=0, base=tmp_path)
    for position in range(20):
        assert re.fullmatch(r"Calculate \d+ \+ \d+\.", source.item(0, position)[1]["question"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "basic_aritmetic"}, "has no such task; did you mean 'basic_arithmetic'?"),
        ({"task": "composite"}, "data.task is 'composite', but reasoning-gym has no such task"),
        (
            {"options": {"max_term": 2}},
            "data.options.max_term: 'basic_arithmetic' has no such option; did you mean",
        ),
        (
            {"options": {"max_terms": "many"}},
            "data.options.max_terms is 'many': input should be a valid integer",
        ),
        ({"options": {"max_terms": 1}}, "data.options of 'basic_arithmetic': max_terms must be >= min_terms"),
        ({"options": {"seed": 1}}, "data.options.seed: set run.seed instead"),
    ],
)
def test_a_wrong_task_or_option_is_named(settings, message, tmp_path):
    """The key, the value and what would be right stand in one line, before anything starts."""
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        prompt_source(gym(**settings), seed=0, base=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_task_that_changes_with_the_process_is_refused(tmp_path, monkeypatch):
    """Without a fixed hash seed such a task would resume with other items: it does not start."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(DataError, match="start with PYTHONHASHSEED=0"):
        prompt_source(gym(task="word_ladder"), seed=0, base=tmp_path)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert len(prompt_source(gym(task="word_ladder"), seed=0, base=tmp_path)) == 20


@pytest.mark.parametrize("task", ["bf", "pool_matrix", "basic_arithmetic"])
def test_making_items_leaves_the_process_as_it_was(task, tmp_path, capsys):
    """No item prints, or moves a random state that others draw from."""
    import numpy as np

    before = random.getstate(), np.random.get_state()[1].tolist()
    prompt_source(gym(task=task), seed=0, base=tmp_path).item(0, 0)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert capsys.readouterr() == ("", "")


def test_every_scorer_that_runs_answers_as_code_is_known():
    """A release of the library with another such scorer fails here, before a policy finds it."""
    from reasoning_gym.factory import DATASETS

    runs_answers = re.compile(r"(?:eval|exec|parse_expr|sympify)\(\s*(?:\w*answer\w*|\w*response\w*)")
    found = {
        name
        for name, (cls, _) in DATASETS.items()
        if name != "composite" and runs_answers.search(inspect.getsource(sys.modules[cls.__module__]))
    }
    # propositional_logic has a parse_expr of its own, which runs nothing.
    assert found - {"propositional_logic"} - LIST_TASKS == FORMULA_TASKS
    assert found >= LIST_TASKS


ITEMS_OF_ALL_TASKS = """
import hashlib, json
from reasoning_gym.factory import DATASETS, create_dataset
for name in sorted(DATASETS):
    if name != "composite":
        dataset = create_dataset(name, size=4, seed=3)
        text = json.dumps([(dataset[i]["question"], dataset[i]["answer"]) for i in range(4)], default=str)
        print("\\n=", name, hashlib.sha256(text.encode()).hexdigest())
"""


@pytest.mark.slow
def test_only_the_named_tasks_change_with_the_process():
    """Of all tasks, those that give other items under another hash seed are exactly the ones that are refused."""
    answers = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", ITEMS_OF_ALL_TASKS],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=110,
        )
        answers.append(dict(re.findall(r"^= (\w+) (\w+)$", done.stdout, re.MULTILINE)))
    assert len(answers[0]) > 100
    assert {name for name in answers[0] if answers[0][name] != answers[1][name]} == HASH_SEEDED_TASKS
