"""The devices of a simulated run: what a sampler would have measured of its engines and its learner.

A device is busy while it has any work, and its multiprocessors are in use as far as its slots are. The log then tells
utilisation by phase as a real one does, only that here the truth is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Literal

from ...core.ports import Clock
from ...core.run import Run
from ...events.types import DeviceSampled
from .engine import SimulatedEngine
from .world import SimulatedLearner, Use

MEMORY_BYTES = 80 * 2**30
Pool = Literal["engine", "learner"]


class SimulatedDevices:
    """Samples every device each `every_s` virtual seconds, and where the trainer's phase changes."""

    def __init__(
        self, run: Run, clock: Clock, engines: Sequence[SimulatedEngine], learner: SimulatedLearner, every_s: float
    ) -> None:
        self._run = run
        self._clock = clock
        self._every_s = every_s
        self._devices: list[tuple[str, Pool, Use]] = [
            *((f"cuda:{place}", "engine", engine.use) for place, engine in enumerate(engines)),
            (f"cuda:{len(engines)}", "learner", learner.use),
        ]
        self._before: dict[str, tuple[int, float]] = {}
        self._since_ns = 0

    async def publish(self) -> None:
        """Publish samples until the run has ended. Cancelling ends it between two samples."""
        trainer = self._run.view.trainer
        self._since_ns = self._clock.mono_ns()
        while True:
            phase = trainer.phase
            try:
                async with asyncio.timeout(self._every_s):
                    await self._run.bus.watch(lambda phase=phase: trainer.finished or trainer.phase != phase)  # type: ignore[misc]
            except TimeoutError:
                pass
            if trainer.finished:
                return
            for sample in self._samples():
                self._run.bus.publish("telemetry", sample)

    def _samples(self) -> Iterator[DeviceSampled]:
        now_ns = self._clock.mono_ns()
        window_ns, self._since_ns = now_ns - self._since_ns, now_ns
        for device, pool, use in self._devices if window_ns else ():
            use.settle()
            busy_ns, work_ns = self._before.get(device, (0, 0.0))
            self._before[device] = use.busy_ns, use.work_ns
            yield DeviceSampled(
                device=device,
                pool=pool,
                utilization=min(1.0, max(0, use.busy_ns - busy_ns) / window_ns),
                sm_active=min(1.0, max(0.0, use.work_ns - work_ns) / window_ns),
                memory_bytes=MEMORY_BYTES * 3 // 4,
                memory_total_bytes=MEMORY_BYTES,
                window_s=window_ns / 1e9,
                source="simulated",
            )
