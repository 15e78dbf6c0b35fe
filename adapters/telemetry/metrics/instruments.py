"""OpenTelemetry instruments that read the meter, and the two readers that carry them away.

Counters and gauges are observable instruments: they cost nothing until somebody collects. Observable histograms do not
exist in OpenTelemetry, and recording each value with a synchronous one takes the event loop some 20 us and would
begin at nothing after a resume. The meter has the buckets already, so the readers here add them: `_receive_metrics` is
the method with which every reader is handed a collection (the documented one to override), and both readers append
histograms made of the meter's buckets to it before they go on as usual. Both ways out so have the same data points.

All of a collection is of one moment. A collection runs in one thread from its first callback to `_receive_metrics`;
the first callback takes a snapshot for its thread, the others read it, and `_receive_metrics` lets it go.

Nothing here is global: a run has its own provider, and several runs in one process do not meet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, cast

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    MetricExporter,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as ExportedMetric
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry

from .catalog import METRICS, Metric
from .distribution import Distribution
from .snapshot import Labels, Snapshot

SCOPE = "eventrain"


class Collections:
    """The snapshot of the collection that goes on in each thread, made by `take`."""

    def __init__(self, take: Callable[[], Snapshot], utc_ns: Callable[[], int]) -> None:
        self._take = take
        self._utc_ns = utc_ns
        self._here = threading.local()

    def snapshot(self, metric: str) -> Snapshot:
        """Return this thread's snapshot for `metric`; a new one where this one was read for it already.

        So a collection that failed half-way leaves nothing behind that the next one would take for new.
        """
        read: set[str] | None = getattr(self._here, "read", None)
        if read is None or metric in read:
            self._here.read, self._here.snapshot = {metric}, self._take()
        else:
            read.add(metric)
        return cast(Snapshot, self._here.snapshot)

    def complete(self, data: MetricsData) -> MetricsData:
        """Return `data` with the histograms of this thread's snapshot, which is let go."""
        snapshot: Snapshot | None = getattr(self._here, "snapshot", None)
        self._here.snapshot = self._here.read = None
        if snapshot is None or not data.resource_metrics:
            return data
        resource, *others = data.resource_metrics
        scope, *scopes = resource.scope_metrics
        metrics = [
            *(_since(metric, snapshot.started_ts) for metric in scope.metrics),
            *_histograms(snapshot, self._utc_ns()),
        ]
        full = replace(resource, scope_metrics=[replace(scope, metrics=metrics), *scopes])
        return replace(data, resource_metrics=[full, *others])


class PageReader(PrometheusMetricReader):
    """Hands collections to a Prometheus registry, histograms of the meter included."""

    def __init__(self, collections: Collections, registry: CollectorRegistry) -> None:
        super().__init__(scope_info_enabled=False, registry=registry)
        self._collections = collections

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        super()._receive_metrics(self._collections.complete(metrics_data), timeout_millis, **kwargs)


class PushReader(PeriodicExportingMetricReader):
    """Hands a collection to `exporter` every `interval_s` seconds, histograms of the meter included."""

    def __init__(
        self, collections: Collections, exporter: MetricExporter, interval_s: float, timeout_s: float
    ) -> None:
        self._collections = collections
        super().__init__(
            exporter, export_interval_millis=interval_s * 1000, export_timeout_millis=timeout_s * 1000
        )

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        super()._receive_metrics(self._collections.complete(metrics_data), timeout_millis, **kwargs)


def resource(run: str, host: str, pid: int) -> Resource:
    """Return who tells: the same for every process of the run, whatever machine or time it runs at.

    The SDK's own default has a random service.instance.id, which would make new series of each start.
    """
    return Resource(
        {
            "service.name": "eventrain",
            "service.version": version("eventrain"),
            "service.instance.id": f"{run}-controller",
            "host.name": host,
            "process.pid": pid,
            "rl.run.id": run,
        }
    )


def provider(collections: Collections, readers: Sequence[MetricReader], about: Resource) -> MeterProvider:
    """Return a provider with all instruments of the catalog; the caller shuts it down."""
    made = MeterProvider(metric_readers=readers, resource=about, shutdown_on_exit=False)
    meter = made.get_meter(SCOPE)
    for metric in METRICS:
        if metric.kind == "histogram":
            continue
        create = (
            meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        )
        create(metric.otel, [_observer(metric, collections)], metric.unit, metric.description)
    return made


def _observer(metric: Metric, collections: Collections) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        snapshot = collections.snapshot(metric.prometheus)
        return [
            Observation(float(value), attributes(metric, snapshot.run, labels))
            for labels, value in snapshot.values.get(metric.prometheus, {}).items()
        ]

    return observe


def attributes(metric: Metric, run: str, labels: Labels) -> dict[str, str]:
    """Return a series' labels by name, `run` first."""
    return {"run": run, **dict(zip(metric.labels, labels, strict=True))}


def _since(metric: ExportedMetric, started_ts: int) -> ExportedMetric:
    """Return a counter as one that began with the run: it holds what all lives of the run have counted."""
    if not isinstance(metric.data, Sum):
        return metric
    points = [replace(point, start_time_unix_nano=started_ts) for point in metric.data.data_points]
    return replace(metric, data=replace(metric.data, data_points=points))


def _histograms(snapshot: Snapshot, now_ts: int) -> list[ExportedMetric]:
    made = []
    for metric in METRICS:
        series = snapshot.histograms.get(metric.prometheus)
        if series:
            points = [
                _point(attributes(metric, snapshot.run, labels), distribution, snapshot.started_ts, now_ts)
                for labels, distribution in series.items()
            ]
            data = Histogram(points, AggregationTemporality.CUMULATIVE)
            made.append(ExportedMetric(metric.otel, metric.description, metric.unit, data))
    return made


def _point(labels: dict[str, str], found: Distribution, started_ts: int, now_ts: int) -> HistogramDataPoint:
    unknown = cast(float, None)  # smallest and largest are optional in OTLP, and buckets do not know them
    return HistogramDataPoint(
        labels, started_ts, now_ts, found.total, found.sum, found.counts, found.bounds, unknown, unknown
    )
