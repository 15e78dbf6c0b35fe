"""Asking the environment of one attempt, wherever it lives: every call with its events, deadline and typed failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from ..events.types import EnvStepFinished, EnvStepStarted, Outcome
from . import answers
from .config import RunConfig
from .environment_pool import EnvironmentPool, Place
from .failures import Effect, TrajectoryAborted, environment_failure, expiry_failure, one_line
from .ports import Action, Environment, EnvironmentFactory, EnvironmentWorkerGone, Message, StepOutcome
from .waits import Expired, Waiter

T = TypeVar("T")
Call = Literal["reset", "step", "reward"]


class Environments:
    """Makes the environment of each attempt: in a worker of the pool, or in the controller where there is no pool."""

    def __init__(
        self, config: RunConfig, make: EnvironmentFactory, pool: EnvironmentPool | None, waiter: Waiter
    ) -> None:
        self.config = config
        self.make = make
        self.pool = pool
        self.waiter = waiter

    async def begin(self, trajectory: str) -> AskedEnvironment:
        """Return a fresh environment, which the caller drops. Raises `TrajectoryAborted` when none could be made.

        Cancelling ends a wait for a worker.
        """
        place = await self.pool.place(trajectory) if self.pool is not None else None
        try:
            environment: Environment = place.environment if place is not None else self.make()
        except Exception as error:
            raise TrajectoryAborted(environment_failure("env_reset", error)) from error
        return AskedEnvironment(trajectory, environment, place, self)


class AskedEnvironment:
    """The environment of one attempt. Every call returns its answer, checked, and the seconds that it took.

    Calls raise `TrajectoryAborted` with a typed failure. Cancelling one no longer waits for it.
    """

    def __init__(
        self, trajectory: str, environment: Environment, place: Place | None, home: Environments
    ) -> None:
        self._trajectory = trajectory
        self._environment = environment
        self._place = place
        self._home = home

    async def reset(self, item: Mapping[str, Any], seed: int) -> tuple[Sequence[Message], float]:
        """Begin with `item`; return the opening messages."""
        return await self._ask(-1, "reset", partial(self._environment.reset, item, seed), answers.messages)

    async def step(self, turn: int, action: Action) -> tuple[StepOutcome, float]:
        """Answer the policy's action in `turn`."""
        return await self._ask(turn, "step", partial(self._environment.step, action), answers.outcome)

    async def reward(self, turn: int) -> tuple[float, float]:
        """Return the reward of the trajectory, which had `turn` turns."""
        return await self._ask(turn, "reward", self._environment.reward, answers.reward)

    def drop(self) -> None:
        """Let the environment go, whatever it is at. Idempotent."""
        if self._place is not None:
            self._place.environment.drop()

    async def _ask(
        self,
        turn: int,
        call: Call,
        work: Callable[[], Awaitable[object]],
        checked: Callable[[object], T],
    ) -> tuple[T, float]:
        effect, limit_s = self._limit(call)
        waiter, place = self._home.waiter, self._place
        started = waiter.publish(
            EnvStepStarted(
                trajectory=self._trajectory,
                turn=turn,
                call=call,
                worker=place.worker if place is not None else "",
            )
        )

        def finished(outcome: Outcome, message: str = "", done: bool = False) -> float:
            seconds = waiter.elapsed_s(started.mono)
            waiter.publish(
                EnvStepFinished(
                    trajectory=self._trajectory,
                    turn=turn,
                    call=call,
                    outcome=outcome,
                    seconds=seconds,
                    done=done,
                    message=message,
                ),
                cause=started.seq,
            )
            return seconds

        try:
            answer = checked(await waiter.bounded(effect, self._trajectory, limit_s, work()))
        except Expired as expired:
            finished("expired", str(expired))
            if place is not None and self._home.pool is not None:
                self._home.pool.suspect(place.worker, place.life)
            raise TrajectoryAborted(expiry_failure(effect, limit_s)) from None
        except asyncio.CancelledError:
            finished("cancelled")
            raise
        except Exception as error:
            gone = isinstance(error, EnvironmentWorkerGone)
            finished("lost" if gone else "failed", one_line(error))
            if gone and place is not None and self._home.pool is not None:
                self._home.pool.lives.lose(place.worker, one_line(error), place.life)
            raise TrajectoryAborted(environment_failure(effect, error)) from error
        return answer, finished("completed", done=bool(getattr(answer, "done", False)))

    def _limit(self, call: Call) -> tuple[Effect, float]:
        deadlines = self._home.config.deadlines
        if call == "reset":
            return "env_reset", deadlines.env_reset_s
        if call == "step":
            return "env_step", deadlines.env_step_s
        return "reward", deadlines.reward_s
