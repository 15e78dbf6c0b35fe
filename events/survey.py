"""A look at a whole log, damaged or not: every place that is wrong, and what can be read before and behind it.

`LogReader` stops at the first place that cannot be trusted, which is right for whatever goes on from a log. This one
says what is wrong with it: it notes the place, looks for the next good frame, and goes on there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .codec import decode, decode_envelope
from .errors import LogTooNew
from .reader import TornTail
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


class Damage(NamedTuple):
    """A place of the log that is wrong."""

    segment: str
    offset: int
    """Of the frame that is wrong, in the segment's file."""
    reason: str
    from_seq: int
    """Seq from which on the log cannot be trusted: the one that should stand here."""


class Survey:
    """Reads the log in `folder` (the run's ``events/``) once, from its first segment to its last."""

    def __init__(self, folder: Path) -> None:
        self.damages: list[Damage] = []
        self.torn: TornTail | None = None
        self.segments = 0
        self.readable: list[tuple[int, int]] = []
        """First and last seq of every unbroken stretch of valid events, in the order in which they lie in the files."""
        self._folder = folder
        self._next_seq = 0
        self._epoch = 0
        self._run: str | None = None
        self._lost = False  # some events before this place are gone, so any seq may follow

    def records(self) -> Iterator[Record]:
        """Yield every event that is whole and valid; those before the first damage are exactly what `LogReader` gives.

        Nothing is raised for what is wrong with the log: it stands in `damages` and `torn` once it has been passed.
        """
        numbers = segment_numbers(self._folder) if self._folder.is_dir() else []
        expected = 1
        for number in numbers:
            for missing in range(expected, number):
                self._wrong(segment_name(missing), 0, "the file is missing")
                self._lost = True
            expected = number + 1
            self.segments += 1
            for record in self._segment(segment_name(number), is_last=number == numbers[-1]):
                self._note(record.seq)
                yield record

    def _note(self, seq: int) -> None:
        if self.readable and self.readable[-1][1] == seq - 1:
            self.readable[-1] = (self.readable[-1][0], seq)
        else:
            self.readable.append((seq, seq))

    def _wrong(self, segment: str, offset: int, reason: str) -> None:
        self.damages.append(Damage(segment, offset, reason, self._next_seq))

    def _segment(self, name: str, *, is_last: bool) -> Iterator[Record]:
        offset = 0
        with (self._folder / name).open("rb", buffering=2**18) as file:
            while True:
                try:
                    for end, content in read_frames(file):
                        begin, offset = offset, end
                        if begin:
                            yield from self._frame(name, begin, content)
                        elif not self._enter(name, content):
                            return
                    bad = None if offset else FrameBad("an empty file", torn=True)
                except FrameBad as error:
                    bad = error
                if bad is None or (skipped := self._skipped(file, name, offset, bad, is_last=is_last)) < 0:
                    return
                offset += skipped
                file.seek(offset)

    def _skipped(self, file: BinaryIO, name: str, offset: int, bad: FrameBad, *, is_last: bool) -> int:
        """Note what is wrong at `offset`, and return how many bytes behind it a good frame begins; -1 if none does."""
        file.seek(offset)
        rest = file.read()
        good = find_good_frame(rest)
        if good == 0:
            return 0  # a writer at work has completed it meanwhile
        if good < 0 and is_last and (offset > 0 or bad.torn):
            self.torn = TornTail(name, offset, len(rest), self._next_seq - 1)
        else:
            self._wrong(name, offset, str(bad))
            self._lost = True
        return good

    def _enter(self, name: str, content: bytes) -> bool:
        """Check a segment's header, and say whether what follows it is of this log."""
        try:
            header = parse_header(content)
        except ValueError as error:
            self._wrong(name, 0, str(error))
            self._lost = True
            return False
        if self._run is not None and header.run != self._run:
            self._wrong(name, 0, f"it is of run '{header.run}', not '{self._run}'")
            self._lost = True
            return False
        if header.first_seq != self._next_seq:
            if not self._lost or header.first_seq < self._next_seq:
                self._wrong(name, 0, f"it begins with seq {header.first_seq}")
            self._next_seq = header.first_seq
        self._lost = False
        if header.epoch < self._epoch:
            self._wrong(name, 0, f"it is of writer {header.epoch}, after one of writer {self._epoch}")
        self._epoch, self._run = max(header.epoch, self._epoch), header.run
        return True

    def _frame(self, name: str, begin: int, content: bytes) -> Iterator[Record]:
        try:
            seal = parse_seal(content)
        except ValueError as error:
            self._wrong(name, begin, f"a seal that cannot be read ({error})")
            return
        if seal is not None:
            if self._lost and seal.last_seq >= self._next_seq - 1:
                self._next_seq, self._lost = seal.last_seq + 1, False
            elif seal.last_seq != self._next_seq - 1:
                self._wrong(name, begin, f"the segment was sealed after seq {seal.last_seq}")
            return
        if not content.endswith(b"\n"):
            self._wrong(name, begin, "a frame that ends within a line")
        for line in content.rstrip(b"\n").split(b"\n"):
            record = self._line(name, begin, line)
            if record is not None:
                yield record

    def _line(self, name: str, begin: int, line: bytes) -> Record | None:
        try:
            seq = decode_envelope(line).seq
            if seq != self._next_seq:
                if not self._lost or seq < self._next_seq:
                    self._wrong(name, begin, f"seq {seq} follows seq {self._next_seq - 1}")
                self._next_seq = seq
            self._lost = False
            record = decode(line)
        except (ValueError, LogTooNew) as error:
            self._wrong(name, begin, " ".join(str(error).split()))
            record = None
        self._next_seq += 1
        return record
