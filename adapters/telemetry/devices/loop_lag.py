"""How late the controller's event loop is with timers: what blocks it, blocks everybody."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import dataclass, field

from ....core.projections import View
from ....events.bus import Bus
from ....events.types import LOOP_LAG_BOUNDS_S, LoopLagSampled
from .sampler import ACTOR, is_over

TIMER_S = 0.1
WINDOW_S = 5.0


@dataclass
class Lags:
    """How late timers were, by bucket; the last bucket has what is above all bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LOOP_LAG_BOUNDS_S) + 1))
    sum_s: float = 0.0
    max_s: float = 0.0

    def add(self, late_s: float) -> None:
        """Count one timer that was `late_s` seconds late, in the first bucket whose bound is not below that."""
        self.counts[bisect_left(LOOP_LAG_BOUNDS_S, late_s)] += 1
        self.sum_s += late_s
        self.max_s = max(self.max_s, late_s)


class LoopLagSampler:
    """Sets a timer every 100 ms and publishes every 5 s how late they were, in the loop's own time."""

    def __init__(self, bus: Bus, view: View, *, unsaved_max: int = 4096) -> None:
        self._bus = bus
        self._view = view
        self._unsaved_max = unsaved_max

    async def run(self) -> None:
        """Measure until the run has ended. Cancelled, it stops at once; the window that is open is not published."""
        loop = asyncio.get_running_loop()
        lags, began_s = Lags(), loop.time()
        while True:
            due_s = loop.time() + TIMER_S
            await asyncio.sleep(TIMER_S)
            lags.add(max(0.0, loop.time() - due_s))
            if is_over(self._bus, self._view):
                return
            if loop.time() - began_s < WINDOW_S or self._bus.unsaved > self._unsaved_max:
                continue
            self._bus.publish(
                ACTOR,
                LoopLagSampled(
                    window_s=loop.time() - began_s,
                    counts=tuple(lags.counts),
                    sum_s=lags.sum_s,
                    max_s=lags.max_s,
                ),
            )
            lags, began_s = Lags(), loop.time()
