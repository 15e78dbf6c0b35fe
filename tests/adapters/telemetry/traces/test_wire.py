"""The two forms of OTLP: strict protobuf, JSON lines that say the same, and a stored file that stays what it is."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_receiver import check
from trace_logs import Told, chaos, spans_of

from eventrain.adapters.telemetry.traces import names, otlp_json
from eventrain.adapters.telemetry.traces.otlp import encoded
from eventrain.adapters.telemetry.traces.sampling import Sampling
from eventrain.events.types import (
    CheckpointCommitted,
    CheckpointStarted,
    RetryScheduled,
    RunResumed,
    StallDetected,
    SyncAcknowledged,
    SyncStarted,
)

GOLDEN = Path(__file__).parent / "golden.jsonl"
IDS = ("traceId", "spanId", "parentSpanId")


def decoded(line: bytes) -> ExportTraceServiceRequest:
    """Return a line of OTLP JSON as protobuf has it: by proto3's own rules, but for ids, which OTLP writes in hex."""

    def with_ids(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: base64.b64encode(bytes.fromhex(one)).decode() if key in IDS else with_ids(one)
                for key, one in value.items()
            }
        return [with_ids(one) for one in value] if isinstance(value, list) else value

    return json_format.ParseDict(with_ids(json.loads(line)), ExportTraceServiceRequest())


@pytest.mark.parametrize("seed", range(8))
def test_protobuf_and_json_say_the_same(seed: int) -> None:
    """What a strict reader makes of the JSON is, field by field, what the protobuf says."""
    spans = spans_of(chaos(seed, killing=True).records, Sampling(0.5, 1))
    sent = ExportTraceServiceRequest.FromString(encoded(spans))
    check(sent)
    assert decoded(otlp_json.line(spans)) == sent


def test_ids_are_lower_case_hex_and_times_are_strings() -> None:
    """As proto3 JSON with OTLP's exceptions wants it, and as jaeger-ui reads it."""
    told = Told()
    told.group(1, 0.1, 0.1)
    told.step(0, 1)
    (of_resource,) = json.loads(otlp_json.line(spans_of(told.records)))["resourceSpans"][:1]
    assert of_resource["schemaUrl"] == names.SCHEMA_URL
    for span in of_resource["scopeSpans"][0]["spans"]:
        assert len(span["traceId"]) == 32
        assert span["traceId"] == span["traceId"].lower()
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert isinstance(span["startTimeUnixNano"], str)
        assert isinstance(span["kind"], int)


def small_log() -> Told:
    """Return a log with a little of everything."""
    told = Told()
    waits = told.wait()
    told.dispatch(1)
    told.start("1/0")
    told.fail("1/0")
    told.publish(RetryScheduled(trajectory="1/0", group=1, attempt=1, delay_s=0.5))
    told.trajectory("1/1")
    told.publish(StallDetected(stall=0, stall_kind="degraded", chain=("a",), sentence="s"), 0.5)
    told.trajectory("1/0", attempt=1)
    told.buffer(1)
    told.waited(waits)
    told.step(0, 1)
    told.publish(SyncStarted(engine="e0", version=1, mode="in_flight"))
    told.publish(SyncAcknowledged(engine="e0", version=1, seconds=0.1), 0.1)
    told.publish(CheckpointStarted(step=1, version=1, path="checkpoints/1"))
    told.publish(CheckpointCommitted(step=1, version=1, path="checkpoints/1", size_bytes=9, seconds=0.2), 0.2)
    told.dispatch(2)
    told.start("2/0")
    told.publish(RunResumed(step=1, version=1, host="other", pid=8), 9)
    told.group(3, 0.1, 0.1)
    told.step(1, 3)
    told.finish()
    return told


def golden() -> bytes:
    """Return what the small log is exported as."""
    return otlp_json.line(spans_of(small_log().records, Sampling(1.0, 1)))


def test_the_export_of_a_small_log_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte: a change of it changes what others have stored, and is made on purpose."""
    monkeypatch.setattr(names, "SCOPE_VERSION", "0")
    assert golden() == GOLDEN.read_bytes()
