"""Real time for a run: the one place outside core/ where its clock comes from."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Tell the machine's time and let it pass; implements `eventrain.core.ports.Clock`."""

    def utc_ns(self) -> int:
        """Return UTC nanoseconds since the epoch."""
        return time.time_ns()

    def mono_ns(self) -> int:
        """Return monotonic nanoseconds; only differences within one process mean anything."""
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass. Cancelling ends the sleep at once and changes nothing."""
        await asyncio.sleep(seconds)
