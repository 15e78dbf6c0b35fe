"""An event loop whose time jumps to the next timer: hours pass in milliseconds, and a stall is an exception."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stalled(Exception):
    """Nothing is ready, no timer runs and nobody outside can wake the loop: it would wait for ever."""


class _JumpingSelector(selectors.SelectSelector):
    """Never sleeps; moves the loop's time by what it was asked to wait instead."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Stalled("every task waits, and no timer runs")
            self.loop.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time; `time` starts at 0. Threads and sockets do not belong in it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return virtual seconds."""
        return self.now_s


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in virtual time and return its result. Raises `Stalled` instead of waiting for ever."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


class VirtualClock:
    """`eventrain.core.ports.Clock` on the running loop's time."""

    start_utc_ns = 1_700_000_000 * 10**9

    def utc_ns(self) -> int:
        """Return virtual UTC nanoseconds."""
        return self.start_utc_ns + self.mono_ns()

    def mono_ns(self) -> int:
        """Return virtual monotonic nanoseconds."""
        return round(asyncio.get_running_loop().time() * 1e9)

    async def sleep(self, seconds: float) -> None:
        """Let virtual seconds pass. Cancelling ends it at once."""
        await asyncio.sleep(seconds)
