"""A fork: a new run that begins as another one was at a checkpoint, with a log that holds all that led there.

The new folder's log begins with the other run's events up to the commit of the checkpoint. So the new run, too, is the
fold of its log, and it goes on from there exactly as a resumed run would.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from ...core.config import RunConfig
from ...events.copying import copy_log, copy_payloads, link_or_copy
from ...events.errors import LogDamaged
from ...events.folder import RunFolder
from ...events.reader import LogReader
from ...events.types import CheckpointCommitted, RunResumed, RunStarted
from .failures import BadInput
from .verify_report import payload_refs


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a fork begins."""

    version: int
    """Steps that are trained there."""
    seq: int
    """Of the event that committed the checkpoint."""
    path: str
    config: RunConfig


@dataclass
class _Commits:
    """The committed checkpoints of the history that counts, by version."""

    points: dict[int, ForkPoint] = field(default_factory=dict)
    config: RunConfig | None = None
    damaged: LogDamaged | None = None


def fork_point(folder: RunFolder, step: int) -> ForkPoint:
    """Return the newest committed checkpoint at or before `step` that is still there.

    A log that is damaged counts up to the damage. Raises `BadInput`, naming those that are there, when none fits.
    """
    commits = _read_commits(folder)
    there = [point for _, point in sorted(commits.points.items()) if (folder.path / point.path).is_dir()]
    fitting = [point for point in there if point.version <= step]
    if fitting:
        return fitting[-1]
    has = ", ".join(f"step:{point.version}" for point in there)
    found = f"there are {has}" if has else "there is none at all"
    damaged = f" ({commits.damaged})" if commits.damaged else ""
    raise BadInput([f"{folder.path}: no committed checkpoint at or before step {step}; {found}{damaged}"])


def _read_commits(folder: RunFolder) -> _Commits:
    commits = _Commits()
    try:
        for record in LogReader(folder.events).records():
            match record.event:
                case RunStarted(config=config, redacted=redacted):
                    if redacted:
                        raise BadInput([f"{folder.path}: is a redacted copy: nothing can go on from it"])
                    commits.config = RunConfig.model_validate(config)
                case CheckpointCommitted(version=version, path=path) if commits.config is not None:
                    commits.points[version] = ForkPoint(version, record.seq, path, commits.config)
                case RunResumed() as event:
                    if event.config is not None:
                        commits.config = RunConfig.model_validate(event.config)
                    commits.points = {at: one for at, one in commits.points.items() if at <= event.version}
    except LogDamaged as error:
        commits.damaged = error
    return commits


def make_fork(source: RunFolder, point: ForkPoint, path: Path) -> RunFolder:
    """Make the run folder at `path`: the log up to `point`, the payloads that it names, and the checkpoint.

    Nothing in it leads back to `source`, apart from what the configuration names. Raises `RunFolderError` when there
    is a run already.
    """
    folder = RunFolder.create(path)
    try:
        copy_log(source.events, folder.events, point.seq)
        ends: dict[int, int] = {}
        for record in LogReader(folder.events).records():
            for ref in payload_refs(record.event):
                ends[ref.pack] = max(ends.get(ref.pack, 0), ref.offset + ref.length)
        copy_payloads(source.payloads, folder.payloads, ends)
        shutil.copytree(source.path / point.path, folder.path / point.path, copy_function=link_or_copy)
        if (source.path / "model").is_dir():  # the demo's, which lies in its run
            shutil.copytree(source.path / "model", folder.path / "model", copy_function=link_or_copy)
    except BaseException:
        remove_fork(folder)
        raise
    return folder


def remove_fork(folder: RunFolder) -> None:
    """Take a folder away that `make_fork` made and in which nothing has run."""
    shutil.rmtree(folder.path, ignore_errors=True)
