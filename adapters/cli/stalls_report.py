"""What `eventrain stalls` says: every interval in which a run stood or crawled, folded from its log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from ...core.chain import trainer_chain
from ...core.config import RunConfig, recorded_config
from ...core.projections import Effect, View
from ...core.stalls import ASLEEP_S, Stall, verdict
from ...core.watchdog import Watch
from ...events.record import Record
from ...events.types import (
    Event,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StallCleared,
    StallDetected,
)
from .event_line import kind_name, kind_of
from .opening import nothing_to_read
from .quantities import clock_time, number, seconds

LEARNER_BUSY = ("starting", "converting", "training", "weight_sync", "checkpoint")
"""Phases in which the learner is not idle."""
_BEGINNINGS = {RunStarted, RunResumed}
_ENDS = {StallDetected, StallCleared, RunFinished, RunFailed}


@dataclass
class Interval:
    """One stall. Times are nanoseconds since the start of the run."""

    stall: int
    kind: str
    from_ns: int
    chain: tuple[str, ...]
    sentence: str
    first_cause: int | None
    seq: int | None
    """Of the StallDetected event; None when it was found afterwards, by folding the log."""
    to_ns: int | None = None
    ended_by: int | None = None
    """Seq of the event that ended it, None while it lasts or when the log just ends."""
    ended_kind: str = ""
    lost_s: float = 0.0
    """Idle device-seconds: engines by their share of free slots, and the learner while it waits."""
    late: Effect | None = None
    """What does not end, where that is the first cause."""
    late_from_ns: int = 0
    """When it began."""


@dataclass
class StallReport:
    """All intervals of a log, and where it stands at its end."""

    path: Path
    intervals: list[Interval] = field(default_factory=list)
    ended: str = ""
    """Kind of the run's last event when it ended the run, else empty."""
    live: bool = False
    end_ns: int = 0
    last_seq: int = -1
    waiting: tuple[str, ...] = ()
    """At the end of a log without an end of the run: the chain of what it was waiting for."""

    @property
    def lost_s(self) -> float:
        """Idle device-seconds of all intervals; overlapping ones count once each."""
        return sum(interval.lost_s for interval in self.intervals)


class StallReader:
    """Folds a log into a `StallReport`.

    A log of before there was a watchdog is judged by the same verdicts, asked afterwards: wherever a second passed
    without an event.

    With a `view` that somebody else folds, each record goes to `before`, to that view, and then to `after`.
    """

    def __init__(self, path: Path, view: View | None = None) -> None:
        self.view = View() if view is None else view
        self.watch = Watch(self.view)
        self.report = StallReport(path)
        self._open: list[Interval] = []
        self._config: RunConfig | None = None
        self._judging = False
        self._start_ts = 0
        self._offset_ns = 0  # from the monotonic clock to time since the start
        self._last: Record | None = None
        self._kinds: list[type[Event]] = []  # of every record, to name the one that ended a stall
        self._kinds_from = 0

    def apply(self, record: Record) -> None:
        """Fold one record."""
        self.before(record)
        self.view.apply(record)
        self.after(record)

    def before(self, record: Record) -> None:
        """Count the time up to `record`; the view is still as the records before it left it."""
        kind = type(record.event)
        if not self._kinds:
            self._kinds_from = record.seq
        self._kinds.append(kind)
        if kind not in _BEGINNINGS:
            if self._last is not None and (self._open or self._judging):
                self._pass(self._last, record)
        elif isinstance(record.event, RunStarted):
            self._config = recorded_config(record.event.config)
            self._judging = "watchdog" not in record.event.config
            self._start_ts = record.ts
            self._offset_ns = record.mono
        elif isinstance(record.event, RunResumed):
            if record.event.config is not None:
                self._config = recorded_config(record.event.config)
            self._offset_ns = record.mono - (record.ts - self._start_ts)
            self._close(self._open[:], self._at(self._last or record), None)
            self.watch = Watch(self.view)

    def after(self, record: Record) -> None:
        """Take what `record` says of stalls; the view has folded it."""
        self.watch.apply(record)
        if self._judging or type(record.event) in _ENDS:
            self._take(record)
        self._last = record

    def _at(self, record: Record) -> int:
        return record.mono - self._offset_ns

    def _pass(self, last: Record, record: Record) -> None:
        """Count the idle time between two records, and judge it where the run itself did not."""
        gap_s = (record.mono - last.mono) / 1e9
        if self._judging and gap_s >= ASLEEP_S:
            self._judge(record.mono)
        idle = self.view.engines.idle() + (self.view.trainer.phase not in LEARNER_BUSY)
        for interval in self._open:
            begun_s = (self._at(record) - max(interval.from_ns, self._at(last))) / 1e9
            interval.lost_s += idle * max(0.0, begun_s)

    def _judge(self, now_ns: int) -> None:
        assert self._config is not None
        groups = self.view.groups
        due = ["collector"] if groups.whole or groups.unanswered else []
        for stall in verdict(self.view, self._config, now_ns, due=due):
            if stall.key not in self.watch.standing:
                standing = self.watch.add(stall, now_ns)
                self._begin(standing.number, stall)

    def _begin(self, number_: int, stall: Stall) -> None:
        at = stall.since_ns - self._offset_ns
        self._add(Interval(number_, stall.kind, at, stall.chain, stall.sentence, stall.first_cause, None))

    def _add(self, found: Interval) -> None:
        cause = found.first_cause
        if cause is not None:
            effects = self.view.outstanding.open.values()
            found.late = next((effect for effect in effects if effect.seq == cause), None)
        if found.late is not None:
            found.late_from_ns = found.late.since_ns - self._offset_ns
        self.report.intervals.append(found)
        self._open.append(found)

    def _take(self, record: Record) -> None:
        event, at = record.event, self._at(record)
        if isinstance(event, StallDetected):
            self._add(
                Interval(
                    event.stall,
                    event.stall_kind,
                    at,
                    event.chain,
                    event.sentence,
                    event.first_cause,
                    record.seq,
                )
            )
        elif isinstance(event, StallCleared):
            self._close([one for one in self._open if one.stall == event.stall], at, event.by)
        elif isinstance(event, RunFinished | RunFailed):
            self._close(self._open[:], at, record.seq)
        elif self._judging:
            ended = {standing.number for standing in self.watch.take_ended()}
            self._close([one for one in self._open if one.stall in ended], at, record.seq)

    def _close(self, intervals: list[Interval], at: int, by: int | None) -> None:
        for interval in intervals:
            interval.to_ns, interval.ended_by = at, by
            interval.ended_kind = "" if by is None else kind_name(self._kinds[by - self._kinds_from])
            self._open.remove(interval)

    def finish(self, *, being_written: bool, now_ts: int) -> StallReport:
        """Return the report. `being_written` says that a process holds the run's lock, at UTC `now_ts`."""
        report, last = self.report, self._last
        if last is None or self._config is None:
            raise nothing_to_read(report.path)
        ended = isinstance(last.event, RunFinished | RunFailed)
        report.ended = kind_of(last) if ended else ""
        report.live = not ended and being_written
        report.end_ns, report.last_seq = self._at(last), last.seq
        if report.live:
            now = last._replace(mono=last.mono + max(0, now_ts - last.ts))
            report.end_ns = self._at(now)
            self._pass(last, now)
        if not ended:
            chain, _ = trainer_chain(self.view, self._config)
            open_effects = list(self.view.outstanding.open.values())[:3]
            outstanding = [
                f"{effect.kind.replace('_', ' ')} of {effect.subject} at {effect.place}"
                for effect in open_effects
            ]
            more = len(self.view.outstanding.open) - len(open_effects)
            if more:
                outstanding.append(f"{more} more outstanding")
            report.waiting = (*chain, *outstanding)
        return report


