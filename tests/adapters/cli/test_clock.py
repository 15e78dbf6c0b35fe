"""The clock of a real run is the machine's."""

from __future__ import annotations

import asyncio
import time

from eventrain.adapters.clock import SystemClock


def test_time_passes_while_sleeping() -> None:
    """Both clocks go forward by at least the time slept, and UTC is the machine's."""
    clock = SystemClock()
    utc_ns, mono_ns = clock.utc_ns(), clock.mono_ns()
    asyncio.run(clock.sleep(0.01))
    assert clock.mono_ns() - mono_ns >= 9_000_000
    assert clock.utc_ns() > utc_ns
    assert abs(clock.utc_ns() - time.time_ns()) < 1_000_000_000
