"""Spans as the protobuf that OTLP sends, made directly from `opentelemetry-proto`'s classes.

Nothing of the SDK is needed, whose spans and encoder take five times as long. Only who sends loads this module: it
needs the extra ``telemetry``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from . import names
from .spans import SAMPLED_FLAG, Attributes, Kind, Link, Span, SpanEvent, Status, Value, link_flags

_KINDS = {Kind.INTERNAL: trace_pb2.Span.SPAN_KIND_INTERNAL, Kind.CLIENT: trace_pb2.Span.SPAN_KIND_CLIENT}
_CODES = {Status.UNSET: trace_pb2.Status.STATUS_CODE_UNSET, Status.ERROR: trace_pb2.Status.STATUS_CODE_ERROR}


def request(spans: Iterable[Span]) -> ExportTraceServiceRequest:
    """Return one request with all `spans`, by resource and in their order."""
    return ExportTraceServiceRequest(
        resource_spans=[
            trace_pb2.ResourceSpans(
                resource=Resource(attributes=_attributes(resource.attributes)),
                scope_spans=[
                    trace_pb2.ScopeSpans(
                        scope=InstrumentationScope(name=names.SCOPE, version=names.SCOPE_VERSION),
                        spans=[_span(span) for span in group],
                        schema_url=names.SCHEMA_URL,
                    )
                ],
                schema_url=names.SCHEMA_URL,
            )
            for resource, group in groupby(spans, key=lambda span: span.resource)
        ]
    )


def encoded(spans: Iterable[Span]) -> bytes:
    """Return the bytes of one request with all `spans`."""
    content: bytes = request(spans).SerializeToString()
    return content


def _span(span: Span) -> trace_pb2.Span:
    made = trace_pb2.Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent,
        flags=SAMPLED_FLAG,
        name=span.name,
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_attributes(span.attributes),
    )
    if span.links:
        made.links.extend(map(_link, span.links))
    if span.events:
        made.events.extend(map(_event, span.events))
    if span.status != Status.UNSET:
        made.status.code, made.status.message = _CODES[span.status], span.message
    return made


def _link(link: Link) -> trace_pb2.Span.Link:
    return trace_pb2.Span.Link(
        trace_id=link.trace_id, span_id=link.span_id, attributes=_attributes(link.attributes), flags=link_flags(link)
    )


def _event(event: SpanEvent) -> trace_pb2.Span.Event:
    return trace_pb2.Span.Event(
        time_unix_nano=event.time_ns, name=event.name, attributes=_attributes(event.attributes)
    )


def _attributes(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in attributes]


def _value(value: Value) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, bool):  # before int: it is one
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=one) for one in value]))
