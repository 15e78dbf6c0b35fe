"""Reading a log: from a finished run, from one that was killed, and from one that is being written.

A reader needs nothing but the folder and takes no lock, so any number of processes may read beside the
writer. It hands out what it has verified and nothing else: every frame's checksum, the header of every
segment, and that seqs are dense. Where the log ends, bytes that are no whole good frame, with nothing good
behind them, are a *torn tail*: what a crash leaves of a write that was never acknowledged. Anywhere else they
are damage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .codec import decode, decode_envelope, decode_raw
from .errors import LogDamaged
from .log import sync_folder
from .record import Record
from .segment import (
    FrameBad,
    find_good_frame,
    parse_header,
    parse_seal,
    read_frames,
    segment_name,
    segment_numbers,
)
from .types import RunFailed, RunFinished


class TornTail(NamedTuple):
    """What a crash left of the last, unacknowledged write."""

    segment: str
    offset: int
    """Where the last whole frame ends."""
    cut_bytes: int
    """What lies behind it."""
    after_seq: int
    """The last good event; -1 if there is none."""
    kept: str = ""
    """File beside the segment that keeps the bytes, once they are cut."""


class Mark(NamedTuple):
    """Where a frame lies. A reading that was there once can begin there again, without what lies before."""

    segment: int
    offset: int
    first_seq: int
    """Seq of the frame's first record."""


