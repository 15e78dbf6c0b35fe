"""`--debug`, which every command takes: tracebacks are printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def debug_option(function: F) -> F:
    """Add ``--debug`` to a command; what it sets is read with `debugging`."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_remember,
        help="Print the traceback when something fails, and log in detail.",
    )(function)


def debugging() -> bool:
    """Return whether the command that runs now was given ``--debug``."""
    context = click.get_current_context(silent=True)
    return bool(context is not None and context.meta.get("eventrain.debug"))


def _remember(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.meta["eventrain.debug"] = True
