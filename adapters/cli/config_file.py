"""Read a configuration file, with `--set` on top, into a `RunConfig`.

Everything that is wrong with it is found here, before anything starts, and said in one line per problem
(`config_errors`).
"""

from __future__ import annotations

import copy
import datetime
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...core.config import RunConfig
from .config_errors import problem_lines
from .failures import BadInput


def load_config(path: Path, overrides: Sequence[str] = (), *, check_paths: bool = True) -> RunConfig:
    """Return the configuration in the TOML file `path`, changed by `overrides` (``"learner.lr=3e-4"``).

    Relative `model.path` and `data.path` start at the file's folder and come back absolute, so that the run's log
    says which files were read. Raises `BadInput` with one line per problem; with `check_paths`, a path that leads
    nowhere is one.
    """
    table = read_toml(path)
    changes = [parse_override(text) for text in overrides]
    for keys, value in changes:
        put(table, keys, value)
    config = validate(table, path.name, overridden=[".".join(keys) for keys, _ in changes])
    config = _with_absolute_paths(config, path)
    problems = _paths_that_lead_nowhere(config, path.name) if check_paths else []
    if problems:
        raise BadInput(problems)
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of the TOML file `path`. Raises `BadInput` when it cannot be read or is not TOML."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise BadInput([f"{path}: no such file"]) from None
    except IsADirectoryError:
        raise BadInput([f"{path}: is a folder; a configuration is a TOML file"]) from None
    except UnicodeDecodeError as error:
        raise BadInput([f"{path}: is not UTF-8 text (byte {error.start})"]) from None
    except OSError as error:
        raise BadInput([f"{path}: cannot be read: {error.strerror}"]) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, line = _toml_problem(str(error), text)
        raise BadInput([f"{path.name}, line {line}: not valid TOML: {message}"]) from None


def parse_override(text: str) -> tuple[list[str], Any]:
    """Split ``"a.b=value"`` into its keys and the value, read as TOML or, failing that, as a bare string.

    Raises `BadInput` when there is no ``=`` or the key is not ``section.key``.
    """
    key, equals, raw = text.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not equals or not all(keys):
        raise BadInput([f"--set {text}: must be section.key=value, for example --set learner.lr=3e-4"])
    return keys, _parse_value(raw.strip())


def validate(table: Mapping[str, Any], source: str, overridden: Iterable[str] = ()) -> RunConfig:
    """Return `table` as a `RunConfig`.

    Raises `BadInput` with one line per problem, which begins with `source`, or with ``--set`` where the key was
    among the `overridden`. Types are strict: ``steps = "10"`` is a mistake to be told of, not to be guessed at.
    """
    filled = {name: {} for name, field in RunConfig.model_fields.items() if field.is_required()} | dict(table)
    try:
        return RunConfig.model_validate(filled, strict=True)
    except ValidationError as error:
        raise BadInput(problem_lines(error, source, set(overridden))) from None


def _parse_value(raw: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    value = parsed["value"]
    # A run named 2026-01-31 is a name: no setting is a date. More than one key means a line break inside `raw`.
    if len(parsed) > 1 or isinstance(value, datetime.date | datetime.time):
        return raw
    return value


def put(table: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set the key at the end of `keys` to `value`. Raises `BadInput` when what is on the way is no table."""
    place = table
    for depth, key in enumerate(keys[:-1], start=1):
        inner = place.setdefault(key, {})
        if not isinstance(inner, dict):
            name = ".".join(keys[:depth])
            raise BadInput([f"--set {'.'.join(keys)}: {name} is {inner!r}, which has no keys"])
        place = inner
    place[keys[-1]] = copy.deepcopy(value)


def _toml_problem(message: str, text: str) -> tuple[str, int]:
    """Return what tomllib says without its position, and the line."""
    found = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if found:
        return f"{message[: found.start()]} (column {found[2]})", int(found[1])
    return message.removesuffix(" (at end of document)"), text.count("\n") + 1


def _with_absolute_paths(config: RunConfig, path: Path) -> RunConfig:
    base = path.resolve().parent

    def absolute(name: str) -> str:
        return str(base / Path(name).expanduser())

    changes: dict[str, Any] = {"model": config.model.model_copy(update={"path": absolute(config.model.path)})}
    if config.data.path is not None:
        changes["data"] = config.data.model_copy(update={"path": absolute(config.data.path)})
    return config.model_copy(update=changes)


def _paths_that_lead_nowhere(config: RunConfig, source: str) -> list[str]:
    problems = []
    if not Path(config.model.path).is_dir():
        problems.append(f'{source}: model.path = "{config.model.path}": no such folder')
    if config.data.path is not None and not Path(config.data.path).is_file():
        problems.append(f'{source}: data.path = "{config.data.path}": no such file')
    return problems
