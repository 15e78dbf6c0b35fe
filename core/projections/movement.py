"""Whether the run gets anywhere: the last progress, and the groups that steps lost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ...events.record import Record
from ...events.types import (
    BatchTaken,
    Event,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrajectoryCompleted,
    TrajectoryFailed,
)
from .fold import Folded, on

HOLES_MAX = 64


@dataclass(frozen=True, slots=True)
class Hole:
    """A group that was meant for a step and never reached it."""

    target: int
    group: int
    prompt: int
    seq: int
    reason: str
    """In words: ``failed, permanent: prompt too long``, ``filtered: zero variance``, ..."""


@dataclass
class Movement(Folded):
    """Progress is a step, or one more group that a step can use than there ever were.

    Counted so, a run that buffers and evicts the same groups for ever makes none.
    """

    progress_ns: int = 0
    """When the last progress was made, or the run began."""
    progress_seq: int = -1
    attempts: int = 0
    """Attempts that ended since."""
    filtered: int = 0
    """Groups that were filtered since."""
    failed: int = 0
    """Attempts that failed since; cancelled ones are not counted."""
    holes: deque[Hole] = field(default_factory=lambda: deque(maxlen=HOLES_MAX))
    """Groups that targets not yet trained have lost, newest last."""
    _usable: int = 0
    _usable_max: int = 0
    _target_of: dict[int, tuple[int, int]] = field(default_factory=dict)

    @on(RunStarted, RunResumed)
    def _begun(self, record: Record, event: RunStarted | RunResumed) -> None:
        self._moved(record)

    def _moved(self, record: Record) -> None:
        self.progress_ns, self.progress_seq = record.mono, record.seq
        self.attempts = self.filtered = self.failed = 0

    # Groups

    @on(GroupDispatched, GroupRestored)
    def _dispatched(self, record: Record, event: GroupDispatched | GroupRestored) -> None:
        self._target_of[event.group] = (event.target, event.prompt)

    @on(GroupBuffered)
    def _buffered(self, record: Record, event: GroupBuffered) -> None:
        self._usable += 1
        if self._usable > self._usable_max:
            self._usable_max = self._usable
            self._moved(record)

    @on(BatchTaken)
    def _taken(self, record: Record, event: BatchTaken) -> None:
        for group in event.groups:
            self._target_of.pop(group, None)
        left = [hole for hole in self.holes if hole.target > event.step]
        self.holes = deque(left, maxlen=HOLES_MAX)

    @on(StepCompleted)
    def _trained(self, record: Record, event: StepCompleted) -> None:
        self._moved(record)

    @on(GroupFailed, GroupFiltered, GroupEvicted, GroupDiscarded)
    def _lost(self, record: Record, event: Event) -> None:
        if isinstance(event, GroupFailed):
            how = "after its attempts" if event.retryable else "permanent"
            reason = f"failed, {how}: {event.failure.replace('_', ' ')}"
        elif isinstance(event, GroupFiltered):
            self.filtered += 1
            reason = f"filtered: {event.reason.replace('_', ' ')}"
        elif isinstance(event, GroupEvicted):
            self._usable -= 1
            reason = f"evicted, with lag {event.lag}"
        else:
            reason = "given up"
        group: int = event.group  # type: ignore[attr-defined]
        target, prompt = self._target_of.pop(group, (-1, -1))
        self.holes.append(Hole(target, group, prompt, record.seq, reason))

    @on(TrajectoryCompleted, TrajectoryFailed)
    def _ended(self, record: Record, event: TrajectoryCompleted | TrajectoryFailed) -> None:
        if event.group is None:
            return
        if type(event) is TrajectoryFailed:
            if event.failure == "cancelled":
                return
            self.failed += 1
        self.attempts += 1
