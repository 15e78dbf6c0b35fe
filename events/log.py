"""The writer of the log: a thread that turns records into durable frames by group commit.

The loop hands lines over and goes on. The thread takes all that piled up meanwhile, lets the payload store reach
the disk first, writes one frame and calls fdatasync; only then is the last of those records acknowledged. The
slower the disk, the larger the groups, so the rate holds while only the delay grows.

A record is encoded when it is appended, in the loop's thread: that takes under a microsecond while it is fresh, and
twice that in the thread, which would also take the interpreter away from the loop for it.

A failed write or sync is final: after it nobody knows what is on the disk beyond the last acknowledged
record, so nothing more is written or acknowledged, and the run ends with `LogWriteError`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .codec import encode
from .errors import LogWriteError
from .record import Record
from .segment import (
    FORMAT,
    FrameWriter,
    Header,
    Seal,
    marker_line,
    parse_header,
    read_frames,
    segment_name,
    segment_numbers,
)

LEVEL = 1
"""Of zstd. Measured on frames of 64 to 8,192 events, level 3 gives larger frames and takes a third longer."""
GROUP_RECORDS_MAX = 2048
"""In one frame: it compresses as well as larger ones."""
GROUP_BYTES_MAX = 16 * 2**20
"""Of JSON in one frame; a single larger record still gets a frame of its own."""
GATHER_S = 0.01
"""Between the first record of a group and its commit, unless somebody waits for the disk: fewer and larger groups cost
less of both threads' time."""
CLOSE_DEADLINE_S = 60.0


def code_version() -> str:
    """Return the version of eventrain that runs."""
    try:
        return version("eventrain")
    except PackageNotFoundError:
        return "unknown"


