"""Doubles of behaviour from the field that stalls: small, and only for tests that show how it is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any

from worlds import World, config

from eventrain.adapters.simulated.engine import SimulatedEngine
from eventrain.adapters.simulated.message_attention import Attention
from eventrain.adapters.simulated.world import SimulatedEnvironment
from eventrain.core.config import RunConfig
from eventrain.core.failures import Failure
from eventrain.core.policies import Dispatch, Policy
from eventrain.core.policies.capacity import Capacity
from eventrain.core.policies.targeted import Targeted
from eventrain.core.ports import GenerateRequest, Generation, PromptTooLong
from eventrain.core.projections import Engines, EngineStatus, View
from eventrain.core.rollout import Conversation, Job, Rollouts
from eventrain.core.trainer import Action, Publish, decide
from eventrain.core.waits import Waiter
from eventrain.events.record import Record
from eventrain.events.types import Event, TrajectoryCompleted, TrajectoryFailed

bounded, run_attempt = Waiter.bounded, Rollouts.run
"""As shipped, also while a double stands in their place."""


class WindowBehind(Targeted):
    """Targets begin at the version after the current one, so a hole in the step that training waits for is unseen."""

    def window(self, view: View, config: RunConfig) -> range:
        """Return the steps from ``version + 1`` on; at version 0 from the first step not trained."""
        version = view.engines.generation_version
        if version is None:
            return range(0)
        last = min(version + config.scheduler.max_staleness, config.run.steps - 1)
        return range(version + 1 if version else view.trainer.step, last + 1)


class ForgetfulPermits(Targeted):
    """Admits one group at a time, whatever the permits allow."""

    def plan(self, view: View, config: RunConfig) -> list[Dispatch]:
        """Return one dispatch once nothing is in flight."""
        return [] if view.groups.in_flight else list(super().plan(view, config))[:1]


class OneForOne(Targeted):
    """After a weight update a group is started for each one that ends, and one for the barrier itself.

    What the barrier let drain away never comes back. From version `cured` on it is the shipped policy again.
    """

    def __init__(self, cured: int) -> None:
        self.cured = cured

    def plan(self, view: View, config: RunConfig) -> list[Dispatch]:
        """Return at most one dispatch, and none while a group is in flight."""
        due, version = list(super().plan(view, config)), view.engines.generation_version or 0
        return due if not 0 < version < self.cured else due[: 1 - view.groups.in_flight]


class WholeStepsOnly(Targeted):
    """Waits for a whole step, also when the data has ended."""

    def batch(self, view: View, config: RunConfig) -> tuple[int, ...] | None:
        """Return as many groups as a step trains, or None."""
        groups = super().batch(view, config)
        return groups if groups and len(groups) == config.scheduler.groups_per_step else None


class TwoGates(Capacity):
    """Each of two workers has a gate of its own beside the controller's, with half of the count, rounded down.

    A worker counts what it started; that a result was rejected it never hears.
    """

    def capacity(self, view: View, config: RunConfig) -> int:
        """Return what all gates let through."""
        version, groups = view.engines.generation_version, view.groups
        steps = min(config.scheduler.max_staleness + (version or 0) + 1, config.run.steps)
        workers = 2 * (steps * config.scheduler.groups_per_step // 2)
        started = len(groups.live) + sum(groups.ended.values())
        return min(super().capacity(view, config), workers - started)


class CountsTheFiltered(Capacity):
    """A group that was filtered stays accepted, so its capacity never comes back."""

    def capacity(self, view: View, config: RunConfig) -> int:
        """Return the capacity less what was filtered."""
        return super().capacity(view, config) - view.groups.ended["filtered"]


def watchdog_of_flights(view: View) -> bool:
    """Return whether a watchdog alarms that asks for "no progress while rollouts are in flight"."""
    return view.groups.in_flight > 0


def route_to_the_first(engines: Engines) -> EngineStatus | None:
    """Return the same engine for every call, however much it holds."""
    return next(iter(engines.serving()), None)


class FewConnections:
    """An engine behind a pool of connections that all engines share: a call without one waits in front of it."""

    def __init__(self, engine: SimulatedEngine, pool: asyncio.Semaphore) -> None:
        self._engine = engine
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Answer once there is a connection."""
        async with self._pool:
            return await self._engine.generate(request)


