"""Which environment a configuration names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ...core.config import EnvironmentSection, RolloutSection
from ...core.ports import Environment, EnvironmentFactory
from ..wording import did_you_mean, require
from .loading import check_options, load_object, require_methods, takes
from .typed_failures import TypedFailures
from .verifier import BUILTIN_FUNCTIONS, Verifier

_BUILTIN = {
    "number_hunt": "eventrain.adapters.environments.number_hunt:NumberHunt",
    "verifier": "eventrain.adapters.environments.verifier:Verifier",
    "reasoning_gym": "eventrain.adapters.environments.reasoning_gym:ReasoningGymEnvironment",
}
_METHODS = ("reset", "step", "reward")


def environment_factory(
    section: EnvironmentSection, rollout: RolloutSection, base: Path
) -> EnvironmentFactory:
    """Return what makes environments, after checking class and options by making one.

    `base` is the configuration file's folder, where modules of the user are looked for first. A constructor that
    has a parameter ``max_turns`` gets ``rollout.max_turns`` unless the options set it. Whatever the environments
    raise reaches the caller as `EnvironmentFailed`.

    Raises ValueError with one line that names the setting at fault, and `MissingExtra` without a needed library.
    """
    cls = _environment_class(section.kind, base)
    options = dict(section.options)
    if takes(cls, "max_turns"):
        options.setdefault("max_turns", rollout.max_turns)
    checked = check_options(cls, options, "environment.options", f"'{section.kind}'")
    if cls is Verifier and checked["function"] not in BUILTIN_FUNCTIONS:
        checked["function"] = _verifier_function(checked["function"], base)
    make: Callable[[], Environment] = partial(cls, **checked)
    try:
        make()
    except Exception as error:
        # The constructor may be the user's; a refusal of its options ends the run before anything starts.
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"environment.options: '{section.kind}' refuses them: {kind}{error}") from error
    return lambda: TypedFailures(make())


def _environment_class(kind: str, base: Path) -> Any:
    if kind == "reasoning_gym":
        require("reasoning_gym", "data")
    if kind in _BUILTIN:
        module, _, name = _BUILTIN[kind].partition(":")
        return getattr(import_module(module), name)
    if ":" not in kind:
        allowed = ", ".join(f"'{name}'" for name in _BUILTIN)
        raise ValueError(
            f"environment.kind is '{kind}', expected {allowed} or your own class as 'package.module:Class'"
            f"{did_you_mean(kind, _BUILTIN)}"
        )
    cls = load_object(kind, base, "environment.kind")
    require_methods(cls, _METHODS, kind)
    return cls


def _verifier_function(reference: Any, base: Path) -> Any:
    key = "environment.options.function"
    if isinstance(reference, str) and ":" not in reference:
        names = ", ".join(f"'{name}'" for name in BUILTIN_FUNCTIONS)
        raise ValueError(
            f"{key} is '{reference}', expected {names} or 'package.module:function'"
            f"{did_you_mean(reference, BUILTIN_FUNCTIONS)}"
        )
    function = load_object(reference, base, key)
    if not callable(function):
        raise ValueError(f"{key} is '{reference}', which cannot be called")  # noqa: TRY004  # a setting's value
    return function
