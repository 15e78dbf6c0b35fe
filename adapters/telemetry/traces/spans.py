"""What a finished span is, before any wire format.

Tuples rather than dataclasses: a long run makes millions, and a tuple is made three times as fast as a frozen
dataclass.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from . import names

Value = str | int | float | bool | tuple[str, ...]
Attributes = tuple[tuple[str, Value], ...]
"""In the order in which they are written, so that two exports are the same bytes."""


class Kind(IntEnum):
    """A span's place between processes, with the numbers of OTLP."""

    INTERNAL = 1
    CLIENT = 3


class Status(IntEnum):
    """How the work of a span ended, with the numbers of OTLP. UNSET is what ended without an error."""

    UNSET = 0
    ERROR = 2


class Resource(NamedTuple):
    """The process that did the work."""

    attributes: Attributes


class Link(NamedTuple):
    """A span of another trace that this one has to do with."""

    trace_id: bytes
    span_id: bytes
    attributes: Attributes = ()


class SpanEvent(NamedTuple):
    """Something that happened at one moment of a span."""

    time_ns: int
    name: str
    attributes: Attributes = ()


class Span(NamedTuple):
    """One finished span; times are UTC nanoseconds since the epoch."""

    resource: Resource
    trace_id: bytes
    span_id: bytes
    parent: bytes
    """Span id of the parent, empty for the root of a tree."""
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes = ()
    kind: Kind = Kind.INTERNAL
    links: tuple[Link, ...] = ()
    events: tuple[SpanEvent, ...] = ()
    status: Status = Status.UNSET
    message: str = ""
    """Of an error, for a person."""


SAMPLED_FLAG = 1
"""Of the W3C trace flags."""


def link_flags(link: Link) -> int:
    """Return the W3C trace flags of what a link leads to: whether its trace was kept."""
    return 0 if (names.SAMPLED, False) in link.attributes else SAMPLED_FLAG
