"""Open a run's folder for reading, as all the commands that look at a run do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from ...events.folder import RunFolder
from ...events.reader import LogReader
from ...events.record import Record
from .failures import BadInput


def open_run(path: Path) -> RunFolder:
    """Return the run in folder `path`. Raises `BadInput` when there is none, with runs that are near it."""
    if not path.exists():
        raise BadInput([f"{path}: no such folder{_runs_nearby(path)}"])
    if not _is_run(path):
        lacks = "nothing of a run in its events folder" if (path / "events").is_dir() else "no events folder"
        raise BadInput([f"{path}: is no run (it has {lacks}){_runs_nearby(path)}"])
    return RunFolder.open(path)


def reader_of(folder: RunFolder) -> LogReader:
    """Return a reader of the run's log, live or finished."""
    return LogReader(folder.events)


def first_record(records: Iterable[Record], path: Path) -> Record:
    """Return the first of `records`. Raises `BadInput` when the log is still empty."""
    for record in records:
        return record
    raise nothing_to_read(path)


def nothing_to_read(path: Path) -> BadInput:
    """Return what to say of the run in folder `path`, in whose log no event can be read."""
    if any(segment.stat().st_size for segment in (path / "events").glob("*.jsonl.zst")):
        return BadInput([f"{path}: nothing of the log can be read: its first write is not whole"])
    return BadInput([f"{path}: the log is empty: the run has not begun yet"])


def _is_run(path: Path) -> bool:
    """Return whether `path` holds a run, begun or not, rather than something else in a folder named events."""
    return any((path / "events").glob("*.jsonl.zst")) or all(
        (path / part).is_dir() for part in ("events", "payloads")
    )


def _runs_nearby(path: Path) -> str:
    """Return a hint at runs in the same folder, or below the one that was named."""
    places = [path] if path.is_dir() else [path.parent, Path("runs")]
    folders = [found for place in places if place.is_dir() for found in sorted(place.iterdir())]
    runs = [found for found in folders if found.is_dir() and _is_run(found)]
    if not runs:
        return ""
    near = difflib.get_close_matches(str(path), [str(run) for run in runs], n=1, cutoff=0.0)
    return f"; did you mean {near[0]}?" if near else ""
