"""reasoning-gym tasks as environments."""

from __future__ import annotations

import asyncio

import pytest

from eventrain.adapters.data import prompt_source
from eventrain.adapters.environments.gym_answers import is_harmless
from eventrain.adapters.environments.reasoning_gym import ReasoningGymEnvironment, extracted, score
from eventrain.core.config import DataSection
from eventrain.core.ports import EnvironmentFailed, Message


@pytest.fixture
def item(tmp_path):
    """Draw one item of an easy task."""
    section = DataSection(kind="reasoning_gym", task="chain_sum", size=3, options={"max_terms": 2})
    return prompt_source(section, seed=0, base=tmp_path).item(0, 0)[1]


def test_the_right_answer_earns_the_full_reward_and_others_less(play, item):
    """The reward is the task's own score."""
    environment = ReasoningGymEnvironment()
    assert play(environment, item, f"{item['answer']}\n") == 1.0
    assert 0 < play(environment, item, f"It is {item['answer']}") < 1
    assert play(environment, item, "?") == 0.0


def test_only_what_stands_in_tags_is_scored(play, item):
    """With answer = 'tags' the text around the last tags is free, and an answer without tags earns nothing."""
    environment = ReasoningGymEnvironment(answer="tags")
    tagged = f"<answer>0</answer> no: <answer>\n{item['answer']} </answer>, I think."
    assert play(environment, item, tagged) == 1.0
    assert play(environment, item, item["answer"]) == 0.0


@pytest.mark.parametrize(
    ("how", "answer"), [("text", "so\n12"), ("last_line", "12"), ("tags", None)], ids=str
)
def test_answers_are_taken_out_of_a_text_as_configured(how, answer):
    """The three ways to find the answer in a completion."""
    assert extracted(" so\n12 \n", how) == answer


def test_the_question_carries_instruction_and_system_line(item):
    """The policy reads the system line, then the question with the instruction behind it."""
    environment = ReasoningGymEnvironment(instruction="Number only.", system="Calculate.")
    assert asyncio.run(environment.reset(item, 0)) == [
        Message("system", "Calculate."),
        Message("user", f"{item['question']}\nNumber only."),
    ]


def test_items_from_a_file_are_scored_by_the_task_they_name(item):
    """An item stored without our own mark is still known by the library's metadata."""
    stored = {key: value for key, value in item.items() if key != "gym"}
    assert score(item["answer"], stored) == 1.0
    with pytest.raises(EnvironmentFailed, match="does not say which reasoning-gym task"):
        score("1", {"question": "?", "answer": "1"})


def test_a_task_is_scored_with_the_options_that_made_the_item(tmp_path):
    """A score that depends on the task's options uses the item's, not the defaults."""
    section = DataSection(kind="reasoning_gym", task="puzzle24", size=1, options={"max_value": 8})
    made = prompt_source(section, seed=0, base=tmp_path).item(0, 0)[1]
    with_a_nine = "9 + 9 + 5 + 1"
    assert score(with_a_nine, {**made, "gym": {"task": "puzzle24", "options": {}}}) == 1.0
    assert score(with_a_nine, made) < 1.0


PROGRAMS = [
    "__import__('os').abort()",
    "exit()",
    "exec(chr(101)+chr(120))",
    "[exit][0]()",
    "(lambda: exit())()",
    "[exit() for x in [1]]",
    "[0] * 10**10",
    "9**9**9**9",
    "9**(9**9)",
    "((9**64)**64)**64",
    "2**(99*99*99*9999)",
    "\uff45xit()",
    "x.__class__",
    "f'{exit()}'",
    "x" * 3000,
]
ONLY_FOR_SYMPY = ["99999999999!", "1e999999999"]
"""Nothing where a list is expected: the first does not parse, the second is infinity."""

CASES = [
    *((task, program) for task in ("spiral_matrix", "n_queens") for program in PROGRAMS),
    *(
        (task, program)
        for task in ("countdown", "simple_integration")
        for program in PROGRAMS + ONLY_FOR_SYMPY
    ),
]


@pytest.mark.parametrize(("task", "program"), CASES, ids=lambda text: text[:24])
def test_no_answer_is_run_as_a_program(task, program):
    """What would be executed, or would hold the interpreter, never reaches a scorer that evaluates answers."""
    assert not is_harmless(program, task)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("spiral_matrix", "1 2 3 4"),
        ("spiral_matrix", "[1, 2, -3]"),
        ("n_queens", "_ Q _\n_ _ Q"),
        ("string_insertion", "['A', 'B']"),
        ("string_insertion", "ABCDE"),
        ("countdown", "(40 - 3*2) / 2 + 7"),
        ("polynomial_multiplication", "4*x**3 - 2*x**2 + x*y - 12"),
        ("simple_integration", "3*x**2/2 + 10*x**(1/2) + C"),
        ("intermediate_integration", "-x*cos(x) + sin(x)**2 + log(x) + exp(-2*x) + C"),
        ("basic_arithmetic", "exit() and anything else: this scorer only compares"),
    ],
)
def test_what_a_task_asks_for_is_let_through(task, answer):
    """The guard does not take reward from answers of the kind that is asked for."""
    assert is_harmless(answer, task)


@pytest.mark.slow
def test_the_right_answers_of_guarded_tasks_still_earn_full_marks(tmp_path, monkeypatch):
    """For every guarded task, the answer that the task itself gives passes the guard and scores 1."""
    from eventrain.adapters.environments.gym_answers import FORMULA_TASKS, LIST_TASKS

    monkeypatch.setenv("PYTHONHASHSEED", "0")
    for task in sorted(FORMULA_TASKS | LIST_TASKS):
        source = prompt_source(DataSection(kind="reasoning_gym", task=task, size=8), seed=1, base=tmp_path)
        for position in range(8):
            _, made = source.item(0, position)
            answer = made["metadata"]["expression"] if task == "countdown" else made["answer"]
            if "Integral(" in answer:
                continue  # the library could not solve its own question
            assert is_harmless(answer, task), f"{task}: {answer}"
            assert score(answer, made) == 1.0, f"{task}: {answer}"
