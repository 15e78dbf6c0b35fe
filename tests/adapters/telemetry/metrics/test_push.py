"""Metrics that are pushed: what arrives is what the page shows, and a bad receiver holds nothing up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from metric_runs import SetClock, eventful_run, page, samples, serving
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from told_runs import phased_run

from eventrain.adapters.telemetry.metrics.catalog import METRICS
from eventrain.events.types import TelemetryDegraded, TelemetryDropped


class Receiver:
    """An OTLP receiver in the test's process; `answer` is its status code, or hangs."""

    def __init__(self, answer: Callable[[], int] = lambda: 200) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.came = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/metrics", self.path
                assert self.headers["Content-Type"] == "application/x-protobuf"
                receiver.requests.append(ExportMetricsServiceRequest.FromString(body))
                receiver.came.set()
                status = answer()
                content = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a client that has given up has closed the connection
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def receiving(answer: Callable[[], int] = lambda: 200) -> Iterator[Receiver]:
    """Yield a receiver that runs."""
    receiver = Receiver(answer)
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join(5)


def series(metric: Metric) -> dict[tuple[tuple[str, str], ...], float]:
    """Return the points of a counter or gauge by their attributes."""
    points = metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points
    return {
        tuple(sorted((pair.key, pair.value.string_value) for pair in point.attributes)): (
            point.as_double if point.HasField("as_double") else point.as_int
        )
        for point in points
    }


def test_a_push_has_what_the_page_has() -> None:
    """Every metric arrives under its OpenTelemetry name, cumulative, with the values and buckets of the page."""
    told = eventful_run()
    with receiving() as receiver:
        settings = {"otlp_endpoint": receiver.url, "otlp_interval_s": 3600}
        with serving(told.records, SetClock(told.now_s), **settings) as live:
            shown = samples(page(live))
        request = receiver.requests[-1]  # the push of the close
    [resource] = request.resource_metrics
    about = {pair.key: pair.value for pair in resource.resource.attributes}
    assert about["service.instance.id"].string_value == "told-20260101-120000-controller"
    assert about["rl.run.id"].string_value == "told-20260101-120000"
    arrived = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    assert set(arrived) == {metric.otel for metric in METRICS}
    for metric in METRICS:
        found = arrived[metric.otel]
        assert (found.unit, found.description) == (metric.unit, metric.description)
        if metric.kind == "histogram":
            check_histogram(found, metric.prometheus, shown)
            continue
        assert found.HasField("sum" if metric.kind == "counter" else "gauge"), metric.otel
        if metric.kind == "counter":
            assert found.sum.is_monotonic
            assert (
                found.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            )
        on_page = {labels: value for (name, labels), value in shown.items() if name == metric.prometheus}
        assert series(found) == on_page


def check_histogram(found: Metric, name: str, shown: dict) -> None:
    assert (
        found.histogram.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    assert found.histogram.data_points
    for point in found.histogram.data_points:
        labels = tuple(sorted((pair.key, pair.value.string_value) for pair in point.attributes))
        assert point.count == sum(point.bucket_counts) == shown[f"{name}_count", labels]
        assert point.sum == pytest.approx(shown[f"{name}_sum", labels])
        so_far = 0
        for bound, count in zip([*point.explicit_bounds, "+Inf"], point.bucket_counts, strict=True):
            so_far += count
            with_bound = tuple(sorted([*labels, ("le", str(bound))]))
            assert shown[f"{name}_bucket", with_bound] == so_far


def test_pushes_come_by_themselves() -> None:
    """With a short interval something arrives without anybody asking."""
    told = phased_run(1)
    with receiving() as receiver:
        settings = {"prometheus_port": None, "otlp_endpoint": receiver.url, "otlp_interval_s": 0.05}
        with serving(told.records, SetClock(told.now_s), **settings) as live:
            assert receiver.came.wait(10)
            assert live.port is None


def lost_of(live) -> tuple[list[TelemetryDegraded], dict[str, int]]:
    reports = live.take_reports()
    lost: dict[str, int] = {}
    for report in reports:
        if isinstance(report, TelemetryDropped):
            assert report.signal == "metrics"
            lost[report.reason] = lost.get(report.reason, 0) + report.count
    return [one for one in reports if isinstance(one, TelemetryDegraded)], lost


def test_an_answer_500_is_counted_and_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    """The first lost push is a report with the answer, every one is counted, and nothing is written to stderr."""
    told = phased_run(1)
    with receiving(lambda: 500) as receiver:
        settings = {"otlp_endpoint": receiver.url, "otlp_interval_s": 3600}
        with serving(told.records, SetClock(told.now_s), **settings) as live:
            live._provider.force_flush()
            [degraded], lost = lost_of(live)
            assert lost == {"refused": 1}
            assert degraded.missing == (
                f"metrics do not arrive at {receiver.url}/v1/metrics: it answers 500 Internal Server Error"
            )
        assert lost_of(live) == ([], {"refused": 1})
    assert capfd.readouterr().err == ""


def test_a_receiver_of_traces_alone_is_told_once_and_nothing_is_lost() -> None:
    """It answers 404 to metrics, as Jaeger does: one report, no drops, and no further push."""
    told = phased_run(1)
    with receiving(lambda: 404) as receiver:
        settings = {"otlp_endpoint": receiver.url, "otlp_interval_s": 3600}
        with serving(told.records, SetClock(told.now_s), **settings) as live:
            live._provider.force_flush()
            [degraded], lost = lost_of(live)
            assert degraded.missing == f"{receiver.url}/v1/metrics takes no metrics (404): none are pushed"
            assert lost == {}
            live._provider.force_flush()
        assert lost_of(live) == ([], {})
        assert len(receiver.requests) == 1


def test_a_receiver_that_is_gone_is_counted(capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody at the address: unreachable, and the close keeps its deadline."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    told = phased_run(1)
    settings = {"otlp_endpoint": f"http://127.0.0.1:{port}", "otlp_interval_s": 3600, "otlp_timeout_s": 0.2}
    with serving(told.records, SetClock(told.now_s), **settings) as live:
        page(live)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    [degraded], lost = lost_of(live)
    assert lost == {"unreachable": 1}
    assert degraded.missing.endswith("/v1/metrics: nothing answers there")
    assert capfd.readouterr().err == ""


def test_a_receiver_that_hangs_holds_nothing_up(capfd: pytest.CaptureFixture[str]) -> None:
    """While it hangs, events are folded and the page answers; the push ends by its own deadline."""
    told = phased_run(2)
    release = threading.Event()

    def hang() -> int:
        release.wait(20)
        return 200

    with receiving(hang) as receiver:
        settings = {"otlp_endpoint": receiver.url, "otlp_interval_s": 0.05, "otlp_timeout_s": 0.5}
        with serving(told.records[:50], SetClock(told.now_s), **settings) as live:
            assert receiver.came.wait(10)
            began = time.monotonic()
            live.apply_batch(told.records[50:])
            assert "rl_steps_total" in page(live)
            assert time.monotonic() - began < 2
            began = time.monotonic()
        assert time.monotonic() - began < 4
        release.set()
    [degraded], lost = lost_of(live)
    assert lost.get("timed_out", 0) >= 1
    assert degraded.missing.endswith("no answer in time")
    assert capfd.readouterr().err == ""
