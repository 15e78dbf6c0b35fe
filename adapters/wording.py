"""Small parts of error messages that several adapters share."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from types import ModuleType


class MissingExtra(ImportError):
    """A library of an optional part is not installed; the message says what to install."""


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, which belongs to the optional part `extra`.

    Raises `MissingExtra` with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise missing(error.name, extra) from error


def missing(library: str, extra: str) -> MissingExtra:
    """Return the error that says how to install `library`, which belongs to the optional part `extra`."""
    return MissingExtra(f"{library} is not installed: pip install 'eventrain[{extra}]'")


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest of `allowed`, or ``""`` when none is near."""
    near = get_close_matches(word, list(allowed), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
