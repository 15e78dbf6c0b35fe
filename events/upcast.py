"""How events written by older versions become events of this one.

An upcaster is a pure function from the dict of schema v to the dict of schema v + 1; it runs before
validation, so the models only ever know the newest schema. There is one for each change of meaning; a new
field with a default needs none. None is ever removed: finished runs stay readable for ever, and
``tests/golden`` holds one log per schema to prove it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import LogTooNew
from .types import BY_KIND

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]


def _llm_call_finished_1(event: dict[str, Any]) -> dict[str, Any]:
    """Take the time in the engine's queue, which schema 1 counted in, out of `seconds`."""
    # Both were rounded on their own, so the difference may come out a hair below zero.
    return {**event, "seconds": max(0.0, event["seconds"] - event.get("queue_s", 0.0))}


UPCASTERS: dict[tuple[str, int], Upcaster] = {
    ("llm_call_finished", 1): _llm_call_finished_1,
}
"""By kind and the schema that it reads."""


def upcast(event: dict[str, Any], v: int) -> dict[str, Any]:
    """Return `event` (a dict with its ``kind``), written with schema `v`, as the newest schema has it.

    Raises `LogTooNew` for a kind or a schema that this version does not know.
    """
    kind = event.get("kind")
    event_class = BY_KIND.get(str(kind))
    if event_class is None:
        raise LogTooNew(f"this version knows no event '{kind}'")
    if v > event_class.SCHEMA:
        raise LogTooNew(f"'{kind}' has schema {v}; this version knows it up to {event_class.SCHEMA}")
    for step in range(v, event_class.SCHEMA):
        event = UPCASTERS[kind, step](event)  # type: ignore[index]
    return event
