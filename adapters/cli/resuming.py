"""Going on with a run from its folder: what its log says, what is still there, and what a person is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...core.config import RunConfig
from ...core.ports import Ports
from ...core.resume import NotResumable, Past, resumption
from ...events.errors import PayloadDamaged, PayloadMissing
from ...events.folder import RunFolder
from ...events.payload import PayloadStore
from ...events.reader import LogReader, TornTail
from ...events.types import Event, GroupDiscarded, LogTailCut, PayloadRef, PolicyChanged, RunResumed
from .failures import BadInput


def past_of(folder: RunFolder) -> Past:
    """Fold the log of the run. Raises `BadInput` where it cannot be gone on with.

    So do `LogDamaged` and `LogTooNew`, which the log's reader raises.
    """
    try:
        past = Past.of(LogReader(folder.events).records())
    except NotResumable as error:
        raise BadInput([f"{folder.path}: {error}"]) from None
    if past.started.redacted:
        raise BadInput([f"{folder.path}: is a redacted copy: nothing can go on from it"])
    model = Path(past.config.model.path)
    if not model.is_dir():
        own = folder.path / "model"  # the demo's; the folder may have been moved
        if not own.is_dir():
            raise BadInput([f"{folder.path}: its model folder {model} is gone"])
        section = past.config.model.model_copy(update={"path": str(own.resolve())})
        past.config = past.config.model_copy(update={"model": section})
    return past


def opening_of(
    past: Past,
    folder: RunFolder,
    payloads: PayloadStore,
    ports: Ports,
    torn: TornTail | None,
    *,
    config: RunConfig | None = None,
    forked_from: str = "",
) -> list[Event]:
    """Return what the run publishes first; raises `BadInput` where it cannot go on, or not with this `config`."""

    def readable(ref: PayloadRef) -> bool:
        try:
            payloads.get(ref)
        except (PayloadMissing, PayloadDamaged):
            return False
        return True

    try:
        opening = resumption(
            past,
            present=lambda path: (folder.path / path).is_dir(),
            readable=readable,
            facts=ports.facts,
            config=config,
            forked_from=forked_from,
        )
    except NotResumable as error:
        raise BadInput([f"{folder.path}: {error}"]) from None
    if torn is not None:
        opening.insert(1, LogTailCut(after_seq=torn.after_seq, cut_bytes=torn.cut_bytes))
    return opening


def resumed_lines(name: str, opening: Sequence[Event]) -> list[str]:
    """Return what a person reads when a run goes on: from where, and what became of what there was."""
    resumed = next(event for event in opening if isinstance(event, RunResumed))
    how = f"forked from {resumed.forked_from}" if resumed.forked_from else "resumed"
    lines = [f"{name}: {how} at step {resumed.step}, from {resumed.checkpoint or 'the model as loaded'}"]
    lines += [
        f"  {event.key} = {event.new}, was {event.old}"
        for event in opening
        if isinstance(event, PolicyChanged)
    ]
    steps = f", of {resumed.rolled_back} steps that are trained again" if resumed.rolled_back else ""
    parts = (
        (resumed.kept, "finished and kept"),
        (resumed.restored, f"restored{steps}"),
        (resumed.redispatched, "in flight, whose prompts are dispatched again"),
        (
            sum(isinstance(event, GroupDiscarded) and event.reason == "unreadable" for event in opening),
            "given up, as their payloads cannot be read",
        ),
    )
    lines += [f"  {count} groups {what}" for count, what in parts if count]
    lines += [
        f"  the log ended in a torn write: {event.cut_bytes} bytes after seq {event.after_seq} are cut off, "
        "and kept in its events folder"
        for event in opening
        if isinstance(event, LogTailCut)
    ]
    return lines
