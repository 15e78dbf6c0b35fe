"""Log lines: structlog, readable on a terminal, JSON lines elsewhere, and derived from events where possible.

An event of the run is logged under its own kind and with its own fields, so a log line can always be looked up in
the event log. High-frequency kinds (calls, environment steps, waits) have no line: they are what the event log is
for.
"""

from __future__ import annotations

import datetime
import logging as levels
import sys
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from ..events.record import Record
from ..events.types import Event

LEVELS: dict[str, str] = {
    "run_started": "info",
    "run_resumed": "info",
    "learner_up": "info",
    "engine_up": "info",
    "step_completed": "info",
    "eval_completed": "info",
    "checkpoint_committed": "info",
    "stop_requested": "info",
    "data_exhausted": "warning",
    "policy_changed": "info",
    "run_finished": "info",
    "stall_cleared": "info",
    "group_failed": "warning",
    "trajectory_dropped": "warning",
    "prompt_quarantined": "warning",
    "engine_lost": "warning",
    "engine_restarted": "warning",
    "environment_worker_lost": "warning",
    "environment_worker_restarted": "warning",
    "sync_failed": "warning",
    "checkpoint_failed": "warning",
    "deadline_expired": "warning",
    "log_tail_cut": "warning",
    "stall_detected": "warning",
    "telemetry_degraded": "warning",
    "telemetry_dropped": "debug",
    "invariant_broken": "error",
    "learner_lost": "error",
    "run_failed": "error",
    "weights_published": "debug",
    "trajectory_failed": "debug",
    "group_evicted": "debug",
    "group_filtered": "debug",
    "eval_started": "debug",
}
"""The kinds that become log lines, with their level."""

_LEFT_OUT = {
    "run_started": {"config"},
    "step_completed": {"metrics", "parts_s"},
    "stall_detected": {"chain"},  # the sentence has every link of it
}


class Output(Protocol):
    """Where log lines go."""

    def write(self, text: str, /) -> int:
        """Take `text`."""
        ...

    def flush(self) -> None:
        """Pass on what was taken."""
        ...


class StderrNow:
    """Write to whatever ``sys.stderr`` is at that moment.

    A live view puts its own stream there while it draws, and lines must go through it to land above the view.
    """

    def write(self, text: str) -> int:
        """Write `text`."""
        return sys.stderr.write(text)

    def flush(self) -> None:
        """Flush."""
        sys.stderr.flush()


def configure(
    *, human: bool, colors: bool = False, debug: bool = False, stream: Output | None = None
) -> None:
    """Set up structlog for this process: `human` lines or JSON lines, to `stream` (stderr when None)."""
    console = structlog.dev.ConsoleRenderer(colors=colors, sort_keys=False, pad_event_to=20, pad_level=False)
    renderer: list[Callable[..., Any]] = [_for_a_person, console]
    if not human:
        renderer = [
            structlog.processors.format_exc_info,
            _event_first,
            structlog.processors.JSONRenderer(sort_keys=False),
        ]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.MaybeTimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(levels.DEBUG if debug else levels.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=stream or StderrNow()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


def fields_of(event: Event) -> dict[str, Any]:
    """Return what a log line says of `event`: its fields, without the empty ones; floats in four digits."""
    kind = str(getattr(event, "kind", ""))
    fields: dict[str, Any] = {}
    for name in type(event).model_fields:
        value = getattr(event, name)
        if name == "kind" or name in _LEFT_OUT.get(kind, ()) or value is None or value in ("", (), {}):
            continue
        # `event` is the key under which structlog keeps the message.
        fields[name] = float(f"{value:.4g}") if isinstance(value, float) else value
    return fields


class EventLogger:
    """Turn records into log lines.

    `step_every` thins out step_completed to every n-th step, for terminals that show a live view as well.
    """

    def __init__(self, step_every: int = 1) -> None:
        self._step_every = step_every
        self._logger = structlog.get_logger()
        self._step_started_mono = 0

    def apply(self, record: Record) -> None:
        """Log `record` if its kind has a log line."""
        kind = str(getattr(record.event, "kind", ""))
        level = LEVELS.get(kind)
        if level is None:
            return
        fields = fields_of(record.event)
        if kind == "step_completed":
            elapsed_ns = record.mono - self._step_started_mono if self._step_started_mono else 0
            self._step_started_mono = record.mono
            if fields["step"] % self._step_every:
                return
            if elapsed_ns:
                fields["step_s"] = float(f"{elapsed_ns / 1e9:.3g}")
        getattr(self._logger, level)(kind, **fields, seq=record.seq, timestamp=_iso(record.ts))


def _iso(ts_ns: int) -> str:
    seconds, rest = divmod(ts_ns, 1_000_000_000)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03}Z"


def _event_first(_logger: object, _method: str, event_dict: dict[str, Any]) -> dict[str, Any]:
    """Put what every line has before what only some have."""
    head = {key: event_dict[key] for key in ("timestamp", "level", "event") if key in event_dict}
    return head | event_dict


def _for_a_person(_logger: object, _method: str, event_dict: dict[str, Any]) -> dict[str, Any]:
    """Leave only what is looked at while it scrolls by, with the local time of day."""
    for name in ("seq", "lag_max", "pid") if event_dict["event"] in LEVELS else ():
        event_dict.pop(name, None)
    if "size_bytes" in event_dict:
        event_dict["size_mb"] = round(event_dict.pop("size_bytes") / 1e6, 1)
    if event_dict["event"] == "step_completed":
        event_dict.pop("version", None)  # always the step's number and one
        event_dict["loss"] = event_dict.pop("loss", None)  # last: the reward is what is looked for
    stamp = event_dict.get("timestamp")
    if isinstance(stamp, str):
        moment = datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).astimezone()
        event_dict["timestamp"] = f"{moment:%H:%M:%S}"
    return event_dict
