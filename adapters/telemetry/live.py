"""Everything that tells of a run while it goes on, from the same events that the run is made of.

    events           -> metrics (page and push), figures of steps for the trackers     folded here, batch by batch
    log on disk      -> traces                                                          by a process that follows it
    devices and loop -> events                                                          sampled here

None of it can slow the run down or end it: what fails is told once, as an event, and the rest goes on. What is lost
is counted, as events too, so that the log has the whole truth about its own telemetry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import structlog

from ...core.failures import one_line
from ...core.run import Run
from ...events.errors import LogWriteError
from ...events.folder import RunFolder
from ...events.reader import LogReader
from ...events.record import Record
from ...events.types import Event, TelemetryDegraded, TelemetryDropped
from .devices import DeviceSampler, LoopLagSampler, sources_for
from .engine_load import EngineLoadSampler
from .metrics.live import LiveMetrics
from .traces.process import TraceFollower
from .trackers import Trackers

ACTOR = "telemetry"
REPORT_S = 1.0
"""Seconds between two looks at what has failed or was dropped."""
DURABLE_S = 2.0
"""How long the last events may take to the disk before they are left out."""
CLOSE_S = 8.0
"""How long the last metrics, traces and figures may take once the run has ended."""

Part = Literal["metrics", "traces", "devices", "trackers"]
WORKS = "the run, and its log, from which `eventrain export` makes the same"


class Telemetry:
    """The telemetry of one run. To be made before the run publishes anything, and run beside it."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        config, bus, view = run.config, run.bus, run.view
        section, unsaved_max = config.telemetry, config.log.unsaved_max
        self._run = run
        self._folder = folder
        self._first_seq = bus.next_seq
        """Of this life of the run: what comes before it is the past."""
        self._lines = bus.subscribe(ACTOR)
        self._waiting: list[Record] = []  # published, and not on disk yet; their seqs have no gap
        metrics = LiveMetrics(section, run.ports.clock)
        self._metrics = metrics if metrics.wanted else None
        self._trackers: Trackers | None = None
        self._traces: TraceFollower | None = None
        self._samplers: list[tuple[Part, DeviceSampler | LoopLagSampler | EngineLoadSampler]] = [
            ("metrics", LoopLagSampler(bus, view, unsaved_max=unsaved_max))
        ]
        sources = sources_for(config, run.ports)
        if sources:
            devices = DeviceSampler(
                bus, run.ports.clock, sources, section.device_interval_s, view, unsaved_max=unsaved_max
            )
            self._samplers.append(("devices", devices))
        loads = EngineLoadSampler(
            bus, run.ports.clock, run.ports.engines, section.engine_interval_s, view, unsaved_max=unsaved_max
        )
        if loads.engines:
            self._samplers.append(("metrics", loads))
        self._unsaid: list[Event] = []

    async def tell(self) -> None:
        """Tell of the run until its bus is closed, and then hand over what is left, for `CLOSE_S` at most.

        Never raises but when cancelled, which leaves unsent what is unsent.
        """
        try:
            async with asyncio.TaskGroup() as parts:
                beside = [parts.create_task(self._kept("metrics", self._report), name="telemetry reports")]
                if self._run.config.telemetry.otlp_endpoint is not None:
                    beside.append(
                        parts.create_task(self._kept("traces", self._follow), name="telemetry traces")
                    )
                for part, sampler in self._samplers:
                    beside.append(parts.create_task(self._kept(part, sampler.run), name=f"telemetry {part}"))
                await self._kept("trackers", self._fold)
                for task in beside:
                    task.cancel()
        finally:
            self._lines.close()
        await self._kept("trackers", self._close)

    async def _fold(self) -> None:
        """Fold what the run publishes, as soon as it is on disk, until its bus is closed.

        What never reaches the disk has not happened: a counter that had it would go back at the resume, and Prometheus
        would take that for a reset.
        """
        bus = self._run.bus
        begun = False
        async for batch in self._lines:
            if not begun:
                await self._begin()
                begun = True
            self._waiting += batch
            self._take_durable()
        with suppress(TimeoutError, LogWriteError):
            async with asyncio.timeout(DURABLE_S):
                await bus.durable(bus.next_seq - 1)
        self._take_durable()

    def _take_durable(self) -> None:
        """Fold what waits and is on disk by now."""
        if not self._waiting:
            return
        count = self._run.bus.durable_seq - self._waiting[0].seq + 1
        if count <= 0:
            return
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        self._measure(batch)
        self._track(batch)

    async def _begin(self) -> None:
        """Start the parts that need to know which run this is: its first event is folded by now.

        In a thread: the past is read, libraries are loaded, and a port is bound.
        """
        try:
            self._trackers = await asyncio.to_thread(self._made)
        except Exception as error:  # noqa: BLE001 - reported; the run does not depend on it
            self._failed("trackers", error)
            if self._metrics is not None:
                self._failed("metrics", error)
                await self._kept("metrics", partial(asyncio.to_thread, self._metrics.close, 0.0))
                self._metrics = None
        if self._metrics is not None and self._metrics.port is not None:
            host = self._run.config.telemetry.prometheus_host
            shown = f"[{host}]" if ":" in host else host
            structlog.get_logger().info("metrics_served", url=f"http://{shown}:{self._metrics.port}/metrics")

    def _made(self) -> Trackers:
        config = self._run.config
        past = self._past() if self._first_seq else ()
        trackers = Trackers(config.telemetry, self._folder.path, self._run.view.identity.run, config, past)
        if self._metrics is not None:
            self._metrics.start()
        return trackers

    async def _follow(self) -> None:
        """Have a process follow the log, and tell what it says. Cancelling leaves the process for `_close`."""
        section = self._run.config.telemetry
        self._traces = await TraceFollower.start(
            self._folder.path, section, since_seq=self._first_seq, close_s=CLOSE_S
        )
        async for report in self._traces.reports():
            self._publish(report)

    def _past(self) -> Iterator[Record]:
        """Yield the log that the run goes on with, for the trackers, and fold it into the metrics on the way."""
        for _, records in LogReader(self._folder.events).frames():
            batch = [record for record in records if record.seq < self._first_seq]
            if not batch:
                return
            self._measure(batch)
            yield from batch

    def _measure(self, batch: Sequence[Record]) -> None:
        if self._metrics is None:
            return
        try:
            self._metrics.apply_batch(batch)
        except Exception as error:  # noqa: BLE001 - a defect of the metrics is no reason to end a run
            self._metrics.close(0)
            self._metrics = None
            self._failed("metrics", error)

    def _track(self, batch: Sequence[Record]) -> None:
        if self._trackers is None:
            return
        apply = self._trackers.apply
        try:
            for record in batch:
                apply(record)
        except Exception as error:  # noqa: BLE001 - as above; the metrics go on
            self._trackers = None
            self._failed("trackers", error)

    async def _kept(self, part: Part, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work`; whatever it raises ends this part of the telemetry alone."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - reported; the run does not depend on it
            self._failed(part, error)

    def _failed(self, part: Part, error: Exception) -> None:
        missing = f"{type(error).__name__}: {one_line(error)}"
        self._unsaid.append(TelemetryDegraded(part=part, missing=missing, works=WORKS))

    # What the log is told

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            for event in self._reports():
                self._publish(event)

    def _reports(self) -> Iterable[Event]:
        said, self._unsaid = self._unsaid, []
        for part in (self._metrics, self._trackers):
            if part is not None:
                said += part.take_reports()
        return said

    def _publish(self, event: Event) -> None:
        """Tell the log; or, once it takes nothing any more, whoever looks at the terminal."""
        if self._run.bus.closed or self._run.view.trainer.finished:
            log = structlog.get_logger()
            if isinstance(event, TelemetryDegraded):
                log.warning("telemetry_degraded", part=event.part, missing=event.missing, works=event.works)
            elif isinstance(event, TelemetryDropped):
                log.warning("telemetry_dropped", signal=event.signal, reason=event.reason, count=event.count)
        else:
            self._run.bus.publish(ACTOR, event)

    async def _close(self) -> None:
        """Let every part send what it has, all at once, and say what is lost for good."""
        async with asyncio.TaskGroup() as closing:
            for part in (self._metrics, self._trackers):
                if part is not None:
                    closing.create_task(asyncio.to_thread(part.close, CLOSE_S))
            if self._traces is not None:
                closing.create_task(self._last_reports(self._traces))
                closing.create_task(self._traces.close(CLOSE_S))
        for event in self._reports():
            self._publish(event)

    async def _last_reports(self, traces: TraceFollower) -> None:
        async for report in traces.reports():
            self._publish(report)