class SharedPermits:
    """An engine that answers evaluations only with a permit that no group of the training has.

    A group keeps its permit until its step is trained, and the step waits for the evaluation.
    """

    def __init__(self, engine: SimulatedEngine, world: World, permits: int) -> None:
        self._engine = engine
        self._world = world
        self._permits = permits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Answer, an evaluation once it has a permit."""
        while request.request.startswith("eval") and len(self._world.view.groups.live) >= self._permits:
            await self._world.clock.sleep(0.1)
        return await self._engine.generate(request)


def without_last_publish(view: View, config: RunConfig, policy: Policy) -> Action | None:
    """Decide as the shipped trainer does, but leave the last version unpublished and wait for it."""
    action = decide(view, config, policy)
    last = view.trainer.version >= config.run.steps
    return None if last and isinstance(action, Publish) else action


async def without_lease(
    waiter: Waiter, effect: str, subject: str, limit_s: float | None, work: Awaitable[Any]
) -> Any:
    """Await as the shipped waiter does, but an engine that takes weights for as long as it likes."""
    limit = 1e9 if effect == "weight_sync" else limit_s
    return await bounded(waiter, effect, subject, limit, work)  # type: ignore[arg-type]


async def swallows(rollouts: Rollouts, job: Job) -> TrajectoryCompleted | TrajectoryFailed | None:
    """Run an attempt in a worker that dies of an exception: nobody awaits it, and it says nothing."""
    rollouts.waiter = _Quiet(rollouts.waiter.bus, rollouts.waiter.clock, rollouts.waiter.actor)
    try:
        return await run_attempt(rollouts, job)
    except Exception:  # noqa: BLE001 - the fault that this double is about
        return None


class _Quiet(Waiter):
    """Does not say of an attempt that a defect ended it."""

    def publish(self, event: Event, *, cause: int | None = None, corr: str | None = None) -> Record:
        """Append every other event."""
        if isinstance(event, TrajectoryFailed) and event.failure == "defect":
            raise RuntimeError(event.message)
        return super().publish(event, cause=cause, corr=corr)


async def errors_are_rows(rollouts: Rollouts, job: Job) -> TrajectoryCompleted | TrajectoryFailed:
    """Run an attempt, and make a row with reward 0 of one that fails."""
    rollouts._failed = partial(_as_row, rollouts)  # type: ignore[method-assign]
    return await run_attempt(rollouts, job)


def _as_row(rollouts: Rollouts, job: Job, failure: Failure) -> Any:
    row = TrajectoryCompleted(
        trajectory=job.trajectory,
        group=job.group,
        attempt=job.attempt,
        turns=0,
        prompt_tokens=0,
        completion_tokens=0,
        version_spans=(),
        reward=0.0,
        stop_reason="done",
        **dict.fromkeys(("queue_s", "llm_s", "env_setup_s", "env_s", "reward_s", "other_s"), 0.0),
        payload=rollouts.payloads.put(Conversation().payload([], 0.0).encode()),
    )
    rollouts.waiter.publish(row)
    return row


async def not_fenced(rollouts: Rollouts, job: Job) -> TrajectoryCompleted | TrajectoryFailed:
    """Run an attempt; when the second one is complete, let the result of the first one in as well."""
    ended = await run_attempt(rollouts, job)
    if isinstance(ended, TrajectoryCompleted) and ended.attempt:
        rollouts.waiter.publish(ended.model_copy(update={"attempt": 0}))
    return ended


class ClearsBeforeSleep(Attention):
    """Looks, finds nothing to do, clears the flag, sleeps until it is set: three moves, with gaps in between.

    Every event sets the flag; one that comes between the look and the clearing is forgotten.
    """

    def __init__(self, stage: str = "look", flag: bool = False) -> None:
        self.stage = stage
        self.flag = flag

    def awake(self) -> bool:
        """Return whether it does not sleep on a flag that is clear."""
        return self.stage != "asleep" or self.flag

    def hear(self, event: Event) -> None:
        """Set the flag."""
        self.flag = True

    def looks(self) -> bool:
        """Clear the flag if the last look found nothing; look otherwise."""
        if self.stage == "clear":
            self.stage, self.flag = "asleep", False
            return False
        return True

    def found(self, anything: bool) -> None:
        """Look again when there was something, clear the flag next when there was nothing."""
        self.stage = "look" if anything else "clear"

    def fork(self) -> ClearsBeforeSleep:
        """Return a copy."""
        return ClearsBeforeSleep(self.stage, self.flag)

    def key(self) -> Hashable:
        """Return both."""
        return (self.stage, self.flag)


class FlagWaiter:
    """The same on an event loop: whoever changes the state calls `notify`."""

    def __init__(self) -> None:
        self._flag = asyncio.Event()

    def notify(self) -> None:
        """Set the flag."""
        self._flag.set()

    async def until(self, ready: Callable[[], bool]) -> None:
        """Return once `ready` was found true; may sleep through it."""
        while not ready():
            await asyncio.sleep(0)  # says in the log that it must pause
            self._flag.clear()
            await self._flag.wait()


def hole_behind_the_window(
    *,
    legacy: bool,
    staleness: int = 1,
    fails_after_s: float = 10.0,
    on_stall: str = "warn",
    clock: Any = None,
    scale: float = 1.0,
) -> World:
    """Return the world of the over-long prompt: steps of 3 s, rollouts of about 1 s, prompt 13 refused late.

    All times are multiplied by `scale`; `clock` is a real one where the loop is.
    """
    world = World(
        config(
            run={"steps": 8},
            scheduler={"groups_per_step": 4, "max_staleness": staleness},
            watchdog={"on_stall": on_stall},
        ),
        policy=WindowBehind() if legacy else None,
        **({} if clock is None else {"clock": clock}),
    )
    world.learner.seconds = 3.0 * scale
    world.environment = lambda: SimulatedEnvironment(world.clock, seconds=0.1 * scale)

    async def refuse_13(request: GenerateRequest) -> None:
        if request.request.split("/")[0] == "13":
            await world.clock.sleep(fails_after_s * scale)
            raise PromptTooLong("the prompt has 4,000 tokens and the context 1,000")

    world.pool[0].on_generate = refuse_13
    world.pool[0].seconds = lambda request: scale
    return world
