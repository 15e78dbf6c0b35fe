"""How a projection is written: one method per event it cares about, marked with `on`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from ...events.record import Record
from ...events.types import Event

Method = TypeVar("Method", bound=Callable[..., None])
Handler = Callable[[Any, Record, Any], None]


def on(*events: type[Event]) -> Callable[[Method], Method]:
    """Mark a method ``(self, record, event)`` as the one that folds `events`."""

    def mark(method: Method) -> Method:
        method.__dict__["folds"] = events
        return method

    return mark


class Folded:
    """State that only events change: a pure fold, without I/O, clock or chance.

    Two instances that folded the same records are equal when their class compares its fields (a dataclass).
    """

    handlers: ClassVar[dict[type[Event], Handler]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {event: method for method in vars(cls).values() for event in getattr(method, "folds", ())}
        cls.handlers = {**cls.handlers, **own}  # a part of a projection may be a class of its own, below it

    def apply(self, record: Record) -> None:
        """Fold one record."""
        handler = self.handlers.get(type(record.event))
        if handler is not None:
            handler(self, record, record.event)
