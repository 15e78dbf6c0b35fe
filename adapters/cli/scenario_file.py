"""Read a scenario file, and say in one line per problem what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...events.types import BY_KIND
from ..simulated.scenario import Scenario
from .config_errors import nearest, problem_lines
from .config_file import read_toml
from .failures import BadInput


def load_scenario(path: Path) -> Scenario:
    """Return the scenario in the TOML file `path`. Raises `BadInput` with one line per problem.

    Settings that the scenario expects to be refused are not complained of.
    """
    table: dict[str, Any] = {"name": path.stem, **read_toml(path)}
    try:
        # Through JSON's rules: lists stand for tuples, but "4" is no number.
        scenario = Scenario.model_validate(_with_tuples(table), strict=True)
    except ValidationError as error:
        raise BadInput([f"{path.name}: {_sentence(problem)}" for problem in error.errors()]) from None
    problems = _unknown_kinds(scenario, path.name)
    if scenario.expect.refused is None:
        problems += _refused(scenario, path.name)
    problems += [
        f'{path.name}: fault[{number}].engine = "{fault.engine}": there are engine-0 to '
        f"engine-{scenario.world.engines - 1}"
        for number, fault in enumerate(scenario.fault)
        if fault.engine is not None
        and fault.engine not in {f"engine-{n}" for n in range(scenario.world.engines)}
    ]
    if problems:
        raise BadInput(problems)
    return scenario


def _with_tuples(value: Any) -> Any:
    """Return `value` with tuples for lists, but for those inside the run's own settings."""
    if isinstance(value, dict):
        return {key: inner if key == "config" else _with_tuples(inner) for key, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _sentence(problem: Any) -> str:
    place = ""
    for part in problem["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if problem["type"] == "extra_forbidden":
        return f"{place}: unknown key"
    if problem["type"] == "missing":
        return f"{place} is missing"
    shown = "" if isinstance(problem["input"], dict) else f" = {problem['input']!r}"
    return f"{place}{shown}: {message}"


def _refused(scenario: Scenario, source: str) -> list[str]:
    try:
        scenario.run_config(evaluating=True)
    except ValidationError as error:
        return problem_lines(error, f"{source}: [config]")
    return []


def _unknown_kinds(scenario: Scenario, source: str) -> list[str]:
    problems = []
    for key in ("some", "none"):
        for kind in getattr(scenario.expect, key):
            if kind not in BY_KIND:
                meant = nearest(kind, BY_KIND)
                problems.append(
                    f'{source}: expect.{key} = "{kind}": no event has this kind'
                    + (f"; did you mean {meant}?" if meant else "")
                )
    return problems
