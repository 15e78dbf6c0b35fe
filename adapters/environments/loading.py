"""Find the class or function that a configuration names, and check the options meant for it."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ..wording import MissingExtra, did_you_mean


def load_object(reference: str, base: Path | None, key: str) -> Any:
    """Return what ``package.module:Name`` names; `key` is the setting that an error blames.

    A module that lies in `base`, the folder of the configuration file, comes first there, so that a file beside
    the configuration is found whatever else is installed. Raises ValueError with one line.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ValueError(f"{key} is '{reference}', expected 'package.module:Name'")
    try:
        module = _import(module_name, base)
    except MissingExtra:
        raise
    except Exception as error:
        # The module is the user's: whatever it raises while it is imported is what is wrong with this setting.
        raise ValueError(
            f"{key} is '{reference}', but {_why_not_imported(module_name, base, error)}"
        ) from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, [public for public in vars(found) if not public.startswith("_")])
            raise ValueError(f"{key} is '{reference}', but {module_name} has no '{name}'{hint}")
        found = getattr(found, part)
    return found


def _import(module_name: str, base: Path | None) -> Any:
    top = module_name.partition(".")[0]
    folder = None if base is None else base.resolve()
    if folder is None or not ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
        return importlib.import_module(module_name)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    finally:
        # Last from now on: imports inside functions still find their siblings, and nothing there can hide a
        # library from the rest of the process.
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    origin = getattr(module, "__file__", None)
    if origin is None or not Path(origin).resolve().is_relative_to(folder):
        raise ImportError(
            f"the name {module_name} is already taken by {origin}: give your module another name"
        )
    return module


def _why_not_imported(module_name: str, base: Path | None, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and module_name.startswith(error.name):
        beside = "" if base is None else f", neither in {base} nor among the installed ones"
        return f"there is no module '{error.name}'{beside}"
    return f"importing it raised {type(error).__name__}: {error}"


def check_options(
    callee: Callable[..., Any], options: Mapping[str, Any], key: str, what: str
) -> dict[str, Any]:
    """Return `options` for `callee`, converted to its annotations (a TOML array to a tuple, and so on).

    Unknown, missing and ill-typed options raise ValueError with one line that names ``{key}.{option}``.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(callee).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(callee).parameters.values())
    for name in options:
        if name not in parameters and not takes_any:
            allowed = f"allowed: {', '.join(sorted(parameters))}" if parameters else "it takes none"
            raise ValueError(
                f"{key}.{name}: {what} has no such option{did_you_mean(name, parameters)} ({allowed})"
            )
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in options:
            raise ValueError(f"{key}.{name} is missing: {what} needs it")
    hints = _hints(callee)
    return {name: _converted(value, hints.get(name, Any), f"{key}.{name}") for name, value in options.items()}


def takes(callee: Callable[..., Any], name: str) -> bool:
    """Say whether `callee` has a parameter `name` of its own."""
    return name in inspect.signature(callee).parameters


def require_methods(cls: Any, methods: Iterable[str], reference: str) -> None:
    """Raise ValueError unless `cls` is a class with all of these async methods."""
    if not inspect.isclass(cls):
        raise ValueError(f"environment.kind is '{reference}', which is no class but {type(cls).__name__}")
    for method in methods:
        found = getattr(cls, method, None)
        if not inspect.iscoroutinefunction(inspect.unwrap(found) if callable(found) else found):
            raise ValueError(f"environment.kind is '{reference}', which has no method 'async def {method}'")


def _hints(callee: Callable[..., Any]) -> dict[str, Any]:
    target = callee.__init__ if inspect.isclass(callee) else callee
    try:
        return get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        # Annotations of a user's class that only a type checker can resolve: its options go unconverted.
        return {}


def _converted(value: Any, hint: Any, place: str) -> Any:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
    except PydanticUserError:
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ValueError(f"{place} is {value!r}: {problem['msg'].lower()}") from error
