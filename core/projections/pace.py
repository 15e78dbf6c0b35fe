"""How long groups and steps take, as far as the log tells."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...events.record import Record
from ...events.types import (
    BatchTaken,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    PhaseEntered,
    RunResumed,
)
from .fold import Folded, on


@dataclass(frozen=True, slots=True)
class Survival:
    """Which share of groups is still in flight after how many seconds."""

    times_s: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    """Share that takes longer than the time of the same place; falling."""

    def beyond(self, seconds: float) -> float:
        """Return the share of groups that take longer than `seconds`; with nothing seen yet, none does."""
        if not self.times_s:
            return 0.0
        place = bisect_right(self.times_s, seconds)
        return self.shares[place - 1] if place else 1.0

    def seconds_until(self, share: float) -> float:
        """Return the seconds after which at most `share` is still in flight; the longest seen if more is, 0 if none."""
        place = bisect_left(self.shares, -share, key=lambda beyond: -beyond)
        return self.times_s[min(place, len(self.times_s) - 1)] if self.times_s else 0.0

    def chance(self, age_s: float, left_s: float) -> float:
        """Return the chance that a group in flight for `age_s` seconds ends within `left_s` more."""
        alive = self.beyond(age_s)
        if alive <= 0.0:
            # Older than any group that was seen to its end: nothing is known of it, and only of the unknown
            # is it fair to expect nothing.
            return 0.0 if self.times_s else 1.0
        return 1.0 - self.beyond(age_s + max(0.0, left_s)) / alive


def survival(ended: Iterable[tuple[float, bool]]) -> Survival:
    """Return the product-limit estimate from (seconds, whether the group ended by itself).

    A group that was given up took longer than it was watched. Leaving those out would make long groups look rarer
    the more of them are given up, and the estimate ever more hopeful (Kaplan and Meier, JASA 53, 1958).
    """
    seen = sorted(ended)
    at_risk, alive = len(seen), 1.0
    times: list[float] = []
    shares: list[float] = []
    for seconds, whole in seen:
        if whole:
            alive *= 1.0 - 1.0 / at_risk
            if times and times[-1] == seconds:
                shares[-1] = alive
            else:
                times.append(seconds)
                shares.append(alive)
        at_risk -= 1
    return Survival(tuple(times), tuple(shares))


@dataclass
class Pace(Folded):
    """Durations of the last groups, and seconds of the last steps."""

    groups_kept: int = 512
    steps_kept: int = 16
    waiting: bool = True
    """Whether the trainer has nothing to do but wait for its next batch."""
    taken_ns: int = 0
    _ended: deque[tuple[float, bool]] = field(default_factory=deque)
    _steps_s: deque[float] = field(default_factory=deque)
    _since: dict[int, int] = field(default_factory=dict)
    step_s: float = math.inf
    """Median seconds from taking a batch until the next one could be taken; infinite before the first."""
    _seen: tuple[tuple[tuple[float, bool], ...], tuple[int, ...]] = ((), ())  # groups that had ended by the last
    # batch; when those in flight had begun
    _curve: Survival | None = field(default=None, compare=False)

    @property
    def curve(self) -> Survival:
        """Of the groups' durations from dispatch to the buffer, queue and retries included, as of the last batch."""
        if self._curve is None:  # only when somebody asks: it costs more than all other folds of a step
            ended, begun = self._seen
            flying = (((self.taken_ns - since) / 1e9, False) for since in begun)
            self._curve = survival([*ended, *flying])
        return self._curve

    def until_s(self, now_ns: int, steps: int) -> float:
        """Return the seconds until the step after the next `steps` steps could be taken, at the earliest."""
        left_s = 0.0 if self.waiting else max(0.0, self.step_s - (now_ns - self.taken_ns) / 1e9)
        return left_s + (steps * self.step_s if steps else 0.0)

    @on(GroupDispatched)
    def _dispatched(self, record: Record, event: GroupDispatched) -> None:
        self._since[event.group] = record.mono

    @on(GroupBuffered, GroupFiltered)
    def _whole(self, record: Record, event: GroupBuffered | GroupFiltered) -> None:
        self._end(event.group, record.mono, whole=True)

    @on(GroupEvicted, GroupFailed, GroupDiscarded)
    def _given_up(self, record: Record, event: GroupEvicted | GroupFailed | GroupDiscarded) -> None:
        self._end(event.group, record.mono, whole=False)

    def _end(self, group: int, now_ns: int, *, whole: bool) -> None:
        since_ns = self._since.pop(group, None)
        if since_ns is None:
            return  # it was buffered, and has ended before; or it is of the time before a resume
        self._ended.append(((now_ns - since_ns) / 1e9, whole))
        if len(self._ended) > self.groups_kept:
            self._ended.popleft()

    @on(BatchTaken)
    def _taken(self, record: Record, event: BatchTaken) -> None:
        self._ready(record.mono)
        self.waiting, self.taken_ns = False, record.mono
        self._seen, self._curve = (tuple(self._ended), tuple(self._since.values())), None

    @on(PhaseEntered)
    def _phase(self, record: Record, event: PhaseEntered) -> None:
        if event.phase in ("waiting_for_buffer", "generating"):
            self._ready(record.mono)

    def _ready(self, now_ns: int) -> None:
        if not self.waiting:
            self.waiting = True
            self._steps_s.append((now_ns - self.taken_ns) / 1e9)
            if len(self._steps_s) > self.steps_kept:
                self._steps_s.popleft()
            self.step_s = statistics.median(self._steps_s)

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        self._since.clear()
        self.waiting = True
