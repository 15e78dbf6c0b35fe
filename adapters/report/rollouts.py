"""Where the time of trajectories went: by part and step, and turn by turn for those that took longest."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from ...core.config import recorded_checkpoint
from ...core.projections.fold import Folded, on
from ...events.record import Record
from ...events.types import (
    TRAJECTORY_PARTS,
    BatchTaken,
    CheckpointCommitted,
    EnvStepFinished,
    EnvStepStarted,
    GroupDiscarded,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    LlmCallFinished,
    LlmCallStarted,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
    part_seconds,
)

SLOWEST = 10
"""Trajectories that are kept with their turns."""
TURNS = 100
"""Turns of one trajectory that are kept; of one that has more, the first ones."""


class Turn(NamedTuple):
    """One line of a trajectory: an answer of the engine and what the environment made of it."""

    name: str
    """A turn's number, ``reset`` or ``reward``."""
    llm_s: float | None
    queue_s: float | None
    env_s: float | None
    tokens: int | None
    outcome: str


@dataclass(slots=True)
class Slow:
    """One attempt at a trajectory, as long as it took."""

    trajectory: str
    attempt: int
    begun_ns: int
    seq: int
    turns: list[Turn] = field(default_factory=list)
    turns_more: int = 0
    llm_s: float = 0.0
    queue_s: float = 0.0
    env_s: float = 0.0
    """Sums over all turns, those that are not kept included."""
    tokens: int = 0
    answered: int = -1
    """Last turn that the engine answered and the environment has not."""
    ended_ns: int = 0
    outcome: str = "in flight"
    """``completed``, a failure's kind, or ``in flight`` where the log ends."""
    asked: str = ""
    """What it last asked for and has no answer to."""

    @property
    def seconds(self) -> float:
        """Wall time from its start to its end, or to the end of the log."""
        return (self.ended_ns - self.begun_ns) / 1e9

    def add(self, turn: Turn) -> None:
        """Append a line, as long as there are not too many."""
        if len(self.turns) < TURNS:
            self.turns.append(turn)
        else:
            self.turns_more += 1


