"""The demo's model and settings: a whole game is a dozen tokens, and the task can be learned."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoConfig

from eventrain.adapters import demo
from eventrain.adapters.cli.config_file import load_config
from eventrain.adapters.demo.model import build_model_folder
from eventrain.adapters.environments import environment_factory
from eventrain.adapters.environments.number_hunt import optimal_score, random_score
from eventrain.adapters.renderer import HuggingFaceRenderer
from eventrain.core.config import RunConfig
from eventrain.core.ports import Message

FOLDER = Path(demo.__file__).parent
NUMBERS = [str(number) for number in range(1, 13)]


@pytest.fixture(scope="module", name="model")
def _model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo's model folder."""
    folder = tmp_path_factory.mktemp("demo") / "model"
    build_model_folder(folder)
    return folder


@pytest.fixture(scope="module", name="renderer")
def _renderer(model: Path) -> HuggingFaceRenderer:
    """Return the ordinary renderer of that folder."""
    return HuggingFaceRenderer(model)


@pytest.fixture(scope="module", name="config")
def _config() -> RunConfig:
    """Return the settings that ship with the demo."""
    return load_config(FOLDER / "demo.toml", check_paths=False)


def test_a_game_costs_one_token_a_word(renderer: HuggingFaceRenderer) -> None:
    """The opening has four tokens, every answer and every guess one, none of them unknown."""
    opening = renderer.opening([Message("user", "guess 1 to 12")])
    replies = [
        renderer.reply([Message("user", word)], after_stop=False)
        for word in ("higher", "lower", "found", "invalid")
    ]
    assert len(opening) == 4
    assert [len(reply) for reply in replies] == [1, 1, 1, 1]
    assert 0 not in [*opening, *(reply[0] for reply in replies)]


def test_every_number_is_one_token_and_reads_as_itself(renderer: HuggingFaceRenderer) -> None:
    """A sampled token of a number becomes that number's text, which is the guess."""
    ids = [renderer.opening([Message("user", number)]) for number in NUMBERS]
    assert [len(number) for number in ids] == [1] * 12
    assert [renderer.text(number) for number in ids] == NUMBERS


def test_the_settings_are_a_valid_run_of_the_game(config: RunConfig) -> None:
    """The shipped file loads, its environment can be made, and every guess fits turns and context."""
    environment_factory(config.environment, config.rollout, FOLDER)
    options = config.environment.options
    assert config.rollout.max_turns == options["guesses"]
    assert 4 + 2 * options["guesses"] < config.rollout.context_tokens
    assert config.scheduler.max_staleness == 1


def test_the_way_from_random_to_optimal_is_long(config: RunConfig, model: Path) -> None:
    """Random answers score below half of the optimum, which is a perfect score."""
    options = config.environment.options
    assert optimal_score(**options) == 1.0
    vocabulary = AutoConfig.from_pretrained(model).vocab_size
    assert random_score(**options, others=vocabulary - options["n"]) < 0.4
