"""What the tests of events/ share: a writer's day in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from eventrain.events import LogWriter, Record
from eventrain.events.types import Event, PromptDrawn, RewardScored

WriteLog = Callable[..., list[Record]]


def _records(count: int, first_seq: int = 0, events: Sequence[Event] | None = None) -> list[Record]:
    """Return records of a plausible run, dense from `first_seq`."""
    made = []
    for seq in range(first_seq, first_seq + count):
        event: Event = PromptDrawn(prompt=seq, epoch=0, index=seq * 7 % 101)
        if seq % 3 == 0:
            event = RewardScored(trajectory=f"{seq}/0", reward=seq / 7)
        cause = seq - 1 if seq % 2 else None
        made.append(Record(seq, 10**18 + seq, seq * 1000, "collector", cause, "" if seq % 5 else f"{seq}/0", event))
    return made


@pytest.fixture
def make_records() -> Callable[..., list[Record]]:
    """Give the function that makes records."""
    return _records


def _write_log(
    folder: Path,
    *groups: int,
    first_seq: int = 0,
    epoch: int = 1,
    run: str = "test",
    segment_bytes: int = 2**20,
    seal: bool = True,
) -> list[Record]:
    """Write one frame per group of so many records; without `seal`, leave the log as a kill leaves it."""
    writer = LogWriter(folder, run=run, epoch=epoch, first_seq=first_seq, segment_bytes=segment_bytes)
    records = _records(sum(groups), first_seq)
    rest = iter(records)
    for size in groups:  # the thread's own steps, made by hand so that the frames are known
        for _ in range(size):
            writer.append(next(rest))
        writer._commit()
    if seal:
        writer.close()
    else:
        writer._segments.abandon()
    return records


@pytest.fixture
def write_log() -> WriteLog:
    """Give the function that writes a log of known frames."""
    return _write_log
