"""A worker of environments without a process: what it holds is gone when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ...core.ports import (
    Action,
    Environment,
    EnvironmentWorkerGone,
    EnvironmentWorkerInfo,
    Message,
    StepOutcome,
)
from .world import Hook, nothing

T = TypeVar("T")


@dataclass
class SimulatedEnvironmentWorker:
    """A worker that holds what `create` makes, and loses all of it when it dies."""

    name: str
    create: Callable[[], Environment]
    on_start: Hook = nothing
    on_ping: Hook = nothing
    held: set[int] = field(default_factory=set)
    """Numbers of the environments that were made and not dropped, of this life."""
    alive: bool = False
    _died: asyncio.Event = field(default_factory=asyncio.Event)
    _made: int = 0

    async def start(self) -> EnvironmentWorkerInfo:
        """Come up, holding nothing."""
        await self.on_start()
        self.alive, self._died = True, asyncio.Event()
        self.held = set()
        return EnvironmentWorkerInfo()

    def die(self) -> None:
        """End what is under way, as a killed process would."""
        self.alive = False
        self._died.set()

    def make(self) -> SimulatedHeldEnvironment:
        """Hold one more."""
        self._made += 1
        self.held.add(self._made)
        return SimulatedHeldEnvironment(self.name, self._made, self.create(), self._died, self.held)

    async def ping(self) -> None:
        """Answer, as the hook says."""
        await self.on_ping()
        if not self.alive:
            raise EnvironmentWorkerGone(f"{self.name} is not running")

    async def close(self) -> None:
        """End."""
        self.die()


@dataclass
class SimulatedHeldEnvironment:
    """An environment of a worker, that ends with it."""

    worker: str
    number: int
    inner: Environment
    died: asyncio.Event
    held: set[int]

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Begin."""
        return await self._call(partial(self.inner.reset, item, seed))

    async def step(self, action: Action) -> StepOutcome:
        """Answer."""
        return await self._call(partial(self.inner.step, action))

    async def reward(self) -> float:
        """Score."""
        return await self._call(self.inner.reward)

    def drop(self) -> None:
        """Be held no more."""
        self.held.discard(self.number)

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        async def asked() -> T:
            return await work()

        if self.died.is_set():
            raise EnvironmentWorkerGone(f"{self.worker} is not running")
        try:
            async with asyncio.TaskGroup() as tasks:
                answer = tasks.create_task(asked())
                died = tasks.create_task(self.died.wait())
                await asyncio.wait({answer, died}, return_when=asyncio.FIRST_COMPLETED)
                died.cancel()
                answer.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        if answer.cancelled():
            raise EnvironmentWorkerGone(f"{self.worker} died")
        return answer.result()
