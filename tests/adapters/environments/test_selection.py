"""From the configuration to an environment factory."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap

import pytest

from eventrain.adapters.environments import environment_factory
from eventrain.core.config import EnvironmentSection, RolloutSection
from eventrain.core.ports import EnvironmentFailed

OWN = """
from eventrain.core.ports import Message, StepOutcome
{extra}

class Echo:
    def __init__(self, word: str, times: int = 1, max_turns: int = 9, weights: tuple[float, ...] = ()):
        if times < 1:
            raise ValueError("times must be at least 1")
        self.word, self.times, self.max_turns, self.weights = word, times, max_turns, weights

    async def reset(self, item, seed):
        return [Message("user", f"{{self.word}} {{self.times}} {{self.max_turns}} {{self.weights}}")]

    async def step(self, action):
        return StepOutcome(done=True)

    async def reward(self):
        import sibling_{name}
        return sibling_{name}.REWARD

def judge(completion, item):
    return 0.25

class Silent:
    async def reset(self, item, seed): ...
    def step(self, action): ...
    async def reward(self): ...
"""


@pytest.fixture
def own(tmp_path):
    """Write a module with environments into the configuration's folder; return its name, used by this test alone."""
    name = "world_" + re.sub(r"\W", "_", tmp_path.name)
    (tmp_path / f"{name}.py").write_text(OWN.format(name=name, extra=""))
    (tmp_path / f"sibling_{name}.py").write_text("REWARD = 0.75")
    return name


def factory(base, kind, **options):
    return environment_factory(
        EnvironmentSection(kind=kind, options=options), RolloutSection(max_turns=4), base
    )


def test_an_own_class_beside_the_configuration_is_found(own, tmp_path, play):
    """A class in the configuration's folder works, with imports of its siblings even inside its methods."""
    make = factory(tmp_path, f"{own}:Echo", word="hey", weights=[1, 2])
    assert play(make(), {}, "answer") == 0.75
    assert asyncio.run(make().reset({}, 0))[0].content == "hey 1 4 (1.0, 2.0)"


def test_each_trajectory_gets_a_fresh_object(own, tmp_path):
    """The factory never hands out the same environment twice."""
    make = factory(tmp_path, f"{own}:Echo", word="hey")
    assert make() is not make()


def test_options_may_set_max_turns_themselves(own, tmp_path):
    """rollout.max_turns is the default of a constructor's max_turns, and an option overrides it."""
    make = factory(tmp_path, f"{own}:Echo", word="hey", max_turns=2)
    assert asyncio.run(make().reset({}, 0))[0].content == "hey 1 2 ()"


def test_the_configurations_folder_cannot_hide_a_library(own, tmp_path):
    """After the import, the folder stands last on the path."""
    factory(tmp_path, f"{own}:Echo", word="hey")
    assert sys.path[-1] == str(tmp_path.resolve())
    sys.path.remove(str(tmp_path.resolve()))


def test_a_verifier_function_beside_the_configuration_is_found(own, tmp_path, play):
    """The verifier takes a function from the configuration's folder."""
    make = factory(tmp_path, "verifier", function=f"{own}:judge")
    assert play(make(), {"prompt": "?"}, "answer") == 0.25


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            "verifer",
            {},
            "environment.kind is 'verifer', expected 'number_hunt', 'verifier', 'reasoning_gym' or",
        ),
        ("verifer", {}, "; did you mean 'verifier'?"),
        ("nowhere:Echo", {}, "environment.kind is 'nowhere:Echo', but there is no module 'nowhere'"),
        ("OWN:", {}, "expected 'package.module:Name'"),
        ("OWN:Ecko", {}, "has no 'Ecko'; did you mean 'Echo'?"),
        ("OWN:judge", {}, "which is no class but function"),
        ("OWN:Silent", {}, "which has no method 'async def step'"),
        ("OWN:Echo", {}, "environment.options.word is missing"),
        (
            "OWN:Echo",
            {"word": "x", "tines": 2},
            "has no such option; did you mean 'times'? (allowed: max_turns, times",
        ),
        (
            "OWN:Echo",
            {"word": "x", "times": "many"},
            "environment.options.times is 'many': input should be a valid",
        ),
        ("OWN:Echo", {"word": "x", "times": 0}, "refuses them: times must be at least 1"),
        ("verifier", {}, "environment.options.function is missing"),
        (
            "verifier",
            {"function": "nmber"},
            "environment.options.function is 'nmber', expected 'exact', 'contains'",
        ),
        ("verifier", {"function": "OWN:jugde"}, "has no 'jugde'; did you mean 'judge'?"),
        (
            "reasoning_gym",
            {"answer": "tag"},
            "environment.options.answer is 'tag': input should be 'text', 'tags'",
        ),
    ],
)
def test_a_wrong_environment_is_said_in_one_line(kind, options, message, own, tmp_path):
    """The setting, its value and what would be right are named before anything starts."""
    options = {
        key: value.replace("OWN", own) if isinstance(value, str) else value for key, value in options.items()
    }
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        factory(tmp_path, kind.replace("OWN", own), **options)
    assert "\n" not in str(caught.value)


