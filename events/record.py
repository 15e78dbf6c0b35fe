"""The envelope: what the bus adds to an event when it is appended."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple, Protocol

from .types import Event


class Record(NamedTuple):
    """One line of the log: an event with its place, time and cause."""

    seq: int
    """Dense from 0 over the whole run; delivery order and file order are seq order."""
    ts: int
    """UTC, nanoseconds since the epoch. For people and joins; never for order."""
    mono: int
    """Monotonic nanoseconds, for durations. They start anywhere; a resumed run goes on counting where it stopped."""
    actor: str
    """Who published it: ``collector``, ``trainer``, ``engine_pool``, ``run``, ..."""
    cause: int | None
    """Seq of the event that led to this one."""
    corr: str
    """What it belongs to: a trajectory ``57/3``, a step ``step:12``, or nothing."""
    event: Event


class Clock(Protocol):
    """Where times come from. Real in a run, virtual in the simulator."""

    def utc_ns(self) -> int:
        """Return UTC nanoseconds since the epoch."""
        ...

    def mono_ns(self) -> int:
        """Return monotonic nanoseconds; only differences mean anything."""
        ...


_cause: ContextVar[int | None] = ContextVar("eventrain_cause", default=None)
_corr: ContextVar[str] = ContextVar("eventrain_corr", default="")


class causing:  # noqa: N801 - reads as what it does: ``with causing(seq): ...``
    """Make `seq` the cause, and `corr` the correlation, of every event published inside the block.

    Tasks started inside inherit both. What is None stays as it is outside.
    """

    __slots__ = ("_cause", "_corr", "_seq", "_text")

    def __init__(self, seq: int | None = None, corr: str | None = None) -> None:
        self._seq = seq
        self._text = corr

    def __enter__(self) -> None:
        self._cause = _cause.set(self._seq) if self._seq is not None else None
        self._corr = _corr.set(self._text) if self._text is not None else None

    def __exit__(self, *_: object) -> None:
        if self._cause is not None:
            _cause.reset(self._cause)
        if self._corr is not None:
            _corr.reset(self._corr)


current_cause = _cause.get
"""Return the seq that `causing` set here, or None."""

current_corr = _corr.get
"""Return the correlation that `causing` set here, or ``""``."""
