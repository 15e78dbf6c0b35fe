"""Who waits for what, and which failures came lately."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from ...events.record import Record
from ...events.types import Blocked, RunResumed, TrajectoryCompleted, TrajectoryFailed, Unblocked
from .fold import Folded, on

_FELL = ("cancelled", "engine_lost", "env_lost")


@dataclass(frozen=True, slots=True)
class Wait:
    """One open wait."""

    waiter: str
    edge: str
    awaited: str
    present: str
    since_ns: int
    seq: int = -1
    """Of its Blocked event."""


@dataclass
class Waits(Folded):
    """Open waits by the seq of their Blocked event."""

    open: dict[int, Wait] = field(default_factory=dict)
    by_waiter: dict[str, Wait] = field(default_factory=dict)
    """The newest open wait of each actor and trajectory."""

    @on(Blocked)
    def _blocked(self, record: Record, event: Blocked) -> None:
        wait = Wait(event.waiter, event.edge, event.awaited, event.present, record.mono, record.seq)
        self.open[record.seq] = self.by_waiter[event.waiter] = wait

    @on(Unblocked)
    def _unblocked(self, record: Record, event: Unblocked) -> None:
        self.open.pop(event.blocked, None)
        newest = self.by_waiter.get(event.waiter)
        if newest is not None and newest.seq == event.blocked:
            del self.by_waiter[event.waiter]

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        self.open.clear()
        self.by_waiter.clear()


class Attempt(NamedTuple):
    """How one attempt at a training trajectory ended."""

    seq: int
    failure: str
    """Empty when it was completed."""
    message: str


@dataclass
class Attempts(Folded):
    """The last attempts that ended and say something of prompts, environments or the model, newest last.

    Cancelled ones are nobody's failure. One lost engine, or worker of environments, ends a hundred attempts at
    once, which says one thing: its restarts are counted, and those that fell with it are left out here.
    """

    keep: int = 64
    recent: deque[Attempt] = field(default_factory=deque)
    first_failure: Attempt | None = None
    """The one that began the present trouble: since then some recent attempt always was a failure."""

    def failed_share(self) -> float:
        """Return the share of failures among the recent attempts, 0 if there are none."""
        return sum(1 for a in self.recent if a.failure) / len(self.recent) if self.recent else 0.0

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        """Begin anew: whoever resumes a run that failed of too many failures has seen to their cause."""
        self.recent.clear()
        self.first_failure = None

    @on(TrajectoryCompleted)
    def _completed(self, record: Record, event: TrajectoryCompleted) -> None:
        if event.group is not None:
            self._push(Attempt(record.seq, "", ""))

    @on(TrajectoryFailed)
    def _failed(self, record: Record, event: TrajectoryFailed) -> None:
        if event.group is not None and event.failure not in _FELL:
            self._push(Attempt(record.seq, event.failure, event.message))

    def _push(self, attempt: Attempt) -> None:
        self.recent.append(attempt)
        if attempt.failure and self.first_failure is None:
            self.first_failure = attempt
        if len(self.recent) > self.keep:
            self.recent.popleft()
            if self.first_failure is not None and not any(a.failure for a in self.recent):
                self.first_failure = None
