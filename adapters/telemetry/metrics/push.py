"""Metrics that are pushed to an OpenTelemetry receiver: OTLP over HTTP, in a thread of its own.

Nothing waits for the receiver. A push that does not arrive is counted and not repeated: counters are cumulative, so
the next one brings what the lost one would have brought.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any, Literal

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

Reason = Literal["unreachable", "refused", "timed_out", "failed"]
PATH = "v1/metrics"
DECLINED = 404
"""What a receiver of traces alone answers to metrics: Jaeger does."""
_TALKATIVE = (
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.exporter.otlp.proto.common",
    "opentelemetry.sdk.metrics._internal.export",
)


def _quiet() -> None:
    """Keep the SDK's log off the terminal: what fails is counted here, and told once by an event."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class _Session(requests.Session):
    """A session that remembers how its last request ended."""

    def __init__(self) -> None:
        super().__init__()
        self.reason: Reason = "failed"
        self.text = ""
        self.declined = False

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request; note the reason where it fails."""
        try:
            response = super().request(*args, **kwargs)
        except requests.Timeout:
            self.reason, self.text = "timed_out", "no answer in time"
            raise
        except requests.ConnectionError:
            self.reason, self.text = "unreachable", "nothing answers there"
            raise
        except requests.RequestException as error:
            self.reason, self.text = "failed", type(error).__name__
            raise
        self.declined = self.declined or response.status_code == DECLINED
        if not response.ok:
            self.reason, self.text = "refused", f"it answers {response.status_code} {response.reason}"
        return response


class Pusher(MetricExporter):
    """Sends collections to ``<endpoint>/v1/metrics`` and counts those that do not arrive.

    `endpoint` is a base URL; headers, certificates and compression are taken from the OTEL_EXPORTER_OTLP_* variables
    of the environment, as by every OTLP exporter.
    """

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        super().__init__()
        _quiet()
        self.url = f"{endpoint.rstrip('/')}/{PATH}"
        self._session = _Session()
        self._exporter = OTLPMetricExporter(self.url, timeout=timeout_s, session=self._session)
        self._lock = threading.Lock()
        self._lost: Counter[Reason] = Counter()
        self.first_failure = ""
        """What became of the first push that was lost, in a few words; empty while none was."""

    @property
    def declined(self) -> bool:
        """Whether the receiver has no place for metrics. Then none is sent any more, and none is lost."""
        return self._session.declined

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Send a collection; takes `timeout_s` at most, retries included. Raises nothing."""
        if self.declined:
            return MetricExportResult.SUCCESS
        self._session.reason, self._session.text = "failed", "it could not be sent"
        try:
            result = self._exporter.export(metrics_data, timeout_millis, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, a run does not end by its telemetry
            result, self._session.text = MetricExportResult.FAILURE, type(error).__name__
        if result is not MetricExportResult.SUCCESS and not self.declined:
            with self._lock:
                self._lost[self._session.reason] += 1
                self.first_failure = self.first_failure or self._session.text
        return result

    def take_lost(self) -> dict[Reason, int]:
        """Return how many pushes were lost since the last call, by reason."""
        with self._lock:
            lost, self._lost = dict(self._lost), Counter()
        return lost

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do nothing: nothing is kept back."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Give up what is being sent, and close the connection."""
        self._exporter.shutdown(timeout_millis)
