"""Environments in processes of their own: the controller's hold on one worker, wherever its launcher starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.config import DeadlineSection, EnvironmentSection, RolloutSection
from ...core.ports import (
    Action,
    EnvironmentFailed,
    EnvironmentWorkerGone,
    EnvironmentWorkerInfo,
    Message,
    StepOutcome,
)
from ..launching import Launcher, Worker
from ..worker import RemoteError, WorkerFailed, WorkerGone
from .crossing import pack_item, received, received_outcome

TARGET = "eventrain.adapters.environments.worker_process:make"


class WorkerEnvironments:
    """One worker, and the environments that it holds. Implements `EnvironmentWorker`.

    Environments have a number, and live from `reset` to `reward`. What is dropped before that is told to the worker
    with the next call, again and again until one was answered: no call is made for it alone, and none that is
    cancelled can lose it.
    """

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        section: EnvironmentSection,
        rollout: RolloutSection,
        base: Path,
        log_path: Path | None,
        deadlines: DeadlineSection,
    ) -> None:
        self.name = name
        self._launcher = launcher
        self._settings: dict[str, Any] = {
            "environment": section.model_dump(mode="json"),
            "rollout": rollout.model_dump(mode="json"),
            "base": str(base.resolve()),
        }
        self._log_path = log_path
        self._deadlines = deadlines
        self._life: _Life | None = None
        self._made = 0

    async def start(self) -> EnvironmentWorkerInfo:
        """Start a worker and return once it can make environments; a former one is closed first.

        Raises `EnvironmentWorkerGone` with the worker's own error. Cancelled or failed, it leaves nothing behind.
        """
        await self.close()
        try:
            worker = await self._launcher.start(
                TARGET,
                self._settings,
                name=self.name,
                log_path=self._log_path,
                deadline_s=self._deadlines.start_s,
            )
        except WorkerFailed as error:
            raise EnvironmentWorkerGone(str(error)) from error
        self._life = _Life(worker)
        return EnvironmentWorkerInfo(worker.node, worker.pid)

    def make(self) -> WorkerEnvironment:
        """Return a fresh environment, which comes to be in the worker with its reset."""
        assert self._life is not None, f"{self.name} was never started"
        self._made += 1
        return WorkerEnvironment(self.name, self._life, self._made)

    async def ping(self) -> None:
        """Return once the worker answers. Raises `EnvironmentWorkerGone`."""
        assert self._life is not None, f"{self.name} was never started"
        await self._life.call("ping")

    async def held(self) -> list[int]:
        """Return the numbers of the environments that the worker holds. Raises `EnvironmentWorkerGone`."""
        assert self._life is not None, f"{self.name} was never started"
        numbers: list[int] = await self._life.call("held")
        return numbers

    async def close(self) -> None:
        """End the worker and what it holds. Idempotent. Cancelling kills it at once."""
        if self._life is not None:
            await self._life.worker.close(self._deadlines.close_s)


class _Life:
    """A worker from its start to its end, and what it has not been told yet to let go of."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.dropped: set[int] = set()

    async def call(self, method: str, **params: Any) -> Any:
        try:
            return await self.worker.call(method, **params)
        except WorkerGone as error:
            raise EnvironmentWorkerGone(str(error)) from error

    async def ask(self, method: str, number: int, **params: Any) -> Any:
        """Call a method of environment `number`, and tell the worker what is dropped. Raises as the port has it."""
        told = tuple(self.dropped)
        try:
            answer = await self.call(method, number=number, drop=told, **params)
        except RemoteError as error:
            self.dropped.difference_update(told)
            words = error.message if error.kind == EnvironmentFailed.__name__ else str(error)
            raise EnvironmentFailed(words) from error
        self.dropped.difference_update(told)
        return answer


class WorkerEnvironment:
    """An environment that lives in a worker. Cancelling a call cancels it there, and does not wait for that."""

    def __init__(self, worker: str, life: _Life, number: int) -> None:
        self.worker = worker
        self._life = life
        self._number = number
        self._there = False

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Begin. Raises `EnvironmentFailed`, also for an item that cannot be sent."""
        try:
            packed = pack_item(item)
        except TypeError as error:
            raise EnvironmentFailed(str(error)) from error
        self._there = True
        return received(await self._life.ask("reset", self._number, item=packed, seed=seed))

    async def step(self, action: Action) -> StepOutcome:
        """Answer."""
        answer = await self._life.ask(
            "step", self._number, text=action.text, token_ids=list(action.token_ids)
        )
        return received_outcome(answer)

    async def reward(self) -> float:
        """Score, after which the worker holds it no more."""
        reward: float = await self._life.ask("reward", self._number)
        self._there = False
        return reward

    def drop(self) -> None:
        """Have the worker let it go."""
        if self._there:
            self._there = False
            self._life.dropped.add(self._number)
