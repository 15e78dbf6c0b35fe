"""Spans as OTLP in JSON, one object a line: what jaeger-ui opens by drag and drop, and collectors read from files.

The mapping is proto3's with OTLP's exceptions: ids are lower-case hex, 64-bit integers are strings, enums are numbers,
and fields that have their default are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec

from . import names
from .spans import SAMPLED_FLAG, Attributes, Link, Span, SpanEvent, Status, Value, link_flags

_encode = msgspec.json.Encoder().encode


def line(spans: Iterable[Span]) -> bytes:
    """Return one line, newline included, with all `spans`, by resource and in their order."""
    return _encode({"resourceSpans": [_resource(list(group)) for _, group in _by_resource(spans)]}) + b"\n"


def _by_resource(spans: Iterable[Span]) -> Iterable[tuple[object, Iterable[Span]]]:
    return groupby(spans, key=lambda span: span.resource)


def _resource(spans: list[Span]) -> dict[str, Any]:
    scope = {"name": names.SCOPE, "version": names.SCOPE_VERSION}
    return {
        "resource": {"attributes": _attributes(spans[0].resource.attributes)},
        "scopeSpans": [
            {"scope": scope, "spans": [_span(span) for span in spans], "schemaUrl": names.SCHEMA_URL}
        ],
        "schemaUrl": names.SCHEMA_URL,
    }


def _span(span: Span) -> dict[str, Any]:
    made: dict[str, Any] = {"traceId": span.trace_id.hex(), "spanId": span.span_id.hex()}
    if span.parent:
        made["parentSpanId"] = span.parent.hex()
    made |= {
        "flags": SAMPLED_FLAG,
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.events:
        made["events"] = [_event(event) for event in span.events]
    if span.links:
        made["links"] = [_link(link) for link in span.links]
    if span.status != Status.UNSET:
        made["status"] = {"code": int(span.status)}
        if span.message:
            made["status"]["message"] = span.message
    return made


def _link(link: Link) -> dict[str, Any]:
    made: dict[str, Any] = {"traceId": link.trace_id.hex(), "spanId": link.span_id.hex()}
    made["attributes"] = _attributes(link.attributes)
    flags = link_flags(link)
    return {**made, "flags": flags} if flags else made


def _event(event: SpanEvent) -> dict[str, Any]:
    return {
        "timeUnixNano": str(event.time_ns),
        "name": event.name,
        "attributes": _attributes(event.attributes),
    }


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):  # before int: it is one
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [{"stringValue": one} for one in value]}}
