"""Exceptions made anew from what a log says of them."""

from __future__ import annotations

from ...core.ports import PromptRefused, PromptTooLong

OF_PROMPT = {"prompt_too_long": PromptTooLong, "refused": PromptRefused}


def error_named(name: str, message: str) -> Exception:
    """Return an exception of a type of this name, as a defect of an adapter or of a user's code raises one."""
    made: type[Exception] = type(name if name.isidentifier() else "Exception", (Exception,), {})
    return made(message)


def error_of_text(text: str) -> Exception:
    """Return the exception that ``ValueError: what it says`` describes."""
    name, _, message = text.partition(": ")
    return error_named(name, message)
