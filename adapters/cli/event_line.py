"""One event as one line for a person: seq, time since the start, actor, kind, and the fields in short."""

from __future__ import annotations

from typing import Any

import click
from pydantic import BaseModel

from ...events.record import Record
from ...events.types import BY_KIND, Event, PayloadRef
from .quantities import clock_time, number, seconds, size

KIND_WIDTH = max(len(kind) for kind in BY_KIND)
ACTOR_WIDTH = len("environment_pool")

BAD = frozenset(
    {
        "run_failed",
        "group_failed",
        "trajectory_failed",
        "trajectory_dropped",
        "prompt_quarantined",
        "engine_lost",
        "environment_worker_lost",
        "learner_lost",
        "sync_failed",
        "checkpoint_failed",
        "deadline_expired",
        "invariant_broken",
        "stall_detected",
    }
)
"""Kinds that say that something went wrong."""

_COLOURS = {
    "step_completed": "green",
    "run_started": "green",
    "run_resumed": "green",
    "run_finished": "green",
    "checkpoint_committed": "green",
    "blocked": "yellow",
    "unblocked": "yellow",
    "phase_entered": "cyan",
    "batch_taken": "cyan",
    "step_started": "cyan",
}


def kind_of(record: Record) -> str:
    """Return the kind of the record's event."""
    return kind_name(type(record.event))


def kind_name(kind: type[Event]) -> str:
    """Return the kind of all events of one class."""
    return str(kind.model_fields["kind"].default)


def event_line(record: Record, start_ts: int) -> str:
    """Return the line of `record`, styled for a terminal; `start_ts` is the first event's time.

    Times are UTC differences and not monotonic ones: a resumed run's monotonic clock began anew.

    Styles are ANSI codes, which click.echo removes where the output is no terminal.
    """
    kind = kind_of(record)
    colour = "red" if kind in BAD else _COLOURS.get(kind)
    shown_kind = click.style(f"{kind:<{KIND_WIDTH}}", fg=colour) if colour else f"{kind:<{KIND_WIDTH}}"
    when = clock_time(record.ts - start_ts)
    actor = click.style(f"{record.actor:<{ACTOR_WIDTH}}", dim=True)
    return f"{record.seq:>7}  {when:>11}  {actor}  {shown_kind}  {fields_text(record.event)}".rstrip()


def fields_text(event: Event) -> str:
    """Return the fields of `event` as ``name=value``, in the order of its class, without the empty ones."""
    parts = []
    for name in type(event).model_fields:
        if name == "kind":
            continue
        value = getattr(event, name)
        if value is None or value in ("", (), {}):
            continue
        label, text = _short(name, value)
        parts.append(f"{label}={text}")
    return " ".join(parts)


def _short(name: str, value: Any) -> tuple[str, str]:
    if isinstance(value, PayloadRef):
        return name, size(value.length).replace(" ", "")
    if name == "config" and isinstance(value, dict):
        return name, f"<{len(value)} sections>"
    if name == "version_spans":
        return "versions", spans_text(value)
    if isinstance(value, float) and (name.endswith("_s") or name == "seconds"):
        return name.removesuffix("_s"), seconds(value).replace(" ", "")
    if name.endswith("_bytes") and isinstance(value, int):
        return name.removesuffix("_bytes"), size(value).replace(" ", "")
    if name == "parts_s" and isinstance(value, dict):
        return "parts", _braces({key: seconds(part).replace(" ", "") for key, part in value.items()})
    return name, _plain(value)


def spans_text(spans: tuple[tuple[int, int], ...]) -> str:
    """Return version spans in short: ``v3x12,v4x5`` is twelve tokens of version 3, then five of version 4."""
    return ",".join(f"v{version}x{count}" for version, count in spans)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return _braces({key: _plain(part) for key, part in value.items()})
    if isinstance(value, tuple | list):
        shown = [_plain(part) for part in value[:12]]
        more = f",+{len(value) - 12}" if len(value) > 12 else ""
        return ",".join(shown) + more
    if isinstance(value, BaseModel):
        return _quoted(value.model_dump_json())
    return _quoted(str(value))


def _quoted(text: str) -> str:
    """Return `text` on one line, in quotes where a space or a sign of ours would make it ambiguous."""
    line = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)
    if len(line) > 160:
        line = line[:157] + "..."
    return f'"{line}"' if " " in line or "=" in line or '"' in line else line


def _braces(parts: dict[str, str]) -> str:
    shown = [f"{key}={text}" for key, text in list(parts.items())[:8]]
    if len(parts) > 8:
        shown.append(f"+{len(parts) - 8}")
    return "{" + " ".join(shown) + "}"
