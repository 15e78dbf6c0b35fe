"""The trainer: what the learner and the engines do next, and the phase that this is.

`decide` is pure: from the folded state alone it says what comes next. There is no program counter besides the
log, so a run that is resumed goes on exactly where its events say it stopped.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..events.record import causing
from ..events.types import (
    BatchTaken,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointStarted,
    LearnerLost,
    LearnerUp,
    Phase,
    PhaseEntered,
    StepCompleted,
    StepFailed,
    StepStarted,
    WeightsPublished,
)
from .advantage import train_batch
from .config import RunConfig
from .evaluation import Evaluation
from .failures import RunFailure, check_failure_share, one_line, outcome_of
from .policies import Policy
from .ports import Artifacts, Learner, LearnerGone, Payloads, PortError, TrainBatch, TrainResult
from .projections import Group, View
from .waits import Edge, Expired, Waiter
from .weight_sync import WeightSync, lagging

# What can come next


@dataclass(frozen=True, slots=True)
class StartLearner:
    """Bring the learner up."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Write the learner's weights for the engines."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Bring the engines to the published weights."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate the published weights."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Save weights and optimizer."""


@dataclass(frozen=True, slots=True)
class Take:
    """Consume these groups as the batch of `step`."""

    step: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run."""

    outcome: str


Action = StartLearner | Publish | Sync | Evaluate | Checkpoint | Take | Finish


def decide(view: View, config: RunConfig, policy: Policy) -> Action | None:
    """Return what the trainer does next, or None while it has to wait for a batch.

    The order is that of a step: publish what was trained, sync the engines, evaluate, save, take the next batch.
    A stop is honoured between any two of them; what was trained is saved first.
    """
    trainer = view.trainer
    if not trainer.learner_up:
        return Finish(trainer.stop_reason) if trainer.stop_reason else StartLearner()
    done = trainer.step >= config.run.steps and not trainer.taken
    if trainer.stop_reason:
        return Checkpoint() if at_end(view, config) else Finish(trainer.stop_reason)
    if trainer.published < trainer.version or trainer.published < 0:
        return Publish()
    if lagging(view):
        return Sync()
    if evaluation_due(view, config, done):
        return Evaluate() if view.engines.serving() else None  # one comes back, or the pool ends the run
    if checkpoint_due(view, config, done):
        return Checkpoint()
    if done:
        return Finish("completed")
    groups = policy.batch(view, config)
    if groups is not None:
        return Take(trainer.step, groups)
    if view.prompts.exhausted and not view.groups.in_flight and not view.groups.buffered:
        check_failure_share(view.attempts, config.failures, whole_window=False)
        return Checkpoint() if at_end(view, config) else Finish("data_exhausted")
    return None


def evaluation_due(view: View, config: RunConfig, done: bool) -> bool:
    """Return whether the published version is one to evaluate and has not been."""
    every, version = config.eval.every_steps, view.trainer.published
    if not every or view.trainer.evaluated >= version:
        return False
    return version % every == 0 or (done and config.eval.at_end)


def checkpoint_due(view: View, config: RunConfig, done: bool) -> bool:
    """Return whether the learner's version is one to save and has not been."""
    every, version = config.checkpoint.every_steps, view.trainer.version
    if version == 0 or view.trainer.checkpointed >= version:
        return False
    return (every > 0 and version % every == 0) or (done and config.checkpoint.at_end)


def at_end(view: View, config: RunConfig) -> bool:
    """Return whether the end of the run still has a version to save."""
    return (
        config.checkpoint.at_end
        and view.trainer.version > view.trainer.checkpointed
        and view.trainer.version > 0
    )


def waits_to_evaluate(view: View, config: RunConfig) -> bool:
    """Return whether the trainer, which has nothing to do, waits for an engine to evaluate with."""
    return not view.engines.serving() and evaluation_due(view, config, view.trainer.step >= config.run.steps)


def phase_of_waiting(view: View, config: RunConfig) -> Phase | None:
    """Return the phase of a trainer that has nothing to do; None while the run is still starting."""
    if waits_to_evaluate(view, config):
        return "eval" if view.engines.by_name else None
    return "generating" if config.scheduler.max_staleness == 0 else "waiting_for_buffer"


def wait_edge(view: View, config: RunConfig, policy: Policy) -> Edge:
    """Return what the trainer waits for, which has nothing to do."""
    if waits_to_evaluate(view, config):
        wanted = f"an engine to evaluate version {view.trainer.published}"
        return Edge("engine_available", wanted, "none serves")
    return policy.why_waiting(view, config)


