"""Evaluation: one trajectory for each held-out item, all answered by the same weights.

It runs in the trainer's own turn, while no weights can change, so the version is pinned without a lock. Training
rollouts go on beside it; the engines share their slots among both.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from itertools import count

from ..events.record import causing
from ..events.types import EvalCompleted, EvalStarted, Outcome, TrajectoryCompleted
from .config import RunConfig
from .failures import is_charged, retry_delay_s
from .ports import PromptSource
from .projections import View
from .rollout import Job, Rollouts, derived_seed
from .waits import Expired, Waiter


class Evaluation:
    """The shell that evaluates the current weights."""

    def __init__(
        self, view: View, config: RunConfig, source: PromptSource, rollouts: Rollouts, waiter: Waiter
    ) -> None:
        self.view = view
        self.config = config
        self.source = source
        self.rollouts = rollouts
        self.waiter = waiter

    async def run(self) -> None:
        """Evaluate once. An evaluation that takes too long ends as expired, with what it has; training goes on.

        Cancelling ends it as cancelled.
        """
        number, trainer = self.view.trainer.evals, self.view.trainer
        size = min(self.config.eval.prompts, len(self.source))
        started = self.waiter.publish(
            EvalStarted(eval=number, step=trainer.step, version=trainer.published, trajectories=size)
        )
        rewards: list[float] = []
        outcome: Outcome = "failed"
        with causing(started.seq, f"eval{number}"):
            try:
                work = self._all(number, size, rewards)
                await self.waiter.bounded("eval", f"eval{number}", self.config.deadlines.eval_s, work)
                outcome = "completed"
            except Expired:
                outcome = "expired"
            except asyncio.CancelledError:
                outcome = "cancelled"
                raise
            finally:
                self.waiter.publish(
                    EvalCompleted(
                        eval=number,
                        step=trainer.step,
                        version=trainer.published,
                        outcome=outcome,
                        reward_mean=statistics.fmean(rewards) if rewards else None,
                        completed=len(rewards),
                        failed=size - len(rewards),
                        seconds=self.waiter.elapsed_s(started.mono),
                    )
                )

    async def _all(self, number: int, size: int, rewards: list[float]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for position in range(size):
                tasks.create_task(self._one(number, position, rewards), name=f"eval{number}/{position}")

    async def _one(self, number: int, position: int, rewards: list[float]) -> None:
        _, item = self.source.item(0, position)
        trajectory = f"eval{number}/{position}"
        seed = derived_seed(self.config.run.seed, "eval", position)  # the same questions at every evaluation
        failures = Counter[bool]()
        for attempt in count():
            job = Job(trajectory, None, attempt, item, seed, self.config.eval.temperature)
            ended = await self.rollouts.run(job)
            if isinstance(ended, TrajectoryCompleted):
                rewards.append(ended.reward)
                return
            charged = is_charged(ended)
            failures[charged] += 1
            delay_s = retry_delay_s(ended, failures[charged], self.config.failures)
            if delay_s is None:
                return
            await self.waiter.clock.sleep(delay_s)
