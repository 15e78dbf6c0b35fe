"""A record as one line of JSON, and back.

A line is flat: the envelope first, then the event's own fields::

    {"seq":7,"ts":...,"mono":...,"actor":"trainer","cause":6,"v":1,"kind":"phase_entered","phase":"eval","step":3}

Encoding goes through msgspec over the event's ``__dict__``, several times faster than pydantic's own
serialiser; a property test over every event class keeps the two equal. Decoding validates with pydantic, and
is lenient where constructing is strict: a field that this version does not know is ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from .record import Record
from .types import BY_KIND
from .upcast import upcast

ENVELOPE = ("seq", "ts", "mono", "actor", "cause", "corr", "v")
"""What a line holds beside the event; no event has a field of one of these names."""


class Envelope(msgspec.Struct, gc=False):
    """The envelope of a line, read without the event."""

    seq: int
    ts: int
    mono: int
    actor: str
    kind: str
    v: int
    cause: int | None = None
    corr: str = ""


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.__dict__
    raise TypeError(f"{type(value).__name__} has no place in an event")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_dict = msgspec.json.Decoder(dict[str, Any]).decode
_validators = {kind: cls.__pydantic_validator__.validate_json for kind, cls in BY_KIND.items()}
_schemas = {kind: cls.SCHEMA for kind, cls in BY_KIND.items()}


def encode(record: Record) -> bytes:
    """Return `record` as a line, newline included."""
    seq, ts, mono, actor, cause, corr, event = record
    line = {"seq": seq, "ts": ts, "mono": mono, "actor": actor}
    if cause is not None:
        line["cause"] = cause
    if corr:
        line["corr"] = corr
    line["v"] = event.SCHEMA
    try:
        return _encode({**line, **event.__dict__}) + b"\n"
    except (TypeError, ValueError, OverflowError):
        # What msgspec has no JSON for (an integer beyond 64 bits, for one), pydantic may have.
        return b"%b,%b\n" % (_encode(line)[:-1], event.model_dump_json().encode()[1:])


def decode_envelope(line: bytes | memoryview) -> Envelope:
    """Return the envelope of a line. Raises ValueError if it has none."""
    try:
        return _decode_envelope(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"a line is no record ({error})") from None


def decode_raw(line: bytes) -> dict[str, Any]:
    """Return a line as it stands: not upcast, not validated. Raises ValueError if it is no JSON object."""
    try:
        return _decode_dict(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"a line is no JSON object ({error})") from None


def decode(line: bytes) -> Record:
    """Return the record of a line: upcast to the newest schema, validated, unknown fields ignored.

    Raises ValueError for what is no valid record and `LogTooNew` for what only a newer version can read.
    """
    envelope = decode_envelope(line)
    kind = envelope.kind
    try:
        if envelope.v == _schemas.get(kind):
            event = _validators[kind](line, extra="ignore")
        else:
            fields = upcast(decode_raw(line), envelope.v)
            event = BY_KIND[kind].__pydantic_validator__.validate_python(fields, extra="ignore")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or kind
        raise ValueError(f"seq {envelope.seq} is no valid '{kind}': {where}: {first['msg']}") from None
    return Record(
        envelope.seq, envelope.ts, envelope.mono, envelope.actor, envelope.cause, envelope.corr, event
    )
