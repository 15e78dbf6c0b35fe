"""Trajectories: where those in flight are, and where the time of the complete ones went."""

from __future__ import annotations

from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import (
    TRAJECTORY_PARTS,
    EnvStepFinished,
    EnvStepStarted,
    GroupBuffered,
    GroupDiscarded,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    LlmCallFinished,
    LlmCallStarted,
    RetryScheduled,
    RunFailed,
    RunFinished,
    TrajectoryCompleted,
    TrajectoryDropped,
    TrajectoryFailed,
    TrajectoryStarted,
    part_seconds,
)
from .catalog import ENVIRONMENT_BOUNDS_S
from .distribution import Buckets
from .identity import Identity
from .part import Part
from .snapshot import Snapshot

STAGES = ("llm", "env_setup", "env", "reward", "retry", "other")
_STAGE_OF_CALL = {"reset": "env_setup", "step": "env", "reward": "reward"}


class Rollouts(Part):
    """Every trajectory in flight, those of evaluations too; sums are of complete training trajectories only."""

    def __init__(self, identity: Identity) -> None:
        self.stage: dict[str, str] = {}
        """Of each trajectory in flight, one that waits for its next attempt included."""
        self.in_stage = dict.fromkeys(STAGES, 0)
        self._identity = identity
        self._began: dict[str, int] = {}  # UTC ns, of those that run, oldest first
        self._retries: dict[int, set[str]] = {}
        self._ended = {"completed": 0, "failed": 0, "dropped": 0}
        self._seconds: dict[str, list[float]] = {}
        self._durations: dict[str, Buckets] = {}
        self._steps: dict[tuple[str, str], Buckets] = {}
        self._step_began: dict[str, int] = {}
        self._tokens = {"prompt": 0, "sampled": 0}

    def interrupted(self, at_ns: int) -> None:
        """Forget what is in flight."""
        for table in (self.stage, self._began, self._retries, self._step_began):
            table.clear()
        self.in_stage = dict.fromkeys(STAGES, 0)

    @on(RunFinished, RunFailed)
    def _run_ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self.interrupted(record.mono)

    # Where it is

    def _move(self, trajectory: str, stage: str) -> None:
        before = self.stage.get(trajectory)
        if before is not None:
            self.in_stage[before] -= 1
            self.in_stage[stage] += 1
            self.stage[trajectory] = stage

    def _leave(self, trajectory: str) -> None:
        before = self.stage.pop(trajectory, None)
        if before is not None:
            self.in_stage[before] -= 1
        self._began.pop(trajectory, None)
        self._step_began.pop(trajectory, None)

    @on(TrajectoryStarted)
    def _started(self, record: Record, event: TrajectoryStarted) -> None:
        self._leave(event.trajectory)
        self.stage[event.trajectory] = "other"
        self.in_stage["other"] += 1
        self._began[event.trajectory] = record.ts
        if event.attempt and event.group is not None:
            self._retries.get(event.group, set()).discard(event.trajectory)

    @on(LlmCallStarted)
    def _call_started(self, record: Record, event: LlmCallStarted) -> None:
        self._move(event.trajectory, "llm")

    @on(LlmCallFinished)
    def _call_finished(self, record: Record, event: LlmCallFinished) -> None:
        self._move(event.trajectory, "other")

    @on(EnvStepStarted)
    def _step_started(self, record: Record, event: EnvStepStarted) -> None:
        self._move(event.trajectory, _STAGE_OF_CALL[event.call])
        self._step_began[event.trajectory] = record.mono

    @on(EnvStepFinished)
    def _step_finished(self, record: Record, event: EnvStepFinished) -> None:
        self._move(event.trajectory, "other")
        began_ns = self._step_began.pop(event.trajectory, None)
        if began_ns is None:
            return
        key = self._identity.environment, event.call
        buckets = self._steps.get(key)
        if buckets is None:
            buckets = self._steps[key] = Buckets(ENVIRONMENT_BOUNDS_S)
        buckets.observe((record.mono - began_ns) / 1e9)

    @on(RetryScheduled)
    def _retry(self, record: Record, event: RetryScheduled) -> None:
        self._leave(event.trajectory)
        self.stage[event.trajectory] = "retry"
        self.in_stage["retry"] += 1
        self._retries.setdefault(event.group, set()).add(event.trajectory)

    @on(GroupBuffered, GroupFiltered, GroupFailed, GroupDiscarded, GroupEvicted)
    def _group_landed(
        self,
        record: Record,
        event: GroupBuffered | GroupFiltered | GroupFailed | GroupDiscarded | GroupEvicted,
    ) -> None:
        for trajectory in self._retries.pop(event.group, ()):
            if self.stage.get(trajectory) == "retry":
                self._leave(trajectory)

    # How it ended

    @on(TrajectoryFailed)
    def _failed(self, record: Record, event: TrajectoryFailed) -> None:
        self._leave(event.trajectory)
        if event.group is not None and event.failure != "cancelled":
            self._ended["failed"] += 1

    @on(TrajectoryDropped)
    def _dropped(self, record: Record, event: TrajectoryDropped) -> None:
        self._ended["dropped"] += 1

    @on(TrajectoryCompleted)
    def _completed(self, record: Record, event: TrajectoryCompleted) -> None:
        self._leave(event.trajectory)
        if event.group is None:
            return
        self._ended["completed"] += 1
        self._tokens["prompt"] += event.prompt_tokens
        self._tokens["sampled"] += event.completion_tokens
        parts = part_seconds(event)
        environment = self._identity.environment
        sums = self._seconds.get(environment)
        if sums is None:
            sums = self._seconds[environment] = [0.0] * len(parts)
            self._durations[environment] = Buckets(ENVIRONMENT_BOUNDS_S)
        for place, seconds in enumerate(parts):
            sums[place] += seconds
        self._durations[environment].observe(sum(parts))

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write what is in flight, and the sums of what is complete."""
        into.set_each("rl_rollouts_inflight", self.in_stage)
        for began_ts in self._began.values():
            into.set("rl_rollout_oldest_start_timestamp_seconds", began_ts / 1e9)
            break
        into.set_each("rl_trajectories_total", self._ended)
        for environment, sums in self._seconds.items():
            for component, seconds in zip(TRAJECTORY_PARTS, sums, strict=True):
                into.set("rl_trajectory_component_seconds_total", seconds, environment, component)
            into.distribution("rl_trajectory_duration_seconds", self._durations[environment], environment)
        for (environment, call), buckets in self._steps.items():
            into.distribution("rl_env_step_duration_seconds", buckets, environment, call)
        into.set_each("rl_tokens_total", self._tokens)