class LogWriter:
    """Writes one run's records to the segments in `folder`; one writer per process and run.

    `first_seq` continues what is there and `epoch` is larger than that of any writer before. A new writer
    always begins a new segment; one ends at `segment_bytes` of compressed size. `before_commit` is called, in
    the thread, before each frame is written: what records refer to gets durable there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run: str,
        epoch: int,
        first_seq: int,
        segment_bytes: int,
        before_commit: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._segments = Segments(folder, run, epoch, segment_bytes)
        self._before_commit = tuple(before_commit)
        self._next_seq = first_seq  # of the next record to be taken, checked at append
        self._durable_seq = first_seq - 1
        self._pending: deque[bytes] = deque()  # lines, appended to by the loop, popped from by the thread
        self._wake = threading.Event()  # cleared before `_pending` is read, so no wake is lost
        self._hurry = threading.Event()
        self._closing = False
        self._error: LogWriteError | None = None
        self._thread: threading.Thread | None = None
        self._on_durable: Callable[[int], None] = _nobody
        self._on_error: Callable[[LogWriteError], None] = _nobody

    def start(self, on_durable: Callable[[int], None], on_error: Callable[[LogWriteError], None]) -> None:
        """Start the thread.

        It calls `on_durable` with the highest seq on disk after each commit, and `on_error` once, when writing
        has failed for good.
        """
        if self._thread is not None:
            raise RuntimeError("the log writer is already started")
        self._on_durable, self._on_error = on_durable, on_error
        self._thread = threading.Thread(target=self._work, name="eventrain-log", daemon=True)
        self._thread.start()

    def append(self, record: Record) -> None:
        """Take the next record to be written; never blocks. After an error it is dropped, unacknowledged."""
        if record.seq != self._next_seq:
            raise ValueError(f"the log goes on with seq {self._next_seq}, not {record.seq}")
        if self._closing:
            raise RuntimeError("the log writer is closed")
        line = encode(record)
        self._next_seq += 1
        if self._error is None:
            self._pending.append(line)
            if not self._wake.is_set():
                self._wake.set()

    def hurry(self) -> None:
        """Commit what was appended without waiting for more of it."""
        self._hurry.set()

    def close(self) -> None:
        """Write everything, seal the segment and end the thread. Idempotent.

        Blocks up to `CLOSE_DEADLINE_S`. Raises `LogWriteError` if anything appended is not on the disk.
        """
        self._closing = True
        self._hurry.set()
        if self._thread is None:
            self.start(_nobody, _nobody)
        assert self._thread is not None
        self._wake.set()
        self._thread.join(CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            raise LogWriteError(
                f"the disk did not take the log within {CLOSE_DEADLINE_S:.0f} s; "
                f"{self._next_seq - 1 - self._durable_seq} events are not saved"
            )
        if self._error is not None:
            raise self._error

    # The thread

    def _work(self) -> None:
        try:
            while True:
                self._wake.clear()  # before both reads below, so that neither an append nor a close is missed
                closing = self._closing
                while self._pending:
                    if not closing and len(self._pending) < GROUP_RECORDS_MAX:
                        self._hurry.wait(GATHER_S)
                    self._hurry.clear()  # before the group is taken: who comes later hurries the next one
                    self._commit()
                if closing:
                    break
                self._wake.wait()
            self._segments.seal(self._durable_seq)
        except Exception as error:  # noqa: BLE001 - a thread has no caller: the run must hear of anything
            self._error = _write_error(error, self._segments.folder)
            self._error.__cause__ = error
            self._pending.clear()
            self._segments.abandon()
            self._on_error(self._error)

    def _commit(self) -> None:
        """Write what is pending, as far as one frame may hold it."""
        content, last_seq = self._gather()
        for hook in self._before_commit:
            hook()
        self._segments.write(content, first_seq=self._durable_seq + 1, last_seq=last_seq)
        self._durable_seq = last_seq
        self._on_durable(last_seq)

    def _gather(self) -> tuple[bytearray, int]:
        """Return the lines of the next group, and the seq of the last one."""
        content, pending, taken = bytearray(), self._pending, 0
        while pending and taken < GROUP_RECORDS_MAX and len(content) < GROUP_BYTES_MAX:
            content += pending.popleft()
            taken += 1
        return content, self._durable_seq + taken


class Segments:
    """The file that is being written, and the step to the next one."""

    def __init__(self, folder: Path, run: str, epoch: int, segment_bytes: int) -> None:
        self.folder = folder
        self._run = run
        self._epoch = epoch
        self._segment_bytes = segment_bytes
        self._frames = FrameWriter(LEVEL)
        self._file = -1
        self._number = 0
        self._size = 0

    def write(self, content: bytearray, *, first_seq: int, last_seq: int) -> None:
        """Make the lines of one group durable."""
        if self._file < 0:
            self._open(first_seq)
        self._write_frame(self._frames.frame(content))
        if self._size >= self._segment_bytes:
            self.seal(last_seq)

    def seal(self, last_seq: int) -> None:
        """Close the segment, if one is open, with the line that says it is whole."""
        if self._file >= 0:
            self._write_frame(self._frames.frame(marker_line(Seal(last_seq))))
            os.close(self._file)
            self._file = -1

    def abandon(self) -> None:
        """Close the file after an error, cut back to its last durable frame if the disk still allows that."""
        if self._file < 0:
            return
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            pass  # the reader stops at the last whole frame anyway
        finally:
            os.close(self._file)
            self._file = -1

    def _open(self, first_seq: int) -> None:
        numbers = segment_numbers(self.folder)
        self._number = numbers[-1] + 1 if numbers else 1
        if numbers:
            self._refuse_newer_epoch(numbers[-1])
        path = self.folder / segment_name(self._number)
        # O_EXCL: a second writer that got past the lock loses here, before it can overwrite anything.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._size = 0
        header = Header(FORMAT, self._run, self._epoch, first_seq, code_version())
        self._write_frame(self._frames.frame(marker_line(header)))
        sync_folder(self.folder)

    def _refuse_newer_epoch(self, number: int) -> None:
        with (self.folder / segment_name(number)).open("rb") as file:
            _, content = next(read_frames(file))
        last = parse_header(content)
        if last.epoch > self._epoch:
            raise LogWriteError(
                f"segment {segment_name(number)} is of writer {last.epoch}, this is writer {self._epoch}: "
                "another process took over the run"
            )

    def _write_frame(self, frame: bytes) -> None:
        rest = memoryview(frame)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        os.fdatasync(self._file)
        self._size += len(frame)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(error: Exception, folder: Path) -> LogWriteError:
    if isinstance(error, LogWriteError):
        return error
    reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
    return LogWriteError(f"the event log in {folder} could not be written: {reason}")


def _nobody(_: object) -> None:
    """Take a report that nobody waits for."""
