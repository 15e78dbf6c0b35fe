"""What all spans of one life of a run share: its id, its process, the names of model and environment."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, NamedTuple

from ....core.projections import Identity
from ....events.identity import span_id
from ....events.types import RunResumed, RunStarted
from . import names
from .spans import Attributes, Resource, Span


class Origin(NamedTuple):
    """Who made the spans. A resume brings another process, a fork also another run id."""

    run: str
    """The run's id."""
    resource: Resource
    agent: str
    """The environment's kind."""
    chat: str
    """Name of the spans of calls to an engine."""
    root: str
    """Name of the root of a trajectory."""
    call: Attributes
    """What every call to an engine has."""
    code_version: str


def begun(identity: Identity, event: RunStarted) -> Origin:
    """Return the origin of a run that starts; `identity` has folded `event`."""
    return _origin(identity.run, event.config, event.code_version, (event.host, event.pid))


def went_on(before: Origin, identity: Identity, config: dict[str, Any], event: RunResumed) -> Origin:
    """Return the origin of what follows a resume, or a fork, under `config`; `identity` has folded `event`."""
    code_version = event.code_version or before.code_version
    return _origin(identity.run, config, code_version, (event.host, event.pid))


def _origin(run: str, config: dict[str, Any], code_version: str, process: tuple[str, int]) -> Origin:
    model = model_name(str(config["model"]["path"]))
    agent = str(config["environment"]["kind"])
    provider = str(config.get("engine", {}).get("kind", "torch"))
    resource = Resource(
        (
            (names.SERVICE_NAME, "eventrain"),
            (names.SERVICE_VERSION, code_version),
            (names.SERVICE_INSTANCE, run),
            (names.HOST, process[0]),
            (names.PID, process[1]),
            (names.RUN, run),
        )
    )
    call = ((names.OPERATION, "chat"), (names.PROVIDER, provider), (names.MODEL, model))
    return Origin(run, resource, agent, f"chat {model}", f"invoke_agent {agent}", call, code_version)


def model_name(path: str) -> str:
    """Return what a person calls the model at `path`: the last part of a folder, or a hub's ``owner/name`` whole."""
    parts = PurePath(path).parts
    is_hub = len(parts) == 2 and parts[0] not in ("/", ".", "..")
    return path if is_hub else (parts[-1] if parts else path)


def truncated(run: str, tree: list[Span], open_ids: frozenset[bytes], seq: int, *, gone: bool) -> list[Span]:
    """Return a copy of a `tree` that is still open at `seq`, closed there; spans of `open_ids` are marked as cut short.

    The copy has ids of its own, made from the spans' own and `seq`: the true spans may still come under theirs, and a
    viewer that drops equal ids would keep the wrong ones. Of a tree that is `gone`, with its process, only what is open
    is renamed: what had ended in it is as true as it will ever be, and an engine's spans hang below its calls.
    """
    copied = [span.span_id for span in tree if not gone or span.span_id in open_ids]
    renamed = {own: span_id(run, "truncated", own.hex(), seq) for own in copied}
    copies = []
    for span in tree:
        marks: Attributes = ((names.SNAPSHOT, seq),) if span.span_id in renamed else ()
        if span.span_id in open_ids:
            marks = ((names.TRUNCATED, True), *marks)
        copies.append(
            span._replace(
                span_id=renamed.get(span.span_id, span.span_id),
                parent=renamed.get(span.parent, span.parent),
                attributes=span.attributes + marks,
            )
        )
    return copies