def test_a_module_that_cannot_be_imported_says_why(tmp_path):
    """An error inside the user's module is shown as such, not as a missing module."""
    (tmp_path / "world_broken.py").write_text("raise RuntimeError('no license key')")
    with pytest.raises(ValueError, match="importing it raised RuntimeError: no license key"):
        factory(tmp_path, "world_broken:Echo")


def test_a_module_with_a_taken_name_is_refused(tmp_path):
    """A file named like a module that is already loaded would be ignored in silence: that is an error."""
    (tmp_path / "textwrap.py").write_text("class World: ...")
    assert textwrap.dedent("x") == "x"
    with pytest.raises(ValueError, match="the name textwrap is already taken"):
        factory(tmp_path, "textwrap:World")


RAISING = """
import math
from eventrain.core.ports import Message, StepOutcome

class World:
    def __init__(self, wrong: str):
        self.wrong = wrong

    async def reset(self, item, seed):
        if self.wrong == "reset raises":
            return item["missing"]
        return {"no messages": [], "text": "hello"}.get(self.wrong, [Message("user", "?")])

    async def step(self, action):
        if self.wrong == "step raises":
            raise TimeoutError("upstream\\nis slow")
        if self.wrong == "step exits":
            raise SystemExit(3)
        if self.wrong == "step interrupts":
            raise KeyboardInterrupt
        if self.wrong == "step panics":
            raise BaseException("a panic in a library of Rust")
        return None if self.wrong == "no outcome" else StepOutcome(done=True)

    async def reward(self):
        return {"not finite": math.nan, "no number": "high"}.get(self.wrong, 1)
"""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("reset raises", "World.reset raised KeyError: 'missing'"),
        ("no messages", "World.reset returned no message"),
        ("text", "World.reset returned 'hello', expected a list of Message"),
        ("step raises", "World.step raised TimeoutError: upstream is slow"),
        ("step exits", "World.step raised SystemExit: 3"),
        ("step interrupts", "World.step raised KeyboardInterrupt: without a message"),
        ("step panics", "World.step raised BaseException: a panic in a library of Rust"),
        ("no outcome", "World.step returned NoneType, expected StepOutcome"),
        ("not finite", "World.reward returned nan, expected a finite number"),
        ("no number", "World.reward returned 'high', expected a finite number"),
    ],
)
def test_whatever_an_environment_does_wrong_is_one_typed_failure(wrong, message, tmp_path, play):
    """Exceptions and impossible answers of a user's class become EnvironmentFailed with their words in one line."""
    (tmp_path / "world_raising.py").write_text(RAISING)
    sys.modules.pop("world_raising", None)
    make = factory(tmp_path, "world_raising:World", wrong=wrong)
    with pytest.raises(EnvironmentFailed, match=re.escape(message)) as caught:
        play(make(), {}, "answer")
    assert "\n" not in str(caught.value)


def test_cancelling_passes_through_untouched(tmp_path):
    """A cancelled environment is cancelled, not failed."""
    (tmp_path / "world_waiting.py").write_text(
        "import asyncio\n"
        "class World:\n"
        "    async def reset(self, item, seed): await asyncio.Event().wait()\n"
        "    async def step(self, action): ...\n"
        "    async def reward(self): ...\n"
    )
    make = factory(tmp_path, "world_waiting:World")

    async def expire():
        async with asyncio.timeout(0):
            await make().reset({}, 0)

    with pytest.raises(TimeoutError):
        asyncio.run(expire())


def test_the_base_install_loads_no_optional_library():
    """Importing environments, data and renderer needs none of the extras."""
    script = (
        "import sys, eventrain.adapters.environments, eventrain.adapters.data, eventrain.adapters.renderer\n"
        "import eventrain.adapters.environments.reasoning_gym\n"
        "print(sorted({'torch', 'transformers', 'pyarrow', 'reasoning_gym', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_missing_library_names_its_extra(tmp_path, monkeypatch):
    """Without reasoning-gym the error is the command that installs it."""
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(
        ImportError, match=r"^reasoning_gym is not installed: pip install 'eventrain\[data\]'$"
    ):
        factory(tmp_path, "reasoning_gym")
