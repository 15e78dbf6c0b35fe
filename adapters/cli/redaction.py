"""A copy of a run's log without what may be private: texts, tokens, paths, options, hosts, messages, logged lines.

What is taken out is replaced by its digest, so that two things that were equal can still be seen to be. A digest of
something that can be guessed (a common path, a short word) can be confirmed by who guesses it.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

import msgspec
from pydantic import BaseModel

from ...events.record import Record
from ...events.types import DeviceSampled, Event, PolicyChanged, RunResumed, RunStarted, StallDetected

HIDDEN_FIELDS = frozenset({"message", "host", "base", "forked_from", "missing", "line", "node", "nodes"})
"""Text fields of events of which only a digest stays, in every event that has one, and in each `origin`."""

KEPT_FIELDS = frozenset(
    {
        "actor", "awaited", "call", "checkpoint", "code_version", "digest", "edge", "effect", "engine",
        "error", "expected", "failed_actor", "found", "key", "kind", "law", "path", "phase", "present", "reason",
        "run", "source", "subject", "trace_parent", "trajectory", "waiter", "worker", "works",
    }
)  # fmt: skip
"""Text fields that eventrain makes itself, of numbers and of its own words. A test knows every text field."""

TREATED_FIELDS = frozenset({"old", "new", "chain", "sentence", "config", "device"})
"""Fields with rules of their own, below."""

HIDDEN_SETTINGS = frozenset(
    {
        "model.path",
        "data.path",
        "data.eval_path",
        "data.options",
        "environment.options",
        "engine.urls",
        "engine.python",
        "engine.options",
        "engine.tls_ca",
        "learner.weights_folder",
        "cluster.address",
        "telemetry.otlp_endpoint",
        "telemetry.prometheus_host",
        "telemetry.ray_metrics",
        "telemetry.tracker_project",
    }
)

_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(?:Error|Exception|Gone|Failed|Refused|Warning|Exit)(?=:)")


class Redactor:
    """Redacts the records of one log, one after the other."""

    def __init__(self) -> None:
        self._messages: list[str] = []  # of engines and workers that were lost: stalls may tell them

    def record(self, record: Record) -> Record:
        """Return `record` without anything private; seq, times and causes stay."""
        return record._replace(event=self.event(record.event))

    def event(self, event: Event) -> Event:
        """Return `event` without anything private."""
        changed = _hidden_fields(event)
        origin = getattr(event, "origin", None)
        if origin is not None:
            changed["origin"] = origin.model_copy(update=_hidden_fields(origin))
        match event:
            case RunStarted():
                changed |= {"config": redacted_config(event.config), "redacted": True}
            case RunResumed() if event.config is not None:
                changed["config"] = redacted_config(event.config)
            case PolicyChanged() if event.key in HIDDEN_SETTINGS:
                changed |= {"old": digest_of(event.old), "new": digest_of(event.new)}
            case DeviceSampled() if "/" in event.device:  # of another host, which is named first
                host, _, device = event.device.rpartition("/")
                changed["device"] = f"{digest_of(host)}/{device}"
            case StallDetected():
                changed["chain"] = tuple(self._without_messages(link) for link in event.chain)
                changed["sentence"] = self._without_messages(event.sentence)
        message = getattr(event, "message", "")
        if message and event.kind in ("engine_lost", "environment_worker_lost"):  # type: ignore[attr-defined]
            self._messages.append(message)
        return event.model_copy(update=changed) if changed else event

    def _without_messages(self, text: str) -> str:
        for message in self._messages:
            text = text.replace(message, _message(message))
        return text


def _hidden_fields(model: BaseModel) -> dict[str, Any]:
    """Return what stands for the hidden fields of an event, or of an origin, that are not empty."""
    return {
        name: _message(value) if name in ("message", "line") else _each_hidden(value)
        for name, value in model
        if name in HIDDEN_FIELDS and value
    }


def _each_hidden(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return tuple(map(digest_of, value)) if isinstance(value, tuple) else digest_of(value)


def redacted_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with its paths and its free options replaced by digests."""
    hidden = {section: dict(values) for section, values in config.items() if isinstance(values, dict)}
    for key in HIDDEN_SETTINGS:
        section, name = key.split(".")
        value = hidden.get(section, {}).get(name)
        if value:
            hidden[section][name] = _hidden(value)
    return {**config, **hidden}


def _hidden(value: Any) -> Any:
    """Return the digest of a setting in a form that the configuration still takes."""
    if isinstance(value, dict):
        return {"redacted": digest_of(value)}
    if isinstance(value, list):
        return [_hidden(one) for one in value]
    return f"https://{digest_of(value)}" if str(value).startswith(("http://", "https://")) else digest_of(value)


def digest_of(value: object) -> str:
    """Return ``sha256:`` and 64 bits of the digest of a text, or of a value as sorted JSON."""
    data = value.encode() if isinstance(value, str) else msgspec.json.encode(value, order="sorted")
    return f"sha256:{sha256(data).hexdigest()[:16]}"


def _message(text: str) -> str:
    """Return the exception's type that a message begins with, where it does, and the digest of the whole."""
    found = _TYPE.match(text)
    return f"{found[0]}: {digest_of(text)}" if found else digest_of(text)