def of_learner(error: BaseException, effect: str) -> bool:
    """Return whether the learner failed, or took too long over `effect`; a log that is late is not its fault."""
    return isinstance(error, PortError) or (isinstance(error, Expired) and error.effect == effect)


class TrainerActor:
    """The shell: does what `decide` says, one action after the other, and enters the phase of each."""

    def __init__(
        self,
        view: View,
        config: RunConfig,
        policy: Policy,
        learner: Learner,
        payloads: Payloads,
        artifacts: Artifacts,
        sync: WeightSync,
        evaluation: Evaluation | None,
        waiter: Waiter,
    ) -> None:
        self.view = view
        self.config = config
        self.policy = policy
        self.learner = learner
        self.payloads = payloads
        self.artifacts = artifacts
        self.sync = sync
        self.evaluation = evaluation
        self.waiter = waiter
        self._weights_from = 0  # oldest version whose weights may still lie there

    async def run(self) -> str:
        """Train until the run is done; return its outcome. Cancelling leaves the step that runs unfinished."""
        while True:
            action = await self._next()
            with causing(
                self.view.last_seq if self.view.last_seq >= 0 else None, f"step:{self.view.trainer.step}"
            ):
                match action:
                    case StartLearner():
                        await self._start_learner()
                    case Publish():
                        await self._publish()
                    case Sync():
                        self._enter("weight_sync")
                        await self.waiter.unless(self._stopping, self.sync.run())
                        self._drop_weights(self.view.trainer.published)
                    case Evaluate():
                        await self._evaluate()
                    case Checkpoint():
                        await self._checkpoint()
                    case Take(step, groups):
                        await self._train(step, groups)
                    case Finish(outcome):
                        return outcome

    async def _next(self) -> Action:
        self.waiter.bus.fold()
        action = decide(self.view, self.config, self.policy)
        if action is not None:
            return action
        phase = phase_of_waiting(self.view, self.config)
        if phase is not None:
            self._enter(phase)
        try:
            return await self.waiter.until(
                lambda: decide(self.view, self.config, self.policy),
                lambda: wait_edge(self.view, self.config, self.policy),
                deadline_s=self.config.deadlines.buffer_wait_s,
            )
        except Expired as expired:
            raise RunFailure("buffer_wait_expired", f"the trainer could not go on: {expired}") from None

    def _enter(self, phase: Phase) -> None:
        if self.view.trainer.phase != phase:
            self.waiter.publish(PhaseEntered(phase=phase, step=self.view.trainer.step))
            self.waiter.bus.fold()

    async def _start_learner(self) -> None:
        newest = self.view.trainer.checkpoints[-1] if self.view.trainer.checkpoints else None
        checkpoint = self.artifacts.absolute(newest) if newest else None
        limit_s = self.config.deadlines.start_s
        try:
            work = self.waiter.bounded("learner_start", "learner", limit_s, self.learner.start(checkpoint))
            info = await self.waiter.unless(self._stopping, work)
        except (PortError, Expired) as error:
            raise self._learner_lost(error) from error
        if info is not None:
            if info.version != self.view.trainer.version:
                raise RunFailure(
                    "wrong_checkpoint",
                    f"the learner holds version {info.version}, the log goes on from version "
                    f"{self.view.trainer.version} ({newest or 'the model as loaded'})",
                )
            self.waiter.publish(
                LearnerUp(
                    version=info.version,
                    parameters=info.parameters,
                    device=info.device,
                    ranks=info.ranks,
                    nodes=tuple(info.nodes),
                )
            )

    def _stopping(self) -> bool:
        return self.view.trainer.stop_reason != ""

    async def _train(self, step: int, numbers: tuple[int, ...]) -> None:
        self._enter("converting")
        taken = self.waiter.publish(BatchTaken(step=step, groups=numbers))
        groups = [self.view.groups.live[number] for number in numbers]
        batch = train_batch(
            step,
            self.view.trainer.version,
            groups,
            self.payloads,
            self.config.algorithm.advantage,
            self.config.scheduler.oldest_trained(step),
        )
        trained = sum(row.sampled.count(1) for row in batch.rows)
        convert_s = self.waiter.elapsed_s(taken.mono)
        started = self.waiter.publish(
            StepStarted(
                step=step,
                version=step,
                groups=len(groups),
                trajectories=len(batch.rows),
                tokens=sum(len(row.sampled) for row in batch.rows),
                trained_tokens=trained,
                masked_tokens=sum(group.sampled for group in groups) - trained,
            )
        )
        limit_s = self.config.deadlines.train_step_s
        try:
            await self.waiter.durable(started, deadline_s=self.config.deadlines.durable_s)
            self._enter("training")
            work = self.learner.train(batch)
            result = await self.waiter.bounded("train_step", f"step {step}", limit_s, work)
        except BaseException as error:
            self.waiter.publish(StepFailed(step=step, outcome=outcome_of(error), message=one_line(error)))
            if of_learner(error, "train_step"):
                raise self._learner_lost(error) from error
            raise
        self._completed(batch, groups, result, convert_s, self.waiter.elapsed_s(started.mono))

    def _completed(
        self,
        batch: TrainBatch,
        groups: Sequence[Group],
        result: TrainResult,
        convert_s: float,
        train_s: float,
    ) -> None:
        lags = [batch.step - group.version for group in groups]
        trained = sum(row.sampled.count(1) for row in batch.rows)
        rewards = [completed.reward for group in groups for completed in group.completed.values()]
        self.waiter.publish(
            StepCompleted(
                step=batch.step,
                version=batch.step + 1,
                loss=result.loss,
                reward_mean=statistics.fmean(rewards),
                lag_mean=statistics.fmean(lags),
                lag_max=max(lags),
                trained_tokens=trained,
                masked_tokens=sum(group.sampled for group in groups) - trained,
                metrics=dict(result.metrics),
                parts_s={"convert": convert_s, "train": train_s, **result.seconds},
            )
        )

    async def _publish(self) -> None:
        if self.view.trainer.version > 0:
            self._enter("weight_sync")
        path, old = self.artifacts.weights(self.view.trainer.version), self.view.trainer.published
        since = self.waiter.clock.mono_ns()
        try:
            work = self.learner.publish(self.artifacts.absolute(path))
            written = await self.waiter.bounded("publish", path, self.config.deadlines.publish_s, work)
        except (PortError, Expired) as error:
            raise self._learner_lost(error) from error
        published = self.waiter.publish(
            WeightsPublished(
                version=self.view.trainer.version,
                path=path,
                size_bytes=written.size_bytes,
                seconds=self.waiter.elapsed_s(since),
                tensors=written.tensors,
                buckets=written.buckets,
                digest=written.digest,
            )
        )
        await self.waiter.durable(published, deadline_s=self.config.deadlines.durable_s)
        self._drop_weights(old)

    def _drop_weights(self, below: int) -> None:
        """Remove the weights older than version `below`, but none that a starting engine still reads."""
        keep_from = self.sync.pool.needed_from(below)
        for version in range(self._weights_from, keep_from):
            self.artifacts.drop(self.artifacts.weights(version))
        self._weights_from = max(self._weights_from, keep_from)

    async def _evaluate(self) -> None:
        self._enter("eval")
        assert self.evaluation is not None, "the configuration check refuses evaluations without items"
        await self.waiter.unless(self._stopping, self.evaluation.run())

    async def _checkpoint(self) -> None:
        self._enter("checkpoint")
        version = self.view.trainer.version
        path = self.artifacts.checkpoint(version)
        started = self.waiter.publish(CheckpointStarted(step=version, version=version, path=path))
        limit_s = self.config.deadlines.checkpoint_s
        try:
            await self.waiter.durable(started, deadline_s=self.config.deadlines.durable_s)
            work = self.learner.checkpoint(self.artifacts.absolute(path))
            written = await self.waiter.bounded("checkpoint", path, limit_s, work)
        except BaseException as error:
            self.waiter.publish(CheckpointFailed(step=version, version=version, message=one_line(error)))
            if isinstance(error, LearnerGone):
                raise self._learner_lost(error) from error
            if of_learner(error, "checkpoint"):
                return
            raise
        committed = self.waiter.publish(
            CheckpointCommitted(
                step=version,
                version=version,
                path=path,
                size_bytes=written.size_bytes,
                seconds=self.waiter.elapsed_s(started.mono),
            )
        )
        await self.waiter.durable(committed, deadline_s=self.config.deadlines.durable_s)
        self.waiter.bus.fold()
        for old in self.view.trainer.checkpoints[: -self.config.checkpoint.keep]:
            self.artifacts.drop(old)

    def _learner_lost(self, error: BaseException) -> RunFailure:
        rank, phase = (error.rank, error.phase) if isinstance(error, LearnerGone) else (None, "")
        lost = self.waiter.publish(LearnerLost(message=one_line(error), rank=rank, phase=phase))
        return RunFailure("learner_lost", one_line(error), lost.seq)
