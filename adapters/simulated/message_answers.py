"""What the outside answers in a message-level world, well or badly, and the events that follow."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ...core.engine_pool import route
from ...core.failures import CANCELLED, Failure, RunFailure
from ...core.weight_sync import LOST, lagging
from ...events.types import (
    CheckpointCommitted,
    CheckpointFailed,
    EngineLost,
    EnginePaused,
    EngineResumed,
    EngineUp,
    EvalCompleted,
    LearnerLost,
    LearnerUp,
    LlmCallFinished,
    LlmCallStarted,
    Outcome,
    PayloadRef,
    StepCompleted,
    StepFailed,
    StopRequested,
    SyncAcknowledged,
    SyncFailed,
    SyncStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
    WeightsPublished,
)
from .message_ways import EQUAL, PLAIN, Asked, is_gone

if TYPE_CHECKING:
    from .message_world import MessageWorld

SLOTS, CONTEXT = 64, 1000
PAYLOAD = PayloadRef(digest="0" * 32, length=1, pack=0, offset=0)

_CALL_FAILURES: dict[str, tuple[Outcome, Failure]] = {
    "error": ("failed", Failure("engine_error", True, "engine", "simulated: error")),
    "refuse": ("failed", Failure("refused", False, "prompt", "simulated: refused")),
    "too_long": ("failed", Failure("prompt_too_long", False, "prompt", "simulated: too long")),
    "hang": ("expired", Failure("llm_expired", True, "engine", "simulated: no answer")),
    "gone": ("lost", Failure("engine_lost", True, "engine", "simulated: gone")),
}
_ENVIRONMENT_FAILURES: dict[str, Failure] = {
    "error": Failure("env_error", True, "environment", "simulated: error"),
    "hang": Failure("env_expired", True, "environment", "simulated: no answer"),
    "nan": Failure("reward_error", True, "environment", "simulated: not a number"),
}
_SAME = {"lose_reply": "hang", "die": "gone"}

# Answering


def stops(world: MessageWorld) -> Iterator[int]:
    """Yield the rules by which the run may be asked to stop now."""
    if not world.view.trainer.stop_reason:
        for number, fault in enumerate(world.given.faults):
            if fault.where == "run" and fault.what == "stop" and world.faults_left[number]:
                yield number


def stop(world: MessageWorld, number: int) -> None:
    """Ask the run to stop; what the trainer may break off is broken off."""
    world.faults_left[number] -= 1
    world.publish("run", StopRequested(reason="interrupted"))
    if world.busy in ("learner_start", "sync", "eval"):
        kind = world.busy
        world.rest()
        for asked in [one for one in [*world.outside, *world.kept_waiting] if one.kind == kind]:
            (world.outside if asked in world.outside else world.kept_waiting).remove(asked)
            cancel(world, asked)


def answer(world: MessageWorld, asked: Asked, way: int = PLAIN) -> None:
    """Let the outside answer `asked`, which is in ``world.outside``, in one of its `variants`."""
    what = _strike(world, way) if way >= 0 else ""
    if asked.kind == "attempt":
        _ATTEMPT[asked.stage](world, asked, what, way == EQUAL)
    else:
        _OTHERS[asked.kind](world, asked, what)


def _strike(world: MessageWorld, number: int) -> str:
    """Use up one strike of a rule, and return what it does."""
    world.faults_left[number] -= 1
    fault = world.given.faults[number]
    what = _SAME.get(fault.what, fault.what)
    return "environment " + what if fault.where.startswith("environment") else what


def lose(world: MessageWorld, name: str, message: str) -> None:
    """Declare an engine lost, unless that was said already."""
    status = world.view.engines.by_name.get(name)
    if status is None or status.state != "lost":
        world.publish("engine_pool", EngineLost(engine=name, message=message))


# An attempt: begun, on its way to an engine, called, scored

_started = lru_cache(65536)(
    lambda trajectory, group, attempt: TrajectoryStarted(trajectory=trajectory, group=group, attempt=attempt)
)
_called = lru_cache(65536)(
    lambda trajectory, engine: LlmCallStarted(
        trajectory=trajectory, turn=0, engine=engine, prompt_tokens=1, max_tokens=1
    )
)
_returned = lru_cache(65536)(
    lambda trajectory, engine, version: LlmCallFinished(
        trajectory=trajectory,
        turn=0,
        engine=engine,
        outcome="completed",
        tokens=1,
        version_spans=((version, 1),),
        seconds=0.0,
        finish_reason="stop",
    )
)
_completed = lru_cache(65536)(
    lambda trajectory, group, attempt, version, reward: TrajectoryCompleted(
        trajectory=trajectory,
        group=group,
        attempt=attempt,
        turns=1,
        prompt_tokens=1,
        completion_tokens=1,
        version_spans=((version, 1),),
        reward=reward,
        stop_reason="done",
        queue_s=0.0,
        llm_s=0.0,
        env_setup_s=0.0,
        env_s=0.0,
        reward_s=0.0,
        other_s=0.0,
        payload=PAYLOAD,
    )
)


def _begin(world: MessageWorld, asked: Asked, what: str, equal: bool) -> None:
    world.publish("rollout", _started(asked.subject, asked.group, asked.attempt))
    asked.stage = "routing"
    if not world.given.fine:
        _route(world, asked, what, equal)


def _route(world: MessageWorld, asked: Asked, what: str, equal: bool) -> None:
    engine = route(world.view.engines)
    if engine is None:
        world.outside.remove(asked)
        world.kept_waiting.append(asked)
        return
    asked.stage, asked.engine, asked.number = "calling", engine.name, engine.restarts
    world.publish("rollout", _called(asked.subject, engine.name))


def _called_back(world: MessageWorld, asked: Asked, what: str, equal: bool) -> None:
    name = asked.engine
    if is_gone(world, asked):
        what = "gone"
    if what and not what.startswith("environment"):
        outcome, failure = _CALL_FAILURES[what]
        world.publish("rollout", _call_ended(asked, outcome))
        if what == "gone" and not is_gone(world, asked):
            lose(world, name, failure.message)
        _fail(world, asked, failure)
        return
    version = world.view.engines.by_name[name].version
    world.publish("rollout", _returned(asked.subject, name, version))
    asked.stage, asked.engine, asked.number = "scoring", "", version
    if not world.given.fine:
        _score(world, asked, what, equal)


def _score(world: MessageWorld, asked: Asked, what: str, equal: bool) -> None:
    if what:
        _fail(world, asked, _ENVIRONMENT_FAILURES[what.removeprefix("environment ")])
        return
    world.outside.remove(asked)
    group = world.view.groups.live[asked.group]
    last = len(group.completed) + 1 == group.size
    rewards = world.given.rewards
    equal = (
        equal or rewards == "equal" or (rewards == "every_third_equal" and group.prompt % 3 == 2)
    )  # of "any" only where the choice said so
    reward = 1.0 if last and not equal else 0.0
    world.publish("rollout", _completed(asked.subject, asked.group, asked.attempt, asked.number, reward))


def _fail(world: MessageWorld, asked: Asked, failure: Failure) -> None:
    world.outside.remove(asked)
    world.publish("rollout", _failed(asked, failure))


def _failed(asked: Asked, failure: Failure) -> TrajectoryFailed:
    return TrajectoryFailed(
        trajectory=asked.subject,
        group=asked.group,
        attempt=asked.attempt,
        failure=failure.kind,
        retryable=failure.retryable,
        blame=failure.blame,
        message=failure.message,
    )


def _call_ended(asked: Asked, outcome: Outcome) -> LlmCallFinished:
    return LlmCallFinished(
        trajectory=asked.subject, turn=0, engine=asked.engine, outcome=outcome, seconds=0.0
    )


def _end_cancelled(world: MessageWorld, asked: Asked, what: str, equal: bool) -> None:
    world.outside.remove(asked)
    cancel(world, asked)


_ATTEMPT: dict[str, Callable[[MessageWorld, Asked, str, bool], None]] = {
    "ready": _begin,
    "timer": _begin,
    "routing": _route,
    "calling": _called_back,
    "scoring": _score,
    "cancelled": _end_cancelled,
}


# Engines


def _engine_start(world: MessageWorld, asked: Asked, what: str) -> None:
    name, published = asked.subject, world.view.trainer.published
    if what:
        world.outside.remove(asked)
        lose(world, name, f"simulated: {what}")
    elif asked.number < published:
        asked.number = published  # newer weights came meanwhile: they are loaded before it serves
    else:
        world.outside.remove(asked)
        up = EngineUp(engine=name, version=published, context_tokens=CONTEXT, slots=SLOTS)
        world.publish("engine_pool", up)
        world.wake()


def _sync(world: MessageWorld, asked: Asked, what: str) -> None:
    name, mode = asked.subject, world.config.engine.sync_mode
    if asked.stage == "ready":
        if name in lagging(world.view):
            version = world.view.trainer.published
            asked.stage, asked.number = "loading", world.view.engines.by_name[name].restarts
            world.publish("weight_sync", SyncStarted(engine=name, version=version, mode=mode))
            if mode != "in_flight":
                world.publish("weight_sync", EnginePaused(engine=name, mode=mode))
            return
        world.outside.remove(asked)  # lost since it was looked at
    else:
        world.outside.remove(asked)
        version = world.view.trainer.published
        if what or is_gone(world, asked):
            outcome: Outcome = "expired" if what == "hang" else "lost" if what in ("", "gone") else "failed"
            message = f"simulated: {what}" if what else LOST
            gone = is_gone(world, asked)
            world.publish(
                "weight_sync", SyncFailed(engine=name, version=version, outcome=outcome, message=message)
            )
            if not gone:
                lose(world, name, f"weight sync to version {version}: {message}")
        else:
            world.publish("weight_sync", SyncAcknowledged(engine=name, version=version, seconds=0.0))
            if mode != "in_flight":
                world.publish("weight_sync", EngineResumed(engine=name))
                world.wake()
    if not any(one.kind == "sync" for one in world.outside):
        world.rest()


# The learner, evaluations, and what is cancelled


def _learner(world: MessageWorld, asked: Asked, what: str) -> None:
    world.outside.remove(asked)
    world.rest()
    version = world.view.trainer.version
    if what and (asked.kind != "checkpoint" or what == "gone"):
        if asked.kind in ("train", "checkpoint"):
            cancel(world, asked, "lost", f"simulated: {what}")
        world.publish("trainer", LearnerLost(message=f"simulated: {what}"))
        world.fail("trainer", RunFailure("learner_lost", f"simulated: {what}", world.view.last_seq))
    elif what:
        cancel(world, asked, "failed", f"simulated: {what}")
    elif asked.kind == "learner_start":
        world.publish("trainer", LearnerUp(version=version, parameters=1, device="cpu"))
    elif asked.kind == "publish":
        world.publish(
            "trainer",
            WeightsPublished(version=version, path=f"weights/{version}", size_bytes=1, seconds=0.0),
        )
    elif asked.kind == "checkpoint":
        done = CheckpointCommitted(
            step=version, version=version, path="checkpoint", size_bytes=1, seconds=0.0
        )
        world.publish("trainer", done)
    else:
        _trained(world)


def _trained(world: MessageWorld) -> None:
    view, step = world.view, world.view.trainer.taken_step
    groups = [view.groups.live[number] for number in view.trainer.taken]
    lags = [step - group.version for group in groups]
    world.publish(
        "trainer",
        StepCompleted(
            step=step,
            version=step + 1,
            loss=0.0,
            reward_mean=0.0,
            lag_mean=statistics.fmean(lags),
            lag_max=max(lags),
        ),
    )


def _evaluated(world: MessageWorld, asked: Asked, what: str) -> None:
    if route(world.view.engines) is None:
        world.outside.remove(asked)
        world.kept_waiting.append(asked)
        return
    world.outside.remove(asked)
    world.rest()
    cancel(world, asked, "completed")


_OTHERS: dict[str, Callable[[MessageWorld, Asked, str], None]] = {
    "engine_start": _engine_start,
    "sync": _sync,
    "eval": _evaluated,
    **dict.fromkeys(("learner_start", "publish", "train", "checkpoint"), _learner),
}


def cancel(
    world: MessageWorld, asked: Asked, outcome: Outcome = "cancelled", message: str = "cancelled"
) -> None:
    """Publish the end of what was asked and is in ``world.outside`` no more; what has not begun leaves no trace."""
    trainer = world.view.trainer
    if asked.kind == "attempt" and asked.stage not in ("ready", "timer"):
        if asked.engine:
            world.publish("rollout", _call_ended(asked, outcome))
        world.publish("rollout", _failed(asked, replace(CANCELLED)))
    elif asked.kind == "sync" and asked.stage == "loading":
        failed = SyncFailed(engine=asked.subject, version=trainer.published, outcome=outcome, message=message)
        world.publish("weight_sync", failed)
    elif asked.kind == "train":
        world.publish("trainer", StepFailed(step=trainer.taken_step, outcome=outcome, message=message))
    elif asked.kind == "checkpoint":
        version = trainer.version
        world.publish("trainer", CheckpointFailed(step=version, version=version, message=message))
    elif asked.kind == "eval":
        size, done = world.config.eval.prompts, outcome == "completed"
        world.publish(
            "evaluation",
            EvalCompleted(
                eval=trainer.evals - 1,
                step=trainer.step,
                version=trainer.published,
                outcome=outcome,
                reward_mean=0.0 if done else None,
                completed=size if done else 0,
                failed=0 if done else size,
                seconds=0.0,
            ),
        )