def read_stalls(path: Path, records: Iterable[Record], *, being_written: bool, now_ts: int) -> StallReport:
    """Fold `records` into the report. Raises `BadInput` when there are none."""
    reader = StallReader(path)
    for record in records:
        reader.apply(record)
    return reader.finish(being_written=being_written, now_ts=now_ts)


def stalls_table(report: StallReport) -> dict[str, Any]:
    """Return the report as one JSON-ready table; its keys stay as they are. Times are seconds since the start."""
    return {
        "folder": str(report.path),
        "ended": report.ended or None,
        "live": report.live,
        "last_seq": report.last_seq,
        "device_seconds_lost": round(report.lost_s, 3),
        "waiting": list(report.waiting),
        "stalls": [
            {
                "stall": one.stall,
                "kind": one.kind,
                "from_s": round(one.from_ns / 1e9, 3),
                "to_s": None if one.to_ns is None else round(one.to_ns / 1e9, 3),
                "ended_by": one.ended_by,
                "ended_kind": one.ended_kind or None,
                "device_seconds_lost": round(one.lost_s, 3),
                "sentence": one.sentence,
                "chain": list(one.chain),
                "first_cause": one.first_cause,
                "seq": one.seq,
            }
            for one in report.intervals
        ],
    }


def stalls_lines(report: StallReport) -> list[str]:
    """Return the report as lines for a person, styled for a terminal."""
    count = len(report.intervals)
    head = "no stall" if not count else f"{count} stall{'s' if count > 1 else ''}"
    if report.lost_s:
        head += f", {number(round(report.lost_s, 1))} device-seconds idle meanwhile"
    lines = [head]
    for one in report.intervals:
        lines += ["", *_interval_lines(report, one)]
    return [*lines, *_end_lines(report)]


def _interval_lines(report: StallReport, one: Interval) -> list[str]:
    to_ns = report.end_ns if one.to_ns is None else one.to_ns
    lasted = seconds((to_ns - one.from_ns) / 1e9)
    until = "now" if one.to_ns is None and report.live else clock_time(to_ns)
    if one.ended_by is not None:
        end = f"ended by {one.ended_kind} (seq {one.ended_by})"
    else:
        end = "it lasts" if report.live else "not over when the log ends"
    kind = click.style(one.kind, fg="yellow" if one.kind in {"degraded", "overdue"} else "red", bold=True)
    cause = "" if one.first_cause is None else f"; first cause: seq {one.first_cause}"
    return [
        f"{one.stall:>3}  {kind}  {clock_time(one.from_ns)} to {until}, {lasted}; {end}",
        f"     {number(round(one.lost_s, 1))} device-seconds idle{cause}",
        f"       {one.chain[0]}",
        *(f"       <- {link}" for link in one.chain[1:]),
    ]


def _end_lines(report: StallReport) -> list[str]:
    if report.ended:
        return [
            "",
            f"the run ended with {report.ended} after {seconds(report.end_ns / 1e9)} (seq {report.last_seq})",
        ]
    if report.live:
        return ["", f"the run goes on (seq {report.last_seq}); just now: {' <- '.join(report.waiting)}"]
    return [
        "",
        f"the log ends after {seconds(report.end_ns / 1e9)} (seq {report.last_seq}) without an end of the run; then:",
        *(f"       {'<- ' if index else ''}{link}" for index, link in enumerate(report.waiting)),
    ]
