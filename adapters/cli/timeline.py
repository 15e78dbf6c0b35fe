"""The states of a run along its log: any point of it, by the nearest snapshot and a fold from there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from ...events.errors import LogDamaged, LogTooNew
from ...events.folder import RunFolder
from ...events.reader import LogReader, Mark
from ...events.record import Record
from ...events.types import RunStarted
from .failures import BadInput, CommandFailed
from .opening import first_record, reader_of
from .points import MS, End, Point, Seq, Step, Time
from .quantities import clock_time
from .run_facts import RunFacts
from .snapshots import Snapshot, Snapshots

MARKS_EVERY = 4096
"""Events between two places of the log that are remembered."""
Unreadable = LogDamaged | LogTooNew


class Moment:
    """The state at one point."""

    def __init__(self, facts: RunFacts, last: Record, mark: Mark) -> None:
        self.facts = facts
        self.last = last
        """Record after which it is the state."""
        self.mark = mark
        """Of the frame that holds it."""
        self.is_end = False
        """Whether no record follows that could be read."""
        self.unreadable: Unreadable | None = None
        """Why the log cannot be read behind it, where it is the last state that can be shown."""

    @property
    def seq(self) -> int:
        """Return the seq of its last record."""
        return self.last.seq


class Timeline:
    """The log of one run, to be looked at in any order."""

    def __init__(self, folder: RunFolder) -> None:
        self.path: Path = folder.path
        self.reader: LogReader = reader_of(folder)
        self.first = first_record(self.reader.records(), self.path)
        if not isinstance(self.first.event, RunStarted):
            raise BadInput([f"{self.path}: the log does not begin with run_started: it is no whole run"])
        self.on_frame: Callable[[Mark], None] = lambda _: None
        """Called with each frame that is read: to show how far a long fold has come, or to give it up by raising."""
        self._marks: list[Mark] = []
        self._snapshots = Snapshots.of(folder.events, self.first)

    def moment(self, point: Point) -> Moment:
        """Return the state at `point`.

        Raises `BadInput` when the log does not cover it, and `CommandFailed` when what lies there cannot be read.
        """
        match point:
            case Seq(seq):
                return self._covered(point, self._fold(seq, lambda _: False), seq)
            case Step(step):
                return self.moment(Seq(self._seq_of_step(step)))
            case Time():
                return self._at_time(point)
            case End():
                return self._fold(None, lambda _: False)

    def records(self, after: int, upto: int | None = None) -> Iterator[Record]:
        """Yield the records behind seq `after`, up to and with `upto`."""
        place = bisect_right(self._marks, after + 1, key=lambda mark: mark.first_seq)
        for mark, records in self.reader.frames(after + 1, self._marks[place - 1] if place else None):
            self._remember(mark)
            for record in records:
                if upto is not None and record.seq > upto:
                    return
                yield record

    def _remember(self, mark: Mark) -> None:
        """Keep the place of a frame, so that the records near it are found without reading the log up to there."""
        self.on_frame(mark)
        place = bisect_right(self._marks, mark.first_seq, key=lambda known: known.first_seq)
        if not place or mark.first_seq - self._marks[place - 1].first_seq >= MARKS_EVERY:
            self._marks.insert(place, mark)

    def apply(self, moment: Moment, record: Record) -> None:
        """Move `moment` on by one record."""
        moment.facts.later_ns = 0
        moment.facts.apply(record)
        moment.last = record

    def go_on(self, moment: Moment, until_ts: int | None = None) -> Iterator[Record]:
        """Move `moment` on to the end of the log, or to the last record before the first that is later than `until_ts`.

        Yields each record when it is folded, and leaves snapshots on the way. Asked again, it looks for what came
        since, and reads no more than the frame in which it stands. Raises `LogDamaged` or `LogTooNew`.
        """
        for mark, records in self.reader.frames(moment.seq + 1, moment.mark):
            self._remember(mark)
            for record in records:
                if until_ts is not None and record.ts > until_ts:
                    return
                self.apply(moment, record)
                moment.mark = mark
                if self._snapshots.due(record.seq):
                    self._snapshots.save(moment.facts, mark, record)
                yield record

    def _at_time(self, point: Time) -> Moment:
        start_ts = self.first.ts
        until = start_ts + point.since_start_ns if point.since_start_ns is not None else point.utc_ns
        assert until is not None
        if until < start_ts:
            raise self._outside(point, self._fold(None, lambda _: False))
        moment = self._fold(None, lambda record: record.ts > until, until_ts=until)
        if moment.is_end and moment.facts.newest_ts + MS <= until:
            raise self._outside(point, moment)
        moment.facts.later_ns = max(0, until // MS * MS - moment.last.ts)
        return moment

    def _seq_of_step(self, step: int) -> int:
        end = self._fold(None, lambda _: False)
        facts = end.facts
        if step in facts.trained_at:
            return facts.trained_at[step]
        if step in facts.rolled_back_at:
            undone = f"step {step} was undone by the resume of seq {facts.rolled_back_at[step]}"
            raise BadInput([f"{self.path}: {undone} and has not been trained again"])
        if end.unreadable is not None:
            raise self._lost(Step(step), end)
        trained = f"steps 0 to {max(facts.trained_at)} are" if facts.trained_at else "no step is"
        raise BadInput([f"{self.path}: step {step} was never trained; {trained} trained in this log"])

    def _covered(self, point: Point, moment: Moment, seq: int) -> Moment:
        if moment.seq < seq:
            raise self._outside(point, moment)
        return moment

    def _outside(self, point: Point, end: Moment) -> CommandFailed:
        if end.unreadable is not None:
            return self._lost(point, end)
        covers = (
            f"seq 0 to {end.seq}, 0:00:00.000 to {clock_time(end.last.ts - self.first.ts)} since the start"
        )
        return BadInput([f"{self.path}: {point} is outside the log, which covers {covers}"])

    def _lost(self, point: Point, end: Moment) -> CommandFailed:
        return CommandFailed(
            [f"{self.path}: {point} cannot be shown: {end.unreadable}; --at {end.seq} and before can"]
        )

    def _fold(
        self,
        upto: int | None,
        behind: Callable[[Record], bool],
        until_ts: int | None = None,
    ) -> Moment:
        """Fold up to and with seq `upto`, or up to the first record `behind` the point, from the nearest snapshot."""
        for snapshot in self._snapshots.newest_first(upto, until_ts):
            moment = self._folded(upto, behind, snapshot)
            if moment is not None:
                return moment
        moment = self._folded(upto, behind, None)
        assert moment is not None
        return moment

    def _folded(
        self, upto: int | None, behind: Callable[[Record], bool], snapshot: Snapshot | None
    ) -> Moment | None:
        """Fold on from `snapshot`; return None if the log does not lead to it, or not any more."""
        facts = RunFacts() if snapshot is None else snapshot.facts
        moment: Moment | None = None
        self._snapshots.begin(facts.view.last_seq)
        try:
            frames = self.reader.frames(
                max(0, facts.view.last_seq), None if snapshot is None else snapshot.mark
            )
            for mark, records in frames:
                self._remember(mark)
                for record in records:
                    if moment is None:
                        if snapshot is None:
                            facts.apply(record)
                        elif not snapshot.fits(record):
                            return None
                        moment = Moment(facts, record, mark)
                    elif behind(record):
                        return self._keep(moment)
                    else:
                        facts.apply(record)
                        moment.last, moment.mark = record, mark
                    if record.seq == upto:
                        return self._keep(moment)
                    if self._snapshots.due(record.seq):
                        self._snapshots.save(facts, mark, record)
        except (LogDamaged, LogTooNew) as error:
            if moment is None and snapshot is None:
                raise
            if moment is not None:
                moment.unreadable = error
        if moment is None:
            return None
        moment.is_end = True
        return self._keep(moment)

    def _keep(self, moment: Moment) -> Moment:
        """Leave a snapshot where a long fold ends: whoever asks once asks again, or for what lies near."""
        if self._snapshots.worth(moment.seq):
            self._snapshots.save(moment.facts, moment.mark, moment.last)
        self._snapshots.trim()
        return moment
