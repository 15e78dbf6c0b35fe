"""Against a real Jaeger, where there is one: JAEGER_URL is its OTLP port, JAEGER_UI_URL its page (port 16686)."""

from __future__ import annotations

import json
import os
import threading
import urllib.request

import pytest
from trace_logs import Told, spans_of

from eventrain.adapters.telemetry.traces.delivery import Delivery
from eventrain.adapters.telemetry.traces.otlp import encoded

pytestmark = [
    pytest.mark.jaeger,
    pytest.mark.skipif("JAEGER_URL" not in os.environ, reason="JAEGER_URL is not set"),
]


def test_jaeger_shows_the_tree_that_was_sent() -> None:
    """Every span of a trajectory is there, below the same parent; sent twice, it is there once."""
    told = Told()
    told.group(1, 0.1, 0.2)
    told.step(0, 1)
    told.finish()
    spans = spans_of(told.records)
    url, paused = os.environ["JAEGER_URL"], threading.Event()
    page = os.environ.get("JAEGER_UI_URL", url.rpartition(":")[0] + ":16686")
    delivery = Delivery(url)
    for _ in range(2):
        assert delivery.deliver(encoded(spans), paused).reason is None
    delivery.close()
    trace = next(span.trace_id for span in spans if span.name.startswith("invoke_agent"))
    expected = {span.span_id.hex(): span.parent.hex() for span in spans if span.trace_id == trace}
    found: dict[str, str] = {}
    for _ in range(60):
        try:
            with urllib.request.urlopen(f"{page}/api/traces/{trace.hex()}", timeout=5) as answer:
                shown = json.load(answer)["data"][0]["spans"]
        except urllib.error.HTTPError:
            shown = []
        found = {s["spanID"]: next((r["spanID"] for r in s["references"]), "") for s in shown}
        if len(shown) >= len(expected):
            break
        paused.wait(0.5)
    assert found == expected
    assert len(shown) == len(expected)
