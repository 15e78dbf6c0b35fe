"""Lines of the log: what goes in comes out, in this version and from older ones."""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from eventrain.events import LogReader, LogTooNew, Record
from eventrain.events.codec import ENVELOPE, decode, decode_raw, encode
from eventrain.events.types import (
    BY_KIND,
    EVENT_CLASSES,
    Event,
    LlmCallFinished,
    LlmCallStarted,
    PayloadRef,
    RewardScored,
    RunFinished,
    RunStarted,
)
from eventrain.events.upcast import UPCASTERS

GOLDEN = Path(__file__).parent.parent / "golden"
_floats = st.floats(allow_nan=False, allow_infinity=False)
_plain: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: _floats,
    str: st.text(),
    bool: st.booleans(),
    NoneType: st.none(),
    Any: st.recursive(
        st.none() | st.booleans() | st.integers() | _floats | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    ),
}


def _values(annotation: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of the values that a field's annotation allows."""
    if annotation in _plain:
        return _plain[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of([_values(argument) for argument in arguments])
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(_values(arguments[0]), max_size=4).map(tuple)
        return st.tuples(*map(_values, arguments))
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=4)
    assert issubclass(annotation, BaseModel), f"no strategy for {annotation}"
    return _models(annotation)


def _models(model: type[BaseModel]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(model)
    return st.builds(model, **{name: _values(hints[name]) for name in model.model_fields})


_events: st.SearchStrategy[Event] = st.sampled_from(EVENT_CLASSES).flatmap(_models)


def _records(events: st.SearchStrategy[Event] = _events) -> st.SearchStrategy[Record]:
    counts = st.integers(0, 2**63 - 1)
    return st.builds(
        Record, counts, counts, counts, st.text(), st.none() | counts, st.text(), events
    )


@settings(max_examples=400, deadline=None)
@given(_records())
def test_a_line_holds_what_pydantic_would_write(record: Record) -> None:
    """The fast encoder and pydantic's own agree on every field of every event."""
    fields = json.loads(encode(record))
    assert {name: fields.pop(name) for name in ENVELOPE if name in fields} == {
        "seq": record.seq,
        "ts": record.ts,
        "mono": record.mono,
        "actor": record.actor,
        "v": record.event.SCHEMA,
        **({} if record.cause is None else {"cause": record.cause}),
        **({"corr": record.corr} if record.corr else {}),
    }
    assert fields == json.loads(record.event.model_dump_json())


@pytest.mark.parametrize("event_class", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_every_event_survives_the_way_to_a_line_and_back(event_class: type[Event]) -> None:
    """Decoding an encoded record gives an equal record, for every class."""

    @settings(max_examples=15, deadline=None)
    @given(_records(_models(event_class)))
    def check(record: Record) -> None:
        line = encode(record)
        assert line.count(b"\n") == 1
        assert line.endswith(b"}\n")
        assert decode(line) == record
        assert type(decode(line).event) is event_class

    check()


def test_no_field_has_the_name_of_the_envelope() -> None:
    """A flat line is unambiguous: no event has a field named as the envelope's, and each has its own kind."""
    for event_class in EVENT_CLASSES:
        assert not set(event_class.model_fields) & set(ENVELOPE), event_class
    assert len(BY_KIND) == len(EVENT_CLASSES)


def test_unknown_fields_are_ignored_on_load_and_refused_on_construction() -> None:
    """A newer log's additional fields do not stop an older reader; a typo in the code does."""
    record = Record(0, 1, 2, "run", None, "", RewardScored(trajectory="0/0", reward=1.0))
    line = encode(record).replace(b'"reward":1.0', b'"reward":1.0,"judge":"jury","scores":[1,{"a":2}]')
    assert decode(line) == record
    assert decode_raw(line)["judge"] == "jury"
    with pytest.raises(ValidationError, match="judge"):
        RewardScored(trajectory="0/0", reward=1.0, judge="jury")


def test_unknown_fields_are_ignored_inside_a_payload_reference() -> None:
    """The same holds one level down, where an event names its payload."""
    event_class = BY_KIND["trajectory_completed"]
    fields = {name: 1 for name in event_class.model_fields if name not in {"kind", "payload"}}
    fields |= {"trajectory": "0/0", "version_spans": ((0, 1),), "stop_reason": "done"}
    event = event_class(**fields, payload=PayloadRef(digest="ab", length=1, pack=1, offset=0))
    record = Record(3, 1, 2, "collector", 1, "0/0", event)
    assert decode(encode(record).replace(b'"pack":1', b'"pack":1,"codec":"none"')) == record


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{}", "a line is no record"),
        (b"[1]", "a line is no record"),
        (b'{"seq":1,', "a line is no record"),
        (
            b'{"seq":1,"ts":1,"mono":1,"actor":"a","v":1,"kind":"reward_scored","trajectory":"0/0"}',
            "seq 1 is no valid 'reward_scored': reward: Field required",
        ),
        (
            b'{"seq":1,"ts":1,"mono":1,"actor":"a","v":1,"kind":"reward_scored","trajectory":"0/0","reward":"x"}',
            "seq 1 is no valid 'reward_scored': reward: Input should be a valid number",
        ),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(line: bytes, message: str) -> None:
    """A line that is no valid event raises ValueError with the field and what is wrong with it."""
    with pytest.raises(ValueError, match=message) as caught:
        decode(line)
    assert "\n" not in str(caught.value)


def test_events_of_a_newer_version_are_named() -> None:
    """An unknown kind or schema says so; it is not taken for damage."""
    line = encode(Record(0, 1, 2, "run", None, "", RewardScored(trajectory="0/0", reward=1.0)))
    with pytest.raises(LogTooNew, match="this version knows no event 'reward_doubted'"):
        decode(line.replace(b"reward_scored", b"reward_doubted"))
    with pytest.raises(LogTooNew, match="'reward_scored' has schema 2; this version knows it up to 1"):
        decode(line.replace(b'"v":1', b'"v":2'))


def test_every_changed_schema_has_its_chain_of_upcasters() -> None:
    """From each schema below a class's newest, one upcaster leads to the next; and there are no others."""
    needed = {(kind, v) for kind, cls in BY_KIND.items() for v in range(1, cls.SCHEMA)}
    assert set(UPCASTERS) == needed


def test_golden_log_of_llm_call_finished_schema_1() -> None:
    """A stored log from before schema 2 reads as these records for ever."""
    at = 1_700_000_000_000_000_000
    run = RunStarted(
        run="golden",
        config={"run": {"seed": 7, "steps": 2}},
        code_version="0.0.1",
        seed=7,
        host="box",
        pid=42,
        prompts=128,
    )
    asked = LlmCallStarted(trajectory="0/0", turn=0, engine="engine-0", prompt_tokens=17, max_tokens=64)
    answered = LlmCallFinished(
        trajectory="0/0",
        turn=0,
        engine="engine-0",
        outcome="completed",
        tokens=31,
        version_spans=((0, 31),),
        queue_s=0.25,
        seconds=0.5,
        finish_reason="stop",
    )
    expired = LlmCallFinished(
        trajectory="0/1",
        turn=0,
        engine="engine-0",
        outcome="expired",
        queue_s=0.5000001,
        seconds=0.0,
        message="no answer",
    )
    assert list(LogReader(GOLDEN / "llm_call_finished_1").records()) == [
        Record(0, at, 1_000, "run", None, "", run),
        Record(1, at + 100_000_000, 100_001_000, "collector", 0, "0/0", asked),
        Record(2, at + 900_000_000, 900_001_000, "collector", 1, "0/0", answered),
        Record(3, at + 1_000_000_000, 1_000_001_000, "collector", 1, "0/1", expired),
        Record(
            4,
            at + 2_000_000_000,
            2_000_001_000,
            "run",
            3,
            "",
            RunFinished(outcome="interrupted", steps=0, version=0, seconds=2.0),
        ),
    ]


def test_an_event_that_is_read_raw_keeps_its_schema() -> None:
    """`raw` shows what stands in the file: neither upcast nor validated."""
    lines = list(LogReader(GOLDEN / "llm_call_finished_1").raw())
    assert (lines[2]["v"], lines[2]["seconds"]) == (1, 0.75)
