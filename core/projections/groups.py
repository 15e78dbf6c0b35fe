"""Every group and trajectory that is alive, the buffer, and what became of the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
    PayloadRef,
    RetryScheduled,
    RunResumed,
    StepCompleted,
    TrajectoryCompleted,
    TrajectoryDropped,
    TrajectoryFailed,
    TrajectoryStarted,
    VersionSpans,
)
from .fold import Folded, on

GroupState = Literal["in_flight", "buffered", "training"]


class Completed(NamedTuple):
    """A finished trajectory of a live group."""

    trajectory: str
    reward: float
    completion_tokens: int
    version_spans: VersionSpans
    payload: PayloadRef

    def tokens_before(self, version: int) -> int:
        """Return how many of its sampled tokens are older than `version`."""
        return sum(count for by, count in self.version_spans if by < version)


@dataclass(slots=True)
class Group:
    """A live group."""

    group: int
    prompt: int
    target: int
    version: int
    size: int
    since_ns: int
    state: GroupState = "in_flight"
    completed: dict[str, Completed] = field(default_factory=dict)
    engine_failures: Counter[str] = field(default_factory=Counter)
    """Failed attempts by trajectory that are not charged to the prompt."""
    prompt_failures: Counter[str] = field(default_factory=Counter)
    """Failed attempts by trajectory that are."""
    dropped: set[str] = field(default_factory=set)
    """Trajectories that the group goes on without."""

    @property
    def whole(self) -> bool:
        """Whether every trajectory that was not dropped is complete."""
        return len(self.completed) + len(self.dropped) == self.size

    @property
    def sampled(self) -> int:
        """Sampled tokens of the complete trajectories."""
        return sum(one.completion_tokens for one in self.completed.values())

    def tokens_before(self, version: int) -> int:
        """Return how many sampled tokens of the complete trajectories are older than `version`."""
        return sum(one.tokens_before(version) for one in self.completed.values())


@dataclass
class Filtered:
    """Groups that were filtered for one step."""

    first_seq: int
    rewards: Counter[float] = field(default_factory=Counter)
    """How many by mean reward."""


@dataclass
class Groups(Folded):
    """Live groups and the counts of ended ones."""

    live: dict[int, Group] = field(default_factory=dict)
    dispatched: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """Groups by disposition: trained, filtered, failed, evicted, discarded."""
    next_group: int = 0
    in_flight_by_target: Counter[int] = field(default_factory=Counter)
    buffered_by_target: dict[int, list[int]] = field(default_factory=dict)
    """Buffered groups of each target, oldest first."""
    buffer: list[int] = field(default_factory=list)
    """All buffered groups, the one buffered first first."""
    whole: list[int] = field(default_factory=list)
    """In-flight groups with every trajectory complete, on which the collector has not yet decided."""
    unanswered: dict[str, tuple[int, TrajectoryFailed]] = field(default_factory=dict)
    """Failed attempts of in-flight groups that the collector has not yet answered: (seq, event)."""
    running: dict[str, int] = field(default_factory=dict)
    """Attempts in flight: trajectory -> attempt."""
    trajectories_started: int = 0
    trajectories_completed: int = 0
    trajectories_failed: Counter[str] = field(default_factory=Counter)
    trajectories_dropped: int = 0
    filtered_for: dict[int, Filtered] = field(default_factory=dict)
    """By target, of the steps whose batch is not taken yet."""
    in_flight: int = 0
    buffered: int = 0
    training: int = 0
    _restored: dict[int, int] = field(default_factory=dict)  # buffered groups that the batch of a step had taken before

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        """Forget the attempts of the process that is gone; its groups end, or are restored, one by one."""
        self.trajectories_failed["interrupted"] += len(self.running)
        self.running.clear()

    @on(GroupRestored)
    def _restore(self, record: Record, event: GroupRestored) -> None:
        if event.group in self.live:
            self.training -= 1
        else:
            self.ended["trained"] -= 1
        completed = {
            one.trajectory: Completed(
                one.trajectory, one.reward, one.completion_tokens, one.version_spans, one.payload
            )
            for one in event.trajectories
        }
        self.live[event.group] = Group(
            event.group,
            event.prompt,
            event.target,
            event.version,
            event.size,
            record.mono,
            "buffered",
            completed,
        )
        self.buffered += 1
        for line in (self.buffer, self.buffered_by_target.setdefault(event.target, [])):
            before = sum(self._restored.get(number, event.step + 1) <= event.step for number in line)
            line.insert(before, event.group)  # they stand in front, in the order of their steps
        self._restored[event.group] = event.step

    @on(GroupDispatched)
    def _dispatched(self, record: Record, event: GroupDispatched) -> None:
        self.live[event.group] = Group(
            event.group, event.prompt, event.target, event.version, event.size, record.mono
        )
        self.dispatched += 1
        self.next_group = event.group + 1
        self.in_flight += 1
        self.in_flight_by_target[event.target] += 1

    @on(TrajectoryStarted)
    def _started(self, record: Record, event: TrajectoryStarted) -> None:
        if event.group is not None:
            self.running[event.trajectory] = event.attempt
            self.trajectories_started += 1

    @on(TrajectoryCompleted)
    def _completed(self, record: Record, event: TrajectoryCompleted) -> None:
        if event.group is None:
            return
        self.running.pop(event.trajectory, None)
        self.trajectories_completed += 1
        group = self.live.get(event.group)
        if group is None or group.state != "in_flight":
            return
        group.completed[event.trajectory] = Completed(
            event.trajectory, event.reward, event.completion_tokens, event.version_spans, event.payload
        )
        if group.whole:
            self.whole.append(event.group)

    @on(TrajectoryFailed)
    def _failed(self, record: Record, event: TrajectoryFailed) -> None:
        if event.group is None:
            return
        self.running.pop(event.trajectory, None)
        self.trajectories_failed[event.failure] += 1
        group = self.live.get(event.group)
        if group is None or group.state != "in_flight" or event.failure == "cancelled":
            return
        charged = group.prompt_failures if event.blame in ("prompt", "environment") else group.engine_failures
        charged[event.trajectory] += 1
        self.unanswered[event.trajectory] = (record.seq, event)

    @on(RetryScheduled)
    def _retried(self, record: Record, event: RetryScheduled) -> None:
        self.unanswered.pop(event.trajectory, None)

    @on(TrajectoryDropped)
    def _dropped(self, record: Record, event: TrajectoryDropped) -> None:
        self.unanswered.pop(event.trajectory, None)
        self.trajectories_dropped += 1
        group = self.live[event.group]
        group.dropped.add(event.trajectory)
        if group.whole:
            self.whole.append(event.group)

    @on(GroupBuffered)
    def _buffered(self, record: Record, event: GroupBuffered) -> None:
        group = self.live[event.group]
        self._leave_flight(group)
        group.state = "buffered"
        self.buffered += 1
        self.buffer.append(group.group)
        self.buffered_by_target.setdefault(group.target, []).append(group.group)

    @on(BatchTaken)
    def _taken(self, record: Record, event: BatchTaken) -> None:
        for number in event.groups:
            group = self.live[number]
            self._leave_buffer(group)
            group.state = "training"
            self.training += 1
        self.filtered_for = {step: found for step, found in self.filtered_for.items() if step > event.step}

    @on(StepCompleted)
    def _trained(self, record: Record, event: StepCompleted) -> None:
        for group in [group for group in self.live.values() if group.state == "training"]:
            self._end(group, "trained")

    @on(GroupFiltered)
    def _filtered(self, record: Record, event: GroupFiltered) -> None:
        group = self.live[event.group]
        found = self.filtered_for.setdefault(group.target, Filtered(record.seq))
        found.rewards[event.reward_mean] += 1
        self._end(group, "filtered")

    @on(GroupFailed, GroupEvicted, GroupDiscarded)
    def _ended(self, record: Record, event: Event) -> None:
        disposition = {
            GroupFailed: "failed",
            GroupEvicted: "evicted",
            GroupDiscarded: "discarded",
        }[type(event)]
        self._end(self.live[event.group], disposition)  # type: ignore[attr-defined]

    def _end(self, group: Group, disposition: str) -> None:
        if group.state == "in_flight":
            self._leave_flight(group)
        elif group.state == "buffered":
            self._leave_buffer(group)
        else:
            self.training -= 1
        self.ended[disposition] += 1
        del self.live[group.group]

    def _leave_flight(self, group: Group) -> None:
        self.in_flight -= 1
        self.in_flight_by_target[group.target] -= 1
        if not self.in_flight_by_target[group.target]:
            del self.in_flight_by_target[group.target]
        if group.group in self.whole:
            self.whole.remove(group.group)
        for trajectory in [*group.engine_failures, *group.prompt_failures]:
            self.unanswered.pop(trajectory, None)

    def _leave_buffer(self, group: Group) -> None:
        self.buffered -= 1
        self._restored.pop(group.group, None)
        self.buffer.remove(group.group)
        waiting = self.buffered_by_target[group.target]
        waiting.remove(group.group)
        if not waiting:
            del self.buffered_by_target[group.target]
