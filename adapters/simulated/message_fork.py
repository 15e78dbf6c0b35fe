"""Copies of a message-level world, so that a search can go on from the same state in several ways.

A move changes a few projections of ten. A copy shares them all, and each is copied when an event first changes it. What
cannot change is never copied: numbers, texts, tuples, events.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from dataclasses import fields, is_dataclass
from typing import Any

from ...core.projections import View
from ...events.record import Record
from ...events.types import Event
from .message_world import MessageWorld

PARTS = tuple(field.name for field in fields(View) if not field.name.startswith("last_"))
_UNCHANGING = (int, str, bool, float, bytes, tuple, frozenset, type(None), Event)


class SharedView(View):
    """A view that shares its projections with its copies, until an event changes one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._places: dict[type[Event], tuple[tuple[str, Any], ...]] = {}
        names = {id(getattr(self, name)): name for name in PARTS}
        for event, handlers in self._routes.items():
            self._places[event] = tuple((names[id(part)], handler) for handler, part in handlers)
        self._shared: set[str] = set()

    def fork(self) -> SharedView:
        """Return a copy; from now on neither changes what both have."""
        new = SharedView.__new__(SharedView)
        new.__dict__.update(self.__dict__)
        self._shared = set(PARTS)
        new._shared = set(PARTS)
        return new

    def apply(self, record: Record) -> None:
        """Fold one record, on copies of what is shared."""
        for name, handler in self._places.get(type(record.event), ()):
            if name in self._shared:
                self._shared.discard(name)
                setattr(self, name, copied(getattr(self, name)))
            handler(getattr(self, name), record, record.event)
        self.last_seq, self.last_ts, self.last_mono = record.seq, record.ts, record.mono


def copied(value: Any) -> Any:
    """Return a copy of `value` that can be changed without changing it."""
    if isinstance(value, _UNCHANGING):
        return value
    if isinstance(value, Counter):
        new = Counter.__new__(Counter)
        dict.update(new, value)
        return new
    if isinstance(value, dict):
        return {key: inner if isinstance(inner, _UNCHANGING) else copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [inner if isinstance(inner, _UNCHANGING) else copied(inner) for inner in value]
    if isinstance(value, set):
        return set(value)
    if isinstance(value, deque):
        return value.copy()
    if is_dataclass(value):
        return _copied_object(value)
    raise TypeError(f"a {type(value).__name__} in a projection: how is it copied?")


def _copied_object(value: Any) -> Any:
    cls = type(value)
    if cls.__dataclass_params__.frozen:
        return value
    if not hasattr(value, "__dict__"):
        new = copy.copy(value)
        for field in fields(value):
            inner = getattr(value, field.name)
            if not isinstance(inner, _UNCHANGING):
                setattr(new, field.name, copied(inner))
        return new
    new = cls.__new__(cls)
    content = new.__dict__
    for name, inner in value.__dict__.items():
        if name != "_key":
            content[name] = inner if isinstance(inner, _UNCHANGING) else copied(inner)
    return new


def fork(world: MessageWorld) -> MessageWorld:
    """Return a copy of `world`, whose view is a `SharedView`, that goes on by itself."""
    assert isinstance(world.view, SharedView)
    new = MessageWorld.__new__(MessageWorld)
    new.__dict__.update(world.__dict__)
    new.view = world.view.fork()
    new.ledger = copied(world.ledger)
    new.log = None if world.log is None else list(world.log)
    new.unread = list(world.unread)
    new.outside = [asked.fork() for asked in world.outside]
    new.kept_waiting = [asked.fork() for asked in world.kept_waiting]
    new.faults_left = list(world.faults_left)
    new.attention = world.attention.fork()
    return new