@dataclass
class Rollouts(Folded):
    """Component seconds by step, and the slowest trajectories. Times are the run's own monotonic clock."""

    by_step: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """Seconds of `TRAJECTORY_PARTS`, summed over the trajectories that each step trained."""
    trained: dict[int, int] = field(default_factory=dict)
    """How many trajectories those are."""
    running: dict[str, Slow] = field(default_factory=dict)
    _taken_by: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Groups of the batch of each step that a resume may roll back."""
    _by_group: dict[int, tuple[int, tuple[float, ...]]] = field(default_factory=dict)
    _checkpoints: list[int] = field(default_factory=list)
    """Versions of those that are kept, oldest first."""
    _checkpoints_kept: int = 1
    _slowest: list[tuple[float, int, Slow]] = field(default_factory=list)

    def slowest(self, now_ns: int) -> list[Slow]:
        """Return the slowest attempts, slowest first; those in flight have taken the time up to `now_ns`."""
        for one in self.running.values():
            one.ended_ns = now_ns
        ended = [one for _, _, one in self._slowest]
        return sorted([*ended, *self.running.values()], key=lambda one: (-one.seconds, one.seq))[:SLOWEST]

    @on(RunStarted)
    def _run_started(self, record: Record, event: RunStarted) -> None:
        self._checkpoints_kept = recorded_checkpoint(event.config).keep

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        if event.config is not None:
            self._checkpoints_kept = recorded_checkpoint(event.config).keep
        self._checkpoints = [version for version in self._checkpoints if version <= event.version]
        self._taken_by = {step: groups for step, groups in self._taken_by.items() if step < event.step}
        for one in self.running.values():
            one.outcome = "interrupted"
            self._end(one, event.last_mono or record.mono)
        self.running.clear()
        self.by_step = {step: sums for step, sums in self.by_step.items() if step < event.step}
        self.trained = {step: count for step, count in self.trained.items() if step < event.step}

    @on(RunFinished, RunFailed)
    def _run_ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        for one in self.running.values():
            one.outcome = "run ended"
            self._end(one, record.mono)
        self.running.clear()

    @on(TrajectoryStarted)
    def _started(self, record: Record, event: TrajectoryStarted) -> None:
        self.running[event.trajectory] = Slow(event.trajectory, event.attempt, record.mono, record.seq)

    @on(LlmCallStarted)
    def _asked_engine(self, record: Record, event: LlmCallStarted) -> None:
        one = self.running.get(event.trajectory)
        if one is not None:
            one.asked = event.engine

    @on(EnvStepStarted)
    def _asked_environment(self, record: Record, event: EnvStepStarted) -> None:
        one = self.running.get(event.trajectory)
        if one is not None:
            one.asked = event.call

    @on(LlmCallFinished)
    def _answered(self, record: Record, event: LlmCallFinished) -> None:
        one = self.running.get(event.trajectory)
        if one is None:
            return
        one.asked, one.answered = "", event.turn
        one.llm_s += event.seconds
        one.queue_s += event.queue_s
        one.tokens += event.tokens
        outcome = event.finish_reason if event.outcome == "completed" else event.outcome
        one.add(Turn(str(event.turn), event.seconds, event.queue_s, None, event.tokens, outcome))

    @on(EnvStepFinished)
    def _stepped(self, record: Record, event: EnvStepFinished) -> None:
        one = self.running.get(event.trajectory)
        if one is None:
            return
        one.asked = ""
        outcome = "" if event.outcome == "completed" else event.outcome
        one.env_s += event.seconds
        if event.call == "step" and event.turn == one.answered:
            one.answered = -1
            if not one.turns_more:
                last = one.turns[-1]
                one.turns[-1] = last._replace(env_s=event.seconds, outcome=outcome or last.outcome)
        else:
            name = event.call if event.call != "step" else str(event.turn)
            one.add(Turn(name, None, None, event.seconds, None, outcome))

    @on(TrajectoryCompleted)
    def _completed(self, record: Record, event: TrajectoryCompleted) -> None:
        one = self.running.pop(event.trajectory, None)
        if one is not None:
            one.outcome = "completed"
            self._end(one, record.mono)
        if event.group is None:
            return
        count, sums = self._by_group.get(event.group, (0, (0.0,) * len(TRAJECTORY_PARTS)))
        parts = zip(sums, part_seconds(event), strict=True)
        self._by_group[event.group] = count + 1, tuple(before + spent for before, spent in parts)

    @on(TrajectoryFailed)
    def _failed(self, record: Record, event: TrajectoryFailed) -> None:
        one = self.running.pop(event.trajectory, None)
        if one is not None:
            one.outcome = event.failure
            self._end(one, record.mono)

    def _end(self, one: Slow, at_ns: int) -> None:
        one.ended_ns = at_ns
        entry = (one.seconds, -one.seq, one)
        if len(self._slowest) < SLOWEST:
            heapq.heappush(self._slowest, entry)
        elif entry > self._slowest[0]:
            heapq.heapreplace(self._slowest, entry)

    @on(BatchTaken)
    def _taken(self, record: Record, event: BatchTaken) -> None:
        """Give the groups' times to their step. They are kept as long as a resume may roll the step back."""
        self._taken_by[event.step] = event.groups
        found = [self._by_group[group] for group in event.groups if group in self._by_group]
        self.trained[event.step] = sum(count for count, _ in found)
        self.by_step[event.step] = tuple(
            sum(parts) for parts in zip(*(sums for _, sums in found), strict=True)
        )

    @on(CheckpointCommitted)
    def _saved(self, record: Record, event: CheckpointCommitted) -> None:
        """Forget the groups of steps before the oldest checkpoint that is kept: no resume goes back to them."""
        self._checkpoints = [*self._checkpoints, event.version][-self._checkpoints_kept :]
        for step in [step for step in self._taken_by if step < self._checkpoints[0]]:
            for group in self._taken_by.pop(step):
                self._by_group.pop(group, None)

    @on(GroupFiltered, GroupFailed, GroupEvicted, GroupDiscarded)
    def _given_up(
        self, record: Record, event: GroupFiltered | GroupFailed | GroupEvicted | GroupDiscarded
    ) -> None:
        self._by_group.pop(event.group, None)
