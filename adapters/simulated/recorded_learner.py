"""The learner of a log: steps, weights and checkpoints when and as the recorded one made them."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.ports import (
    CheckpointError,
    LearnerGone,
    LearnerInfo,
    TrainBatch,
    TrainResult,
    WrittenFile,
    WrittenWeights,
)
from ...events.types import (
    CheckpointFailed,
    LearnerLost,
    LearnerUp,
    RunFailed,
    StepCompleted,
    WeightsPublished,
)
from .recorded_calls import Answer
from .recorded_errors import error_named
from .recorded_world import RecordedWorld


@dataclass
class RecordedLearner:
    """The learner of the log."""

    world: RecordedWorld
    version: int = 0

    async def start(self, checkpoint: str | None) -> LearnerInfo:
        """Come up, when the recorded one did."""
        answer = await self.world.answers.get(("learner_start",))
        if not isinstance(answer.event, LearnerUp):
            raise _gone(answer.event) if isinstance(answer.event, LearnerLost) else LearnerGone("lost")
        event = answer.event
        self.version = event.version
        return LearnerInfo(event.version, event.parameters, event.device, event.ranks, event.nodes)

    async def train(self, batch: TrainBatch) -> TrainResult:
        """Make the recorded step."""
        answer = await self.world.answers.get(("train", batch.step))
        event = answer.event
        if not isinstance(event, StepCompleted):
            raise _of_learner(answer)
        self.version = batch.step + 1
        parts_s = {name: value for name, value in event.parts_s.items() if name not in ("convert", "train")}
        return TrainResult(event.loss, event.metrics, parts_s)

    async def publish(self, path: str) -> WrittenWeights:
        """Write weights, as quickly as the recorded one."""
        answer = await self.world.answers.get(("publish", self.version))
        event = answer.event
        if isinstance(event, LearnerLost):
            raise _gone(event)
        if not isinstance(event, WeightsPublished):
            return WrittenWeights(path, 0, 0, 1, "")
        return WrittenWeights(path, event.size_bytes, event.tensors, event.buckets, event.digest)

    async def checkpoint(self, path: str) -> WrittenFile:
        """Write a checkpoint, as quickly as the recorded one, or fail as it did."""
        answer = await self.world.answers.get(("checkpoint", self.version))
        if isinstance(answer.event, CheckpointFailed):
            raise CheckpointError(answer.event.message) if answer.failure is None else _of_learner(answer)
        return WrittenFile(path, getattr(answer.event, "size_bytes", 0))

    async def close(self) -> None:
        """Take no time."""


def _of_learner(answer: Answer) -> Exception:
    """Return what the learner raised."""
    message = getattr(answer.event, "message", "")
    if isinstance(answer.failure, RunFailed):
        return error_named(answer.failure.error, answer.failure.message)
    return _gone(answer.failure) if isinstance(answer.failure, LearnerLost) else LearnerGone(message)


def _gone(event: LearnerLost) -> LearnerGone:
    return LearnerGone(event.message, rank=event.rank, phase=event.phase)
