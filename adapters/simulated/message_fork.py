"""Copies of a message-level world, so that a search can go on from the same state in several ways.

A move changes a few projections of ten. A copy shares them all, and each is copied when an event first changes it. What
cannot change is never copied: numbers, texts, tuples, events.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from ...core.projections import View
from ...core.projections.accounting import Ledger
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
            self._places[event] = tuple((names[id(bound.__self__)], bound.__func__) for bound in handlers)
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


class SharedLedger(Ledger):
    """A ledger that shares its books with its copies, until it enters an event."""

    _shared = False

    def fork(self) -> SharedLedger:
        """Return a copy; from now on neither changes what both have."""
        new = SharedLedger.__new__(SharedLedger)
        new.__dict__.update(self.__dict__)
        self._shared = new._shared = True
        return new

    def apply(self, record: Record) -> None:
        """Check and enter one record, on a copy of what is shared."""
        if self._shared:
            self.__dict__.update(copied(self).__dict__, _shared=False)
        super().apply(record)


SharedLedger.handlers = Ledger.handlers


def copied(value: Any) -> Any:
    """Return a copy of `value` that can be changed without changing it."""
    cls = type(value)
    copier = _COPIERS.get(cls)
    if copier is None:
        copier = _COPIERS[cls] = _copier(cls)
    return copier(value)


def _same(value: Any) -> Any:
    return value


def _copier(cls: type) -> Callable[[Any], Any]:
    """Return how values of `cls` are copied."""
    if issubclass(cls, _UNCHANGING) or (is_dataclass(cls) and cls.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        return _same
    if issubclass(cls, Counter):
        return _copied_counter
    if issubclass(cls, dict):
        return _copied_dict
    if issubclass(cls, list):
        return _copied_list
    if issubclass(cls, set | deque):
        return cls.copy
    if not is_dataclass(cls):
        raise TypeError(f"a {cls.__name__} in a projection: how is it copied?")
    names = [field.name for field in fields(cls)]
    return partial(_copied_slots if hasattr(cls, "__slots__") else _copied_object, names)


def _copied_counter(value: Counter[Any]) -> Counter[Any]:
    new: Counter[Any] = Counter.__new__(Counter)
    dict.update(new, value)
    return new


def _copied_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    new = value.copy()
    for key, inner in value.items():
        if _COPIERS.get(type(inner)) is _same:
            break  # the values of a dict in a projection are of one kind
        new[key] = copied(inner)
    return new


def _copied_list(value: list[Any]) -> list[Any]:
    return [copied(inner) for inner in value]


def _copied_slots(names: list[str], value: Any) -> Any:
    new = object.__new__(type(value))
    for name in names:
        setattr(new, name, copied(getattr(value, name)))
    return new


def _copied_object(names: list[str], value: Any) -> Any:
    new = object.__new__(type(value))
    content = new.__dict__
    content.update(value.__dict__)
    for name in names:
        inner = content[name]
        if _COPIERS.get(type(inner)) is not _same:
            content[name] = copied(inner)
    return new


_COPIERS: dict[type, Callable[[Any], Any]] = {}


def fork(world: MessageWorld) -> MessageWorld:
    """Return a copy of `world`, whose view is a `SharedView`, that goes on by itself."""
    assert isinstance(world.view, SharedView)
    assert isinstance(world.ledger, SharedLedger)
    new = MessageWorld.__new__(MessageWorld)
    new.__dict__.update(world.__dict__)
    new.view = world.view.fork()
    new.ledger = world.ledger.fork()
    new.log = None if world.log is None else list(world.log)
    new.unread = list(world.unread)
    new.outside = [asked.fork() for asked in world.outside]
    new.kept_waiting = [asked.fork() for asked in world.kept_waiting]
    new.faults_left = list(world.faults_left)
    new.attention = world.attention.fork()
    return new
