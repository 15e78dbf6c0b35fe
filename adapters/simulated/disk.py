"""A simulated disk under the event log: the bus's `Writer` in virtual time.

It commits in groups as the real one does: what piled up while a commit was on its way is the next one. Each takes the
latency that `commit_s` says; a disk that is full takes nothing more, and says so once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...events.errors import LogWriteError
from ...events.record import Record


class SimulatedDisk:
    """Acknowledges each commit after ``commit_s()`` virtual seconds; full before event `full_at`."""

    def __init__(self, commit_s: Callable[[], float], *, full_at: int | None = None) -> None:
        self.records: list[Record] = []
        """Everything that was published, durable or not."""
        self.durable_seq = -1
        self.committing_seq = -1
        """Newest event of the commit that is on its way: a crash may keep it, or not."""
        self._commit_s = commit_s
        self._full_at = full_at
        self._busy = False
        self.full = False
        self._on_durable: Callable[[int], None] | None = None
        self._on_error: Callable[[LogWriteError], None] | None = None

    def start(self, on_durable: Callable[[int], None], on_error: Callable[[LogWriteError], None]) -> None:
        """Begin to commit."""
        self._on_durable, self._on_error = on_durable, on_error
        self._commit()

    def append(self, record: Record) -> None:
        """Take the record."""
        self.records.append(record)
        self._commit()

    def hurry(self) -> None:
        """Commit as ever: a group takes its time here, and waits for nothing else."""

    def _commit(self) -> None:
        if self._busy or self.full or self._on_durable is None or not self.records:
            return
        last_seq = self.records[-1].seq
        if last_seq > self.durable_seq:
            self._busy, self.committing_seq = True, last_seq
            asyncio.get_running_loop().call_later(self._commit_s(), self._committed, last_seq)

    def _committed(self, last_seq: int) -> None:
        assert self._on_durable is not None
        assert self._on_error is not None
        self._busy = False
        if self._full_at is not None and last_seq >= self._full_at:
            self.full = True
            self._on_error(LogWriteError("the event log could not be written: no space left on device"))
            return
        self.durable_seq = last_seq
        self._on_durable(last_seq)
        self._commit()
