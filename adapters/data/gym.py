"""Tasks of the reasoning-gym library: items are made from a seed and an index, and score answers themselves.

Three things about the library (0.1.25) that this module and `environments/gym_answers.py` take care of:

- a few tasks walk over Python sets, so their items change with the hash seed of the process;
- one prints while it makes an item, one sets the random state of numpy;
- the scorers of a few tasks run the answer as Python code.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, get_type_hints

import msgspec
from pydantic import TypeAdapter, ValidationError

from ..wording import did_you_mean, require
from .errors import DataError

HASH_SEEDED_TASKS = frozenset(
    {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
)
"""Tasks whose items depend on PYTHONHASHSEED."""

_PRINTING_TASKS = frozenset({"bf"})
_NUMPY_SEEDING_TASKS = frozenset({"pool_matrix"})
_stdout_swap = threading.Lock()

_NOT_OFFERED = frozenset({"composite"})
"""'composite' is configured with objects, which no TOML file can hold."""

_SET_ELSEWHERE = {"seed": "run.seed", "size": "data.size"}


class GymRows:
    """The items of one task: ``question``, ``answer`` and ``metadata`` as the library makes them.

    Each item also carries ``gym``, the task and its options, so that an environment can score answers with the
    very dataset that asked. Raises `DataError` for an unknown task or option, and `MissingExtra` without the
    library.
    """

    def __init__(self, task: str, size: int, seed: int, options: Mapping[str, Any]) -> None:
        require_fixed_hashes(task)
        self._dataset = make_dataset(task, options, size=size, seed=seed)
        self._gym: dict[str, Any] = {"task": task, "options": dict(options)}
        self._size = size

    def __len__(self) -> int:
        """Return the number of items."""
        return self._size

    def row(self, index: int) -> Mapping[str, Any]:
        """Make the item at `index`: mostly under a millisecond."""
        with undisturbed(self._gym["task"]):
            return {**self._dataset[index], "gym": self._gym}


def make_dataset(task: str, options: Mapping[str, Any], *, size: int, seed: int) -> Any:
    """Return the library's dataset. Raises `DataError` that names the task or the option at fault."""
    factory = require("reasoning_gym.factory", "data")
    require("reasoning_gym", "data")
    names = set(factory.DATASETS) - _NOT_OFFERED
    if task not in names:
        raise DataError(
            f"data.task is '{task}', but reasoning-gym has no such task{did_you_mean(task, names)} "
            f"({len(names)} are known: {', '.join(sorted(names)[:3])}, ...)"
        )
    config_class = factory.DATASETS[task][1]
    _check_options(task, options, config_class)
    try:
        with undisturbed(task):
            return factory.create_dataset(task, size=size, seed=seed, **options)
    except (AssertionError, ValueError, TypeError) as error:
        raise DataError(f"data.options of '{task}': {error or type(error).__name__}") from error


@lru_cache(maxsize=64)
def scorer(task: str, options_json: bytes) -> Any:
    """Return a dataset to score answers of `task` with; the same one for the same options.

    `options_json` is what `options_key` made of the options.
    """
    return make_dataset(task, msgspec.json.decode(options_json), size=1, seed=0)


def options_key(options: Mapping[str, Any]) -> bytes:
    """Return options as bytes that are equal when the options are."""
    return msgspec.json.encode(dict(options), order="deterministic")


def require_fixed_hashes(task: str) -> None:
    """Raise `DataError` when the items of `task` would differ from process to process."""
    if task in HASH_SEEDED_TASKS and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise DataError(
            f"data.task '{task}' makes other items in every process unless PYTHONHASHSEED is set: "
            "start with PYTHONHASHSEED=0"
        )


@contextlib.contextmanager
def undisturbed(task: str) -> Iterator[None]:
    """Keep what `task` prints, and does to numpy's global random state, from the rest of the process."""
    if task in _PRINTING_TASKS:
        # One at a time: two threads that swap the process's stdout could each restore the other's.
        with _stdout_swap, contextlib.redirect_stdout(io.StringIO()):
            yield
    elif task in _NUMPY_SEEDING_TASKS:
        random = require("numpy", "data").random
        state = random.get_state()
        try:
            yield
        finally:
            random.set_state(state)
    else:
        yield


def _check_options(task: str, options: Mapping[str, Any], config_class: type) -> None:
    assert is_dataclass(config_class)
    allowed = {field.name for field in fields(config_class)} - set(_SET_ELSEWHERE)
    hints = get_type_hints(config_class)
    for name, value in options.items():
        if name in _SET_ELSEWHERE:
            raise DataError(f"data.options.{name}: set {_SET_ELSEWHERE[name]} instead")
        if name not in allowed:
            raise DataError(
                f"data.options.{name}: '{task}' has no such option{did_you_mean(name, allowed)} "
                f"(allowed: {', '.join(sorted(allowed))})"
            )
        try:
            TypeAdapter(hints[name]).validate_python(value)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            raise DataError(f"data.options.{name} is {value!r}: {problem['msg'].lower()}") from error
