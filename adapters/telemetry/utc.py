"""Which time stands in a trace: UTC that never goes back, and whose differences are true durations."""

from __future__ import annotations

from ...events.record import Record
from ...events.types import RunResumed


class UtcClock:
    """Nanoseconds since the epoch, taken from a log.

    `Record.ts` alone would not do: a machine's clock is set while a run goes on, what is shown would get a wrong length
    or end before it begins. `Record.mono` alone knows no date, and does not count the time between a crash and the
    resume. So UTC is read once in each life of a run, from its first event, and goes on by `mono` from there. The time
    between two lives is the difference of their UTC times, and is a gap; where UTC went back meanwhile, the second life
    begins where the first one ended.
    """

    def __init__(self) -> None:
        self.now = 0
        """Time of the last record."""
        self.since = 0
        """When this life of the run began."""
        self._offset: int | None = None  # UTC less mono, in this life

    def advance(self, record: Record) -> int:
        """Go on to `record` and return its time; to be told of every record, in their order.

        Never back, also where events of several machines are not in order.
        """
        if self._offset is None or type(record.event) is RunResumed:
            self.since = max(record.ts, self.now)
            self._offset = self.since - record.mono
        self.now = max(self.now, self._offset + record.mono)
        return self.now
