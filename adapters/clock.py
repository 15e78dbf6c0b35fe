"""Real time for a run: the one place outside core/ where its clock comes from."""

from __future__ import annotations

import asyncio
import time

from ..events.record import Record


class SystemClock:
    """Tell the machine's time and let it pass; implements `eventrain.core.ports.Clock`.

    With `after`, the last record of a log, monotonic time goes on from there: the time that nobody ran is the
    difference in UTC. So durations mean the same across a resume, on another machine too.
    """

    def __init__(self, after: Record | None = None) -> None:
        self._offset_ns = 0
        if after is not None:
            idle_ns = max(0, time.time_ns() - after.ts)
            self._offset_ns = after.mono + idle_ns - time.monotonic_ns()

    def utc_ns(self) -> int:
        """Return UTC nanoseconds since the epoch."""
        return time.time_ns()

    def mono_ns(self) -> int:
        """Return monotonic nanoseconds; only differences mean anything."""
        return time.monotonic_ns() + self._offset_ns

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass. Cancelling ends the sleep at once and changes nothing."""
        await asyncio.sleep(seconds)
