"""A folded state as bytes and back, without pickle: whatever the bytes say, reading them makes data and runs nothing.

MessagePack over lists that say what they stand for: ``["tuple", 1, 2]``, ``["dict", key, value, ...]``,
``["Wait", field, ...]``. Classes are the dataclasses, named tuples and events of the fold, by a fixed table.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import msgspec
from pydantic import BaseModel

from ...core import projections
from ...core.projections import (
    engines,
    environment_workers,
    groups,
    identity,
    movement,
    outstanding,
    pace,
    progress,
    prompts,
    trainer,
    waits,
)
from ...events import reader, types
from . import run_facts

_MODULES = (
    projections,
    engines,
    environment_workers,
    groups,
    identity,
    movement,
    outstanding,
    pace,
    progress,
    prompts,
    trainer,
    waits,
    types,
    reader,
    run_facts,
)
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})


def encode_state(value: object) -> bytes:
    """Return `value`, made of plain data and of the fold's classes, as bytes.

    Raises TypeError for any other class, and OverflowError for an integer beyond 64 bits.
    """
    return msgspec.msgpack.encode(_tree(value))


def decode_state(data: bytes) -> Any:
    """Return what `encode_state` of this very code was given. Raises ValueError for anything else."""
    try:
        return _value(msgspec.msgpack.decode(data))
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"no state of this version: {error}") from None


def _tree(value: Any) -> Any:
    kind: Any = type(value)
    if kind in _ATOMS:
        return value
    if kind in (dict, Counter):
        return [kind.__name__, *(_tree(part) for pair in value.items() for part in pair)]
    if kind in (list, tuple, set, frozenset):
        return [kind.__name__, *map(_tree, value)]
    if kind is deque:
        return ["deque", value.maxlen, *map(_tree, value)]
    name = _names().get(kind)
    if name is None:
        raise TypeError(f"{kind.__name__} has no place in a state")
    return [name, *(_tree(getattr(value, part)) for part in _parts(kind))]


def _value(tree: Any) -> Any:
    if type(tree) is not list:
        return tree
    make = _MAKERS.get(tree[0])
    if make is not None:
        return make(tree)
    cls: Any = _classes()[tree[0]]
    values = dict(zip(_parts(cls), map(_value, tree[1:]), strict=True))
    return cls.model_validate(values) if issubclass(cls, BaseModel) else cls(**values)


def _pairs(tree: list[Any]) -> Iterable[tuple[Any, Any]]:
    values = map(_value, tree[1:])
    return zip(values, values, strict=True)


_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "dict": lambda tree: dict(_pairs(tree)),
    "Counter": lambda tree: Counter(dict(_pairs(tree))),
    "list": lambda tree: list(map(_value, tree[1:])),
    "tuple": lambda tree: tuple(map(_value, tree[1:])),
    "set": lambda tree: set(map(_value, tree[1:])),
    "frozenset": lambda tree: frozenset(map(_value, tree[1:])),
    "deque": lambda tree: deque(map(_value, tree[2:]), maxlen=tree[1]),
}


@cache
def _classes() -> dict[str, type[Any]]:
    found = {}
    for module in _MODULES:
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__ and _parts(cls):
                found[cls.__name__] = cls
    return found


@cache
def _names() -> dict[type[Any], str]:
    return {cls: name for name, cls in _classes().items()}


@cache
def _parts(cls: Any) -> tuple[str, ...]:
    """Return the fields that make up an object of `cls`; none if it is no class of ours that holds data."""
    if is_dataclass(cls):
        return tuple(part.name for part in fields(cls))
    if issubclass(cls, BaseModel):
        return tuple(cls.model_fields)
    return tuple(getattr(cls, "_fields", ()))
