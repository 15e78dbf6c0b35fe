"""The envelope: what the bus adds to an event when it is appended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def causing(seq: int | None = None, corr: str | None = None) -> Iterator[None]:
    """Make `seq` the cause, and `corr` the correlation, of every event published inside the block.

    Tasks started inside inherit both. What is None stays as it is outside.
    """
    cause_token = _cause.set(seq) if seq is not None else None
    corr_token = _corr.set(corr) if corr is not None else None
    try:
        yield
    finally:
        if cause_token is not None:
            _cause.reset(cause_token)
        if corr_token is not None:
            _corr.reset(corr_token)


def current_cause() -> int | None:
    """Return the seq that `causing` set here, or None."""
    return _cause.get()


def current_corr() -> str:
    """Return the correlation that `causing` set here, or ``""``."""
    return _corr.get()
