"""Trajectories: each attempt on a lane that it has for itself from its start to its end.

The lanes stand for places in flight, not for trajectories: whoever starts takes the lowest that is free, so there are
as many as there ever were attempts at the same time, and a free one shows as a gap.
"""

from __future__ import annotations

from ....core.projections import Folded, on
from ....events.record import Record
from ....events.types import (
    EnvStepFinished,
    EnvStepStarted,
    LlmCallFinished,
    LlmCallStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
)
from .flows import Flows
from .lanes import Lane, Lanes
from .trace_file import Told, TraceFile

_ENV_NAMES = {"reset": "env reset", "step": "env step", "reward": "reward"}
_ATTEMPT = "attempt"
_CHAT = "chat"


class RolloutTracks(Folded):
    """The group ``rollouts``; at most `slots_max` lanes, and a count of the attempts that found none."""

    def __init__(self, file: TraceFile, flows: Flows, slots_max: int) -> None:
        self._file = file
        self._flows = flows
        group = file.group("rollouts", "One lane for each attempt in flight")
        self._outside = file.counter(
            "in flight without a lane", group, about="Attempts beyond the lanes that --slots-max allows"
        )
        self._lanes = Lanes(file, group, lambda number: f"slot {number + 1}", slots_max)
        self._running: dict[str, Lane | None] = {}
        self._without = 0
        self.left_out = 0
        """Attempts that found no lane."""

    def end_all(self, told: Told) -> None:
        """End what is open, saying `told` of it."""
        for trajectory in list(self._running):
            self._leave(trajectory, told)

    @on(TrajectoryStarted)
    def _started(self, record: Record, event: TrajectoryStarted) -> None:
        name = event.trajectory
        if name in self._running:  # an attempt whose end is not told
            self._leave(name, {"interrupted": True})
        lane = self._running[name] = self._lanes.take()
        if lane is None:
            self.left_out += 1
            self._without += 1
            self._outside.set(self._without)
            return
        told = {"trajectory": name, "group": event.group, "attempt": event.attempt}
        lane.begin(_ATTEMPT, "trajectory" if event.group is not None else "eval trajectory", told)

    @on(TrajectoryCompleted)
    def _completed(self, record: Record, event: TrajectoryCompleted) -> None:
        if self._running.get(event.trajectory) is None:
            self._leave(event.trajectory, {})
            return
        told = {
            "outcome": "completed",
            "reward": event.reward,
            "turns": event.turns,
            "completion_tokens": event.completion_tokens,
            "stop_reason": event.stop_reason,
        }
        flows = () if event.group is None else (self._flows.from_trajectory(event.group),)
        self._leave(event.trajectory, told, flows)

    @on(TrajectoryFailed)
    def _failed(self, record: Record, event: TrajectoryFailed) -> None:
        told = {
            "outcome": "failed",
            "failure": event.failure,
            "blame": event.blame,
            "retryable": event.retryable,
            "message": event.message,
        }
        lane = self._running.get(event.trajectory)
        if lane is not None:
            # A slice has its name from its beginning, when nobody knows how it ends: a mark of its own says it.
            lane.end_within(1)
            self._file.instant(lane.track, f"failed: {event.failure}")
        self._leave(event.trajectory, told)

    def _leave(self, trajectory: str, told: Told, flows: tuple[int, ...] = ()) -> None:
        if trajectory not in self._running:
            return
        lane = self._running.pop(trajectory)
        if lane is None:
            self._without -= 1
            self._outside.set(self._without)
            return
        lane.end(_ATTEMPT, told, flows)
        self._lanes.give(lane)

    @on(LlmCallStarted)
    def _chat(self, record: Record, event: LlmCallStarted) -> None:
        lane = self._running.get(event.trajectory)
        if lane is not None:
            self._turn(lane, event.turn)
            lane.begin(_CHAT, _CHAT, {"engine": event.engine, "prompt_tokens": event.prompt_tokens})

    @on(LlmCallFinished)
    def _answered(self, record: Record, event: LlmCallFinished) -> None:
        lane = self._running.get(event.trajectory)
        if lane is None:
            return
        told: dict[str, object] = {"tokens": event.tokens, "queue_s": event.queue_s}
        if event.outcome == "completed":
            told["finish_reason"] = event.finish_reason
        else:
            told["outcome"], told["message"] = event.outcome, event.message
        lane.end(_CHAT, told)

    @on(EnvStepStarted)
    def _env(self, record: Record, event: EnvStepStarted) -> None:
        lane = self._running.get(event.trajectory)
        if lane is None:
            return
        if event.call == "step":
            self._turn(lane, event.turn)
        else:
            lane.end_within(1)
        lane.begin(event.call, _ENV_NAMES[event.call])

    @on(EnvStepFinished)
    def _env_finished(self, record: Record, event: EnvStepFinished) -> None:
        lane = self._running.get(event.trajectory)
        if lane is not None:
            failed = event.outcome != "completed"
            lane.end(event.call, {"outcome": event.outcome, "message": event.message} if failed else None)

    def _turn(self, lane: Lane, turn: int) -> None:
        """See to it that the slice of `turn` is the innermost one that is open."""
        if lane.is_open(turn):
            lane.end_within(2)
        else:
            lane.end_within(1)
            lane.begin(turn, "turn", {"turn": turn})
