"""What crosses between the controller and a worker that holds environments: plain data, unharmed on the other side.

msgpack alone would make lists of tuples, and cannot carry a large number or a tuple as a key: some datasets have
these, and score by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...core.ports import Message, StepOutcome

_TUPLE, _LARGE, _PAIRS = 1, 2, 3
_SMALL = range(-(2**63), 2**64)


def pack_item(item: Mapping[str, Any]) -> bytes:
    """Return a dataset item as bytes. Raises TypeError for a value that is not plain data, and says where it is."""
    return msgspec.msgpack.encode(_marked(dict(item), "item"))


def unpack_item(data: bytes) -> dict[str, Any]:
    """Return the item, equal to the one that was packed."""
    item: dict[str, Any] = msgspec.msgpack.decode(data, ext_hook=_restored)
    return item


def _marked(value: Any, place: str) -> Any:
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int):
        return value if value in _SMALL else msgspec.msgpack.Ext(_LARGE, str(value).encode())
    if isinstance(value, Mapping):
        pairs = [(_marked(key, place), _marked(one, f"{place}[{key!r}]")) for key, one in value.items()]
        if all(isinstance(key, str) for key in value):
            return dict(pairs)
        return msgspec.msgpack.Ext(_PAIRS, msgspec.msgpack.encode(pairs))
    if isinstance(value, list | tuple):
        inner = [_marked(one, f"{place}[{number}]") for number, one in enumerate(value)]
        if isinstance(value, list):
            return inner
        return msgspec.msgpack.Ext(_TUPLE, msgspec.msgpack.encode(inner))
    raise TypeError(
        f"{place} is a {type(value).__name__}, and to a worker only None, bool, int, float, str, bytes, lists, tuples "
        f"and dicts can be sent"
    )


def _restored(code: int, data: memoryview) -> Any:
    if code == _LARGE:
        return int(bytes(data))
    parts = msgspec.msgpack.decode(data, ext_hook=_restored)
    return tuple(parts) if code == _TUPLE else dict(parts)


def sent(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return messages as plain data."""
    return [(message.role, message.content) for message in messages]


def received(messages: Sequence[Sequence[Any]]) -> list[Message]:
    """Return what `sent` was given."""
    return [Message(role, content) for role, content in messages]


def sent_outcome(outcome: StepOutcome) -> tuple[list[tuple[str, str]], bool]:
    """Return the outcome of a step as plain data."""
    return sent(outcome.messages), outcome.done


def received_outcome(answer: Sequence[Any]) -> StepOutcome:
    """Return what `sent_outcome` was given."""
    messages, done = answer
    return StepOutcome(received(messages), done)
