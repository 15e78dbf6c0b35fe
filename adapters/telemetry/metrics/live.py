"""The metrics of a run that goes on: folded as its events come, read by whoever asks.

The event loop never waits here. A batch of records is put down, and folded at once unless somebody is just taking a
snapshot, who then folds it first. A page that is asked for while the loop hangs is made by its own thread.

Open intervals count up to the newest event that was folded, not up to the clock: what a page has shown is in the log,
so no counter goes back when the run is killed and resumed. The samples of devices and of the event loop's lag are
events too, so during a stall, when nothing else happens, the open intervals still grow every few seconds.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....core.config import TelemetrySection
from ....events.record import Clock, Record
from ....events.types import Event, TelemetryDegraded, TelemetryDropped
from ...wording import MissingExtra, require
from .meter import Meter
from .snapshot import Snapshot

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader

    from .endpoint import Endpoint
    from .push import Pusher

LATER = "the log has it all: eventrain export openmetrics"
"""What works when metrics do not."""


class LiveMetrics:
    """The page and the push of one run, as far as its settings ask for them.

    Fold what the log has already, `start`, then fold what comes; publish what `take_reports` returns now and then, and
    once more after `close`. `clock` is the run's own. Raises nothing of what goes wrong with ports, receivers and
    libraries: it becomes a report.
    """

    def __init__(self, section: TelemetrySection, clock: Clock) -> None:
        self._section = section
        self._clock = clock
        self._meter = Meter()
        self._folding = threading.Lock()
        self._waiting: deque[Sequence[Record]] = deque()
        self._provider: MeterProvider | None = None
        self._endpoint: Endpoint | None = None
        self._pusher: Pusher | None = None
        self._told_push = False
        self._defect = False
        self._reports: list[Event] = []
        self._started = False

    @property
    def port(self) -> int | None:
        """Where the page is served; None where it is not."""
        return None if self._endpoint is None else self._endpoint.port

    @property
    def wanted(self) -> bool:
        """Whether the settings ask for any of it."""
        return self._section.prometheus_port is not None or self._section.otlp_endpoint is not None

    # On the event loop

    def apply_batch(self, records: Sequence[Record]) -> None:
        """Fold `records`, which come in order of their seq; returns without waiting for anybody, and raises nothing."""
        if self._defect:
            return
        self._waiting.append(records)
        if self._folding.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._folding.release()
        if self._started and self._provider is None and self._meter.run:
            try:
                self._attach()
            except Exception as error:  # noqa: BLE001 - a run does not end because it cannot be watched
                self._started = False
                self._degraded(f"no metrics: {type(error).__name__}: {error}")

    def _fold(self) -> None:
        apply = self._meter.apply
        try:
            while self._waiting:
                for record in self._waiting.popleft():
                    apply(record)
        except Exception as error:  # noqa: BLE001 - a defect here is told, and is not the run's
            self._defect = True  # no figures from now on, rather than wrong ones
            self._waiting.clear()
            self._degraded(
                f"metrics ended with a defect, {type(error).__name__} at seq {record.seq}: {error}"
            )

    def take_reports(self) -> list[Event]:
        """Return what is to be published of this part since the last call: what does not work, and what was lost."""
        reports, self._reports = self._reports, []
        if self._pusher is not None:
            lost = self._pusher.take_lost()
            if self._pusher.declined and not self._told_push:
                self._told_push = True
                missing = f"{self._pusher.url} takes no metrics (404): none are pushed"
                reports.append(TelemetryDegraded(part="metrics", missing=missing, works=LATER))
            if lost and not self._told_push:
                self._told_push = True
                missing = f"metrics do not arrive at {self._pusher.url}: {self._pusher.first_failure}"
                reports.append(TelemetryDegraded(part="metrics", missing=missing, works=LATER))
            reports += [
                TelemetryDropped(signal="metrics", reason=reason, count=count)
                for reason, count in lost.items()
            ]
        return reports

    def start(self) -> None:
        """Serve the page and begin to push, where the settings ask for it."""
        if not self.wanted:
            return
        try:
            require("opentelemetry.sdk.metrics", "telemetry")
            require("opentelemetry.exporter.prometheus", "telemetry")
            require("opentelemetry.exporter.otlp.proto.http", "telemetry")
        except MissingExtra as error:
            self._degraded(str(error))
            return
        from prometheus_client import CollectorRegistry

        from . import instruments, push

        self._instruments, self._push = instruments, push  # imported here: it takes a tenth of a second
        self._registry = CollectorRegistry()
        self._started = True
        if self._section.prometheus_port is not None:
            self._serve(self._section.prometheus_host, self._section.prometheus_port)

    def _serve(self, host: str, port: int) -> None:
        from .endpoint import Endpoint, PortTaken

        try:
            self._endpoint = Endpoint(self._registry, host, port)
        except PortTaken as error:
            self._degraded(str(error))

    def _degraded(self, missing: str) -> None:
        self._reports.append(TelemetryDegraded(part="metrics", missing=missing, works=LATER))

    def _attach(self) -> None:
        """Make the instruments, once the id of the run is known: it comes with the first event, also that of a fork."""
        section, instruments = self._section, self._instruments
        collections = instruments.Collections(self.snapshot, self._clock.utc_ns)
        readers: list[MetricReader] = []
        if self._endpoint is not None:
            readers.append(instruments.PageReader(collections, self._registry))
        if section.otlp_endpoint is not None:
            self._pusher = self._push.Pusher(section.otlp_endpoint, section.otlp_timeout_s)
            readers.append(
                instruments.PushReader(
                    collections, self._pusher, section.otlp_interval_s, section.otlp_timeout_s
                )
            )
        about = instruments.resource(self._meter.run, socket.gethostname(), os.getpid())
        self._provider = instruments.provider(collections, readers, about)

    # In any thread

    def snapshot(self) -> Snapshot:
        """Return all values as of the newest event, open intervals included; also while the event loop hangs."""
        with self._folding:
            self._fold()
            if self._defect:
                return Snapshot()
            return self._meter.snapshot(self._meter.last_mono)

    def close(self, deadline_s: float) -> None:
        """Push once more, end the page, and end all threads; takes about `deadline_s` seconds at most."""
        self._started = False
        if self._provider is not None:
            try:
                self._provider.shutdown(timeout_millis=deadline_s * 1000)
            except Exception as error:  # noqa: BLE001 - the SDK raises plain exceptions, of readers that took too long
                self._degraded(f"metrics were not closed in time: {' '.join(str(error).split())}")
        if self._endpoint is not None:
            self._endpoint.close()
