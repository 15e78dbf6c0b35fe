"""The actor that asks the sources, and publishes what they read as `DeviceSampled`.

A sample covers the time since the one before. One is taken every so often, and one where the trainer's phase changes,
so that windows end where phases do, and use can be told apart by phase.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from ....core.failures import one_line
from ....core.ports import Clock
from ....core.projections import View
from ....events.bus import Bus
from ....events.types import DeviceSampled, TelemetryDegraded
from .pools import DevicePools
from .source import DeviceSource, Reading, SourceAbsent
from .worker_thread import Worker, WorkerThread

T = TypeVar("T")

ACTOR = "telemetry"
GAP_S = 0.02
"""Shortest time between two samples: phases that change faster share one."""
DEADLINE_S = 5.0
"""How long a source may take to answer."""
FAILURES_MAX = 3
"""Failures in a row after which a source is given up."""


def is_over(bus: Bus, view: View) -> bool:
    """Return whether nothing more may be published: the last event of a log is the end of the run."""
    try:
        bus.fold()
    except Exception:  # noqa: BLE001 - the run is about to fail with it
        return True
    return view.trainer.finished or bus.closed


class SourceHangs(Exception):
    """A source has not answered in time; its thread may be lost for good."""


class DeviceSampler:
    """Samples `sources` as long as the run goes on. It has to be made before the run publishes its first event.

    No sample is taken while more than `unsaved_max` events wait for the disk; the next window is longer then. A source
    that fails a few times in a row, or does not answer in time, is given up: `TelemetryDegraded` says so once.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        sources: Sequence[DeviceSource],
        interval_s: float,
        view: View,
        *,
        unsaved_max: int = 4096,
        worker: Callable[[str], Worker] = WorkerThread,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._sources = sources
        self._interval_s = interval_s
        self._view = view
        self._unsaved_max = unsaved_max
        self._worker = worker
        self._pools = bus.register(DevicePools())
        self._sampled: dict[str, None] = {source.name: None for source in sources}

    async def run(self) -> None:
        """Sample until the run has ended, or no source is left.

        Cancelled, it stops at once: what a source is just reading is not published, and what it held is let go of
        in its own thread. It raises nothing else.
        """
        async with asyncio.TaskGroup() as followers:
            for source in self._sources:
                followers.create_task(self._follow(source), name=f"devices {source.name}")

    async def _follow(self, source: DeviceSource) -> None:
        """Open one source, sample it, and close it; what goes wrong ends with the source."""
        worker = self._worker(f"eventrain {source.name}")
        try:
            await _answered(worker, source.open)
            await self._sample(source, worker)
        except SourceAbsent:
            self._sampled.pop(source.name)
        except Exception as error:  # noqa: BLE001 - whatever a driver does, the run goes on
            self._give_up(source, one_line(error))
        finally:
            worker.end(source.close)  # behind a call that hangs it is never made

    async def _sample(self, source: DeviceSource, worker: Worker) -> None:
        """Take one sample after the other. Raises `SourceHangs`, and the source's last failure."""
        trainer = self._view.trainer
        failures, since_ns, entered_ns = 0, self._clock.mono_ns(), trainer.phase_since_ns
        while True:
            await self._due(source, since_ns, entered_ns)
            if is_over(self._bus, self._view):
                return
            since_ns, entered_ns = self._clock.mono_ns(), trainer.phase_since_ns
            if self._bus.unsaved > self._unsaved_max:
                continue
            try:
                readings = await _answered(worker, source.sample)
            except SourceHangs:
                raise
            except Exception:
                failures += 1
                if failures == FAILURES_MAX:
                    raise
                continue
            failures = 0
            if is_over(self._bus, self._view):
                return
            for reading in readings:
                self._bus.publish(ACTOR, self._event(reading))

    async def _due(self, source: DeviceSource, since_ns: int, entered_ns: int) -> None:
        """Wait for the next sample: the interval is over, the phase another than at `entered_ns`, or the run ended."""
        trainer = self._view.trainer

        def due() -> bool:
            return trainer.finished or (source.exact and trainer.phase_since_ns != entered_ns)

        with suppress(TimeoutError):
            async with asyncio.timeout(self._interval_s):
                await self._bus.watch(due)
        left_s = GAP_S - (self._clock.mono_ns() - since_ns) / 1e9
        if left_s > 0 and not trainer.finished:
            await self._clock.sleep(left_s)

    def _give_up(self, source: DeviceSource, why: str) -> None:
        self._sampled.pop(source.name)
        if not is_over(self._bus, self._view):
            left = f"samples of {', '.join(self._sampled)}" if self._sampled else "all else"
            missing = f"samples of {source.name}: {why}"
            self._bus.publish(ACTOR, TelemetryDegraded(part="devices", missing=missing, works=left))

    def _event(self, reading: Reading) -> DeviceSampled:
        return DeviceSampled(
            device=reading.device,
            pool=reading.pool or self._pools.pool_of(reading.device),
            utilization=reading.utilization,
            memory_bytes=reading.memory_bytes,
            window_s=reading.window_s,
            source=reading.source,
            sm_active=reading.sm_active,
            memory_total_bytes=reading.memory_total_bytes,
        )


async def _answered(worker: Worker, work: Callable[[], T]) -> T:
    """Return what `work` returns in the worker. Raises `SourceHangs`, and what the work raises."""
    limit = asyncio.timeout(DEADLINE_S)
    try:
        async with limit:
            return await worker.ask(work)
    except TimeoutError as error:
        if not limit.expired():
            raise  # the work's own
        raise SourceHangs(f"no answer within {DEADLINE_S:g} s") from error
