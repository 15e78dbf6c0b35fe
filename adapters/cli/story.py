"""Pick out of a log what concerns one trajectory or one group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...events.identity import group_of
from ...events.record import Record
from ...events.types import (
    BatchTaken,
    EnvStepFinished,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    LlmCallFinished,
    StepCompleted,
    TrajectoryCompleted,
    TrajectoryDropped,
    TrajectoryFailed,
    TrajectoryStarted,
)

GroupEnd = GroupFiltered | GroupFailed | GroupEvicted | GroupDiscarded


@dataclass
class AttemptStory:
    """One attempt at a trajectory."""

    attempt: int
    started: Record
    ended: Record | None = None
    calls: list[LlmCallFinished] = field(default_factory=list)
    env_steps: list[EnvStepFinished] = field(default_factory=list)

    @property
    def failure(self) -> TrajectoryFailed | None:
        """How it failed, if it did."""
        event = self.ended.event if self.ended else None
        return event if isinstance(event, TrajectoryFailed) else None

    @property
    def seconds(self) -> float | None:
        """Wall time, None while it is going on."""
        return None if self.ended is None else (self.ended.mono - self.started.mono) / 1e9


@dataclass
class GroupStory:
    """What became of one group."""

    group: int
    dispatched: GroupDispatched
    dispatched_seq: int
    trajectories: dict[str, TrajectoryStory] = field(default_factory=dict)
    buffered: GroupBuffered | None = None
    ended: GroupEnd | None = None
    taken_step: int | None = None
    trained: StepCompleted | None = None

    @property
    def lag(self) -> int | None:
        """Step that trained the group minus the version at its dispatch; None if it was not taken."""
        return None if self.taken_step is None else self.taken_step - self.dispatched.version


@dataclass
class TrajectoryStory:
    """What became of one trajectory; `group` is None in an evaluation."""

    trajectory: str
    group: GroupStory | None = None
    attempts: list[AttemptStory] = field(default_factory=list)
    dropped: TrajectoryDropped | None = None
    """Set when its group went on without it."""

    @property
    def completed(self) -> TrajectoryCompleted | None:
        """Its completion, by whichever attempt, or None."""
        for attempt in reversed(self.attempts):
            if attempt.ended is not None and isinstance(attempt.ended.event, TrajectoryCompleted):
                return attempt.ended.event
        return None


def read_group(records: Iterable[Record], number: int) -> GroupStory | None:
    """Return the story of group `number`, or None when the log has no such group."""
    group: GroupStory | None = None
    for record in records:
        event = record.event
        if isinstance(event, GroupDispatched) and event.group == number:
            group = GroupStory(number, event, record.seq)
        elif group is not None:
            _fold_group(group, record)
    return group


def read_trajectory(records: Iterable[Record], name: str) -> TrajectoryStory | None:
    """Return the story of trajectory `name` (``57/3``, ``eval0/2``), or None when the log has none."""
    number = group_of(name)
    if number is not None:
        group = read_group(records, number)
        return None if group is None else group.trajectories.get(name)
    story = TrajectoryStory(name)
    for record in records:
        if getattr(record.event, "trajectory", None) == name:
            _fold_trajectory(story, record)
    return story if story.attempts else None


def _fold_group(group: GroupStory, record: Record) -> None:
    event = record.event
    match event:
        case GroupBuffered() if event.group == group.group:
            group.buffered = event
        case GroupFiltered() | GroupFailed() | GroupEvicted() | GroupDiscarded() if (
            event.group == group.group
        ):
            group.ended = event
        case BatchTaken() if group.group in event.groups:
            group.taken_step = event.step
        case StepCompleted() if event.step == group.taken_step:
            group.trained = event
        case _:
            name = getattr(event, "trajectory", "")
            if name and name.startswith(f"{group.group}/"):
                story = group.trajectories.setdefault(name, TrajectoryStory(name, group))
                _fold_trajectory(story, record)


def _fold_trajectory(story: TrajectoryStory, record: Record) -> None:
    match record.event:
        case TrajectoryStarted() as event:
            story.attempts.append(AttemptStory(event.attempt, record))
        case TrajectoryCompleted() | TrajectoryFailed() if story.attempts:
            story.attempts[-1].ended = record
        case TrajectoryDropped() as event:
            story.dropped = event
        case LlmCallFinished() as event if story.attempts:
            story.attempts[-1].calls.append(event)
        case EnvStepFinished() as event if story.attempts:
            story.attempts[-1].env_steps.append(event)
