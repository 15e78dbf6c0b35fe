"""For how long a run stood still in each of its stalls, and for what.

A stall is noticed late: what hangs is overdue only after many times its usual length. The run stood still before, from
when the trainer waited for what hung.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..cli.quantities import seconds
from ..cli.stalls_report import Interval as Stall
from ..cli.stalls_report import StallReport
from .curves import Interval
from .history import WAITING, History

WHILE = {
    "train_step": ("training",),
    "publish": ("weight_sync",),
    "weight_sync": ("weight_sync",),
    "eval": ("eval",),
    "checkpoint": ("checkpoint",),
    "learner_start": ("starting",),
    "engine_start": ("starting", *WAITING),
}
"""Phases in which the trainer waits for an effect; for all others, of rollouts, those in which it waits for groups."""
STOOD = ("deadlock", "livelock")
"""Kinds of stall in which nothing gets done, whatever the phase."""


class Standstill(NamedTuple):
    """What stood still in one stall."""

    stall: Stall
    pieces: tuple[Interval, ...]
    """Parts of the trainer's phases, on the run's time axis; empty where nothing had to wait."""
    hung: str
    """What did not end, and for how long: ``env step of 21/1 hung for 15:00``. Empty where it is no such thing."""
    idle_s: float
    """Idle device-seconds meanwhile, by the samples; 0 where there are none."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return sum(one.seconds for one in self.pieces)

    @property
    def step(self) -> int:
        """The step in which most of it was; -1 for none."""
        return max(self.pieces, key=lambda one: one.seconds).step if self.pieces else -1


def find_standstills(history: History, report: StallReport, now_ns: int) -> list[Standstill]:
    """Return what stood still in each stall of `report`; phases that are open count up to `now_ns`."""
    phases = history.phases_until(now_ns)
    ends = [one.to_ns for one in phases]
    found = []
    for stall in report.intervals:
        until_ns = report.end_ns if stall.to_ns is None else stall.to_ns
        since_ns = stall.from_ns if stall.late is None else stall.late_from_ns
        begin, end = history.on_axis(since_ns), history.on_axis(until_ns)
        names: Sequence[str] | None = None if stall.kind in STOOD else ()
        hung = ""
        if stall.late is not None:
            names = WHILE.get(stall.late.kind, WAITING)
            at = "" if stall.late.place in ("environment", "learner", "timer") else f" at {stall.late.place}"
            what = f"{stall.late.kind.replace('_', ' ')} of {stall.late.subject}{at}"
            hung = f"{what} hung for {seconds((end - begin) / 1e9)}"
        pieces = tuple(_cut(phases, bisect_right(ends, begin), (begin, end), names))
        idle_s = sum(history.devices.idle_s(one.from_ns, one.to_ns) for one in pieces)
        found.append(Standstill(stall, pieces, hung, idle_s))
    return found


def together(standstills: Iterable[Standstill]) -> list[Interval]:
    """Return the parts of all, those that overlap as one."""
    merged: list[Interval] = []
    for one in sorted(
        (piece for still in standstills for piece in still.pieces), key=lambda one: one.from_ns
    ):
        if merged and one.from_ns <= merged[-1].to_ns:
            merged[-1] = merged[-1]._replace(to_ns=max(merged[-1].to_ns, one.to_ns))
        else:
            merged.append(one)
    return merged


def _cut(
    phases: Sequence[Interval], place: int, between: tuple[int, int], names: Sequence[str] | None
) -> Iterable[Interval]:
    begin, end = between
    while place < len(phases) and phases[place].from_ns < end:
        one = phases[place]
        if names is None or one.name in names:
            yield one._replace(from_ns=max(begin, one.from_ns), to_ns=min(end, one.to_ns))
        place += 1
