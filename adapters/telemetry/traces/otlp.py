"""Spans as the protobuf that OTLP sends.

A message is made from the bytes of its parts: protobuf allows that (a field may stand anywhere, and repeated ones add
up), and an attribute that was encoded once, like all that name the model or the engine, is not encoded again. So a span
takes a tenth of what the SDK's spans and encoder take. `opentelemetry-proto`'s classes encode what varies; only who
sends loads this module, and it needs the extra ``telemetry``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from . import names
from .spans import SAMPLED_FLAG, Attributes, Kind, Link, Resource, Span, SpanEvent, Status, Value, link_flags

_KINDS = {Kind.INTERNAL: trace_pb2.Span.SPAN_KIND_INTERNAL, Kind.CLIENT: trace_pb2.Span.SPAN_KIND_CLIENT}
_CODES = {Status.UNSET: trace_pb2.Status.STATUS_CODE_UNSET, Status.ERROR: trace_pb2.Status.STATUS_CODE_ERROR}
_ATTRIBUTES_KEPT = 16_384


def _tag(message: type, field: str) -> bytes:
    """Return what stands before an embedded message: the number of its field, and that a length follows."""
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | 2)  # type: ignore[attr-defined]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_LENGTHS = [_varint(length) for length in range(4096)]

_REQUEST_RESOURCE = _tag(ExportTraceServiceRequest, "resource_spans")
_RESOURCE = _tag(trace_pb2.ResourceSpans, "resource")
_RESOURCE_ATTRIBUTE = _tag(resource_pb2.Resource, "attributes")
_SCOPES = _tag(trace_pb2.ResourceSpans, "scope_spans")
_RESOURCE_SCHEMA = _tag(trace_pb2.ResourceSpans, "schema_url")
_SCOPE = _tag(trace_pb2.ScopeSpans, "scope")
_SPANS = _tag(trace_pb2.ScopeSpans, "spans")
_SCOPE_SCHEMA = _tag(trace_pb2.ScopeSpans, "schema_url")
_ATTRIBUTE = _tag(trace_pb2.Span, "attributes")
_EVENT = _tag(trace_pb2.Span, "events")
_EVENT_ATTRIBUTE = _tag(trace_pb2.Span.Event, "attributes")
_LINK = _tag(trace_pb2.Span, "links")
_LINK_ATTRIBUTE = _tag(trace_pb2.Span.Link, "attributes")
_STATUS = _tag(trace_pb2.Span, "status")


def encoded(spans: Iterable[Span]) -> bytes:
    """Return one ExportTraceServiceRequest with all `spans`, by resource and in their order."""
    scope = _SCOPE + _sized(
        InstrumentationScope(name=names.SCOPE, version=names.SCOPE_VERSION).SerializeToString()
    )
    schema = _sized(names.SCHEMA_URL.encode())
    parts = []
    for resource, group in groupby(spans, key=_resource_of):
        of_scope = b"".join([scope, *[_SPANS + _sized(_span(span)) for span in group], _SCOPE_SCHEMA, schema])
        described = _attributes(_RESOURCE_ATTRIBUTE, resource.attributes)
        of_resource = b"".join(
            (_RESOURCE, _sized(described), _SCOPES, _sized(of_scope), _RESOURCE_SCHEMA, schema)
        )
        parts += [_REQUEST_RESOURCE, _sized(of_resource)]
    return b"".join(parts)


def _resource_of(span: Span) -> Resource:
    return span.resource


def _sized(content: bytes) -> bytes:
    length = len(content)
    return (_LENGTHS[length] if length < len(_LENGTHS) else _varint(length)) + content


def _span(span: Span) -> bytes:
    made: bytes = trace_pb2.Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent,
        flags=SAMPLED_FLAG,
        name=span.name,
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
    ).SerializeToString()
    made += _attributes(_ATTRIBUTE, span.attributes)
    if span.links:
        made += b"".join([_LINK + _sized(_link(link)) for link in span.links])
    if span.events:
        made += b"".join([_EVENT + _sized(_event(event)) for event in span.events])
    if span.status != Status.UNSET:
        status = trace_pb2.Status(code=_CODES[span.status], message=span.message)
        made += _STATUS + _sized(status.SerializeToString())
    return made


def _link(link: Link) -> bytes:
    made: bytes = trace_pb2.Span.Link(
        trace_id=link.trace_id, span_id=link.span_id, flags=link_flags(link)
    ).SerializeToString()
    return made + _attributes(_LINK_ATTRIBUTE, link.attributes)


def _event(event: SpanEvent) -> bytes:
    made: bytes = trace_pb2.Span.Event(time_unix_nano=event.time_ns, name=event.name).SerializeToString()
    return made + _attributes(_EVENT_ATTRIBUTE, event.attributes)


def _attributes(tag: bytes, attributes: Attributes) -> bytes:
    if not attributes:
        return b""
    return tag + tag.join([_attribute(key, value) for key, value in attributes])


@lru_cache(_ATTRIBUTES_KEPT, typed=True)
def _attribute(key: str, value: Value) -> bytes:
    """Return a KeyValue with its length; typed, because 1, 1.0 and True are equal and encoded differently."""
    return _sized(KeyValue(key=key, value=_value(value)).SerializeToString())


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
