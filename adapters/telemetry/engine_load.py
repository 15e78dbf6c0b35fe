"""The actor that asks engines which count for themselves how busy they are, and publishes it as `EngineSampled`.

The run knows what it has sent to an engine. What it cannot know is what the engine makes of that: how much of it
decodes and how much waits in the engine's own queue, how full its KV cache is, and what had to be put back for want of
cache. That tells an engine with too few slots from one with too little memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ...core.failures import one_line
from ...core.ports import Clock, Engine, PortError
from ...core.projections import View
from ...events.bus import Bus
from ...events.types import EngineSampled, TelemetryDegraded

ACTOR = "telemetry"
DEADLINE_S = 5.0
"""How long an engine may take to answer."""
FAILURES_MAX = 5
"""Failures in a row, while the engine serves, after which it is not asked any more."""


@runtime_checkable
class CountsForItself(Protocol):
    """An engine that can say how busy it is. Those that can not need not have it."""

    name: str

    async def sampled(self) -> EngineSampled | None:
        """Return its load now; None while there is none to speak of. Raises `PortError`."""
        ...


class EngineLoadSampler:
    """Asks each engine that counts for itself, every `interval_s`, as long as the run goes on.

    No sample is taken while more than `unsaved_max` events wait for the disk, nor of an engine that does not serve.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        engines: Sequence[Engine],
        interval_s: float,
        view: View,
        *,
        unsaved_max: int = 4096,
    ) -> None:
        self.engines = [engine for engine in engines if isinstance(engine, CountsForItself)]
        self._bus = bus
        self._clock = clock
        self._interval_s = interval_s
        self._view = view
        self._unsaved_max = unsaved_max

    async def run(self) -> None:
        """Sample until the run has ended. Cancelled, it stops at once; it raises nothing else."""
        async with asyncio.TaskGroup() as followers:
            for engine in self.engines:
                followers.create_task(self._follow(engine), name=f"load of {engine.name}")

    async def _follow(self, engine: CountsForItself) -> None:
        failures = 0
        while True:
            await self._clock.sleep(self._interval_s)
            if self._over():
                return
            status = self._view.engines.by_name.get(engine.name)
            if (
                status is None
                or status.state not in ("serving", "paused")
                or self._bus.unsaved > self._unsaved_max
            ):
                continue
            try:
                async with asyncio.timeout(DEADLINE_S):
                    sample = await engine.sampled()
            except (PortError, TimeoutError) as error:
                failures += 1
                if failures < FAILURES_MAX:
                    continue
                if not self._over():
                    late = isinstance(error, TimeoutError)
                    why = f"no answer within {DEADLINE_S:g} s" if late else one_line(error)
                    missing = f"load of {engine.name}: {why}"
                    self._bus.publish(
                        ACTOR, TelemetryDegraded(part="metrics", missing=missing, works="all else")
                    )
                return
            failures = 0
            if self._over():
                return
            if sample is not None:
                self._bus.publish(ACTOR, sample)

    def _over(self) -> bool:
        self._bus.fold()
        return self._view.trainer.finished or self._bus.closed