class LogReader:
    """Reads the segments in `folder` (the run's ``events/``). Each iteration starts a reading of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def records(self, from_seq: int = 0) -> Iterator[Record]:
        """Yield all records from `from_seq` on: upcast, validated, in seq order; end at a torn tail.

        Fields that this version does not know are ignored. Raises `LogDamaged` at the first place that cannot
        be trusted, and `LogTooNew` at the first event that only a newer version can read.
        """
        place = _Place(self.folder, from_seq)
        for frame in place.frames():
            yield from frame.records()

    def frames(self, from_seq: int = 0, mark: Mark | None = None) -> Iterator[tuple[Mark, Iterator[Record]]]:
        """Yield, frame by frame, where it lies and its records from `from_seq` on; as `records` in all else.

        With `mark`, which an earlier reading of this log yielded, nothing before that place is read or checked.
        """
        place = _Place(self.folder, from_seq)
        if mark is not None:
            place.jump(mark)
        for frame in place.frames():
            yield Mark(frame.number, frame.offset, frame.first_seq), frame.records()

    def raw(self, from_seq: int = 0) -> Iterator[dict[str, Any]]:
        """Yield all lines from `from_seq` on as they stand in the file: neither upcast nor validated."""
        place = _Place(self.folder, from_seq)
        for frame in place.frames():
            yield from frame.raw()

    def follow(
        self, from_seq: int = 0, *, poll_s: float = 0.2, until_finished: bool = True
    ) -> Iterator[Record]:
        """Yield records as `records` does, then wait for more, looking every `poll_s` seconds.

        For another process than the writer's: it blocks between looks. Waits for a log that does not exist
        yet. With `until_finished` it ends when the last event is RunFinished or RunFailed; otherwise only
        with the caller.
        """
        place = _Place(self.folder, from_seq)
        finished = False
        while True:
            for frame in place.frames():
                for record in frame.records():
                    finished = isinstance(record.event, RunFinished | RunFailed)
                    yield record
            if finished and until_finished:
                return
            time.sleep(poll_s)

    @property
    def torn_tail(self) -> TornTail | None:
        """What a crash left at the end, or None. Raises `LogDamaged` if the last segment cannot be trusted.

        While a writer is at work this may be the frame that it is just writing.
        """
        place = _Place(self.folder, None)
        for _ in place.frames():
            pass
        return place.torn


def cut_torn_tail(folder: Path) -> TornTail | None:
    """Remove the torn tail of the log in `folder`, durably, and say what it was; None if there is none.

    The bytes are kept beside the segment, in ``<segment>.torn-<offset>``, which no reader takes for a part of the log.
    For opening a log to write, under the run's lock. Raises `LogDamaged` rather than cut anything but a tail.
    """
    torn = LogReader(folder).torn_tail
    if torn is None:
        return None
    path = folder / torn.segment
    kept = _keep(path, torn.offset)
    if torn.offset == 0:
        path.unlink()  # not even its header is whole
    else:
        with path.open("r+b") as file:
            file.truncate(torn.offset)
            os.fsync(file.fileno())
    sync_folder(folder)
    return torn._replace(kept=kept.name)


def _keep(path: Path, offset: int) -> Path:
    """Copy what lies behind `offset` of a segment to a file of its own, durably, and return that file."""
    with path.open("rb") as file:
        file.seek(offset)
        tail = file.read()
    copy, count = path.with_name(f"{path.name}.torn-{offset}"), 1
    while copy.exists():  # a number that was used before: the segment had not even a header
        count += 1
        copy = path.with_name(f"{path.name}.torn-{offset}-{count}")
    with copy.open("xb") as file:
        file.write(tail)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return copy


class _Frame(NamedTuple):
    """The lines of one frame, and where they are from."""

    number: int
    """Of its segment."""
    offset: int
    lines: list[bytes]
    first_seq: int
    """Seq that the first line must have."""
    from_seq: int
    """Seq below which lines are checked and not handed out."""

    def records(self) -> Iterator[Record]:
        skip = max(0, self.from_seq - self.first_seq)
        for expected, line in enumerate(self.lines[skip:], self.first_seq + skip):
            try:
                record = decode(line)
            except ValueError as error:
                raise self._damaged(expected, str(error)) from None
            if record.seq != expected:
                raise self._gap(expected, record.seq)
            yield record

    def raw(self) -> Iterator[dict[str, Any]]:
        skip = max(0, self.from_seq - self.first_seq)
        for expected, line in enumerate(self.lines[skip:], self.first_seq + skip):
            try:
                fields = decode_raw(line)
            except ValueError as error:
                raise self._damaged(expected, str(error)) from None
            if fields.get("seq") != expected:
                raise self._gap(expected, fields.get("seq"))
            yield fields

    def check_ends(self) -> None:
        """Check the first and the last line: enough to notice a lost or foreign frame without reading it all."""
        for expected, line in (
            (self.first_seq, self.lines[0]),
            (self.first_seq + len(self.lines) - 1, self.lines[-1]),
        ):
            try:
                seq = decode_envelope(line).seq
            except ValueError as error:
                raise self._damaged(self.first_seq, str(error)) from None
            if seq != expected:
                raise self._gap(self.first_seq, seq)

    def _gap(self, expected: int, found: object) -> LogDamaged:
        return self._damaged(expected, f"seq {found} follows seq {expected - 1}")

    def _damaged(self, expected: int, reason: str) -> LogDamaged:
        return LogDamaged(segment_name(self.number), self.offset, expected - 1, reason)


class _Place:
    """How far a reading has come. `frames` goes on from there, as often as it is asked."""

    def __init__(self, folder: Path, from_seq: int | None) -> None:
        self.torn: TornTail | None = None
        self._folder = folder
        self._from_seq = from_seq  # None: only the end matters
        self._number = 0  # segment
        self._offset = 0  # where its next frame begins; 0: its header is not read yet
        self._next_seq = 0
        self._epoch = 0
        self._run: str | None = None

    def jump(self, mark: Mark) -> None:
        """Stand where `mark` says, before the first look."""
        if self._folder.is_dir():
            self._check_numbers(segment_numbers(self._folder))
        self._number, self._offset, self._next_seq = mark

    def frames(self) -> Iterator[_Frame]:
        """Yield all whole frames of records that are there now, from this place on; skip what lies before."""
        if not self._folder.is_dir():
            return
        numbers = segment_numbers(self._folder)
        if self._number == 0 and numbers:
            self._check_numbers(numbers)
            self._number = self._first_segment(numbers)
        while self._number in numbers:
            yield from self._segment_frames(is_last=self._number == numbers[-1])
            if self._number == numbers[-1]:
                newer = segment_numbers(self._folder)
                if newer[-1] == self._number:
                    return
                # The writer moved on, so this segment is complete: look for what came since, then leave it.
                self._check_numbers(newer)
                numbers = newer
                continue
            self._number, self._offset = self._number + 1, 0

    def _check_numbers(self, numbers: list[int]) -> None:
        for expected, number in enumerate(numbers, 1):
            if number != expected:
                raise LogDamaged(
                    segment_name(number), 0, self._next_seq - 1, f"{segment_name(expected)} is missing"
                )

    def _first_segment(self, numbers: list[int]) -> int:
        """Return the segment that holds `from_seq`, found by headers alone; and stand at its beginning."""
        for number in reversed(numbers[1:]):
            with (self._folder / segment_name(number)).open("rb") as file:
                try:
                    header = parse_header(next(read_frames(file))[1])
                except (FrameBad, StopIteration, ValueError):
                    continue  # torn or damaged: reading on from the one before will say which
            if self._from_seq is None or header.first_seq <= self._from_seq:
                self._next_seq = header.first_seq
                return number
        return 1

    def _segment_frames(self, *, is_last: bool) -> Iterator[_Frame]:
        self.torn = None
        name = segment_name(self._number)
        with (self._folder / name).open("rb", buffering=2**18) as file:
            file.seek(self._offset)
            try:
                for end, content in read_frames(file):
                    begin, is_header = self._offset, self._offset == 0
                    if is_header:
                        self._enter(name, content)
                        self._offset = end
                        continue
                    frame = self._frame(name, begin, content)
                    self._offset = end
                    if frame is not None:
                        yield frame
            except FrameBad as bad:
                self._judge(name, bad, is_last=is_last)
            else:
                if self._offset == 0:  # an empty file: created, and then the crash
                    self._judge(name, FrameBad("an empty file", torn=True), is_last=is_last)

    def _frame(self, name: str, begin: int, content: bytes) -> _Frame | None:
        """Return the frame if it reaches `from_seq`, and count it in any case."""
        seal = parse_seal(content)
        if seal is not None:
            if seal.last_seq != self._next_seq - 1:
                raise LogDamaged(
                    name, begin, self._next_seq - 1, f"the segment was sealed after seq {seal.last_seq}"
                )
            return None
        if not content.endswith(b"\n"):
            raise LogDamaged(name, begin, self._next_seq - 1, "a frame that ends within a line")
        lines = content[:-1].split(b"\n")
        frame = _Frame(self._number, begin, lines, self._next_seq, self._from_seq or 0)
        frame.check_ends()
        self._next_seq += len(lines)
        return frame if self._from_seq is not None and self._next_seq > self._from_seq else None

    def _enter(self, name: str, content: bytes) -> None:
        """Check the header of a segment against what came before."""
        last_seq = self._next_seq - 1
        try:
            header = parse_header(content)
        except ValueError as error:
            raise LogDamaged(name, 0, last_seq, str(error)) from None
        if header.first_seq != self._next_seq:
            raise LogDamaged(name, 0, last_seq, f"it begins with seq {header.first_seq}")
        if header.epoch < self._epoch:
            raise LogDamaged(
                name, 0, last_seq, f"it is of writer {header.epoch}, after one of writer {self._epoch}"
            )
        if self._run is not None and header.run != self._run:
            raise LogDamaged(name, 0, last_seq, f"it is of run '{header.run}', not '{self._run}'")
        self._epoch, self._run = header.epoch, header.run

    def _judge(self, name: str, bad: FrameBad, *, is_last: bool) -> None:
        """Decide whether the bad frame at this place is a torn tail; raise `LogDamaged` if it is not."""
        last_seq = self._next_seq - 1
        with (self._folder / name).open("rb") as file:
            file.seek(self._offset)
            rest = file.read()
        good = find_good_frame(rest)
        if good == 0:
            return  # a writer at work has completed it meanwhile: the next look will find it
        # A foreign file is not the torn beginning of a segment, however short it is.
        foreign = self._offset == 0 and not bad.torn
        if not is_last or foreign or good > 0:
            raise LogDamaged(name, self._offset, last_seq, str(bad))
        self.torn = TornTail(name, self._offset, len(rest), last_seq)
