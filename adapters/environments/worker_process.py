"""The inside of a worker that holds environments: many at once, by number.

Their methods run on the worker's loop. What one of them blocks is this worker, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ...core.config import EnvironmentSection, RolloutSection
from ...core.ports import Action, Environment, EnvironmentFactory, EnvironmentFailed
from .crossing import sent, sent_outcome, unpack_item
from .selection import environment_factory

T = TypeVar("T")


class EnvironmentHolder:
    """Holds environments from their reset until their reward or until they are dropped.

    `drop`, where a method has it, are numbers of environments that nobody will ask for again; those that are gone
    already may be among them.
    """

    def __init__(self, make: EnvironmentFactory) -> None:
        self._make = make
        self._held: dict[int, Environment] = {}

    async def reset(self, number: int, item: bytes, seed: int, drop: Sequence[int] = ()) -> list[tuple[str, str]]:
        """Make environment `number` and begin with `item`; return the opening. Raises `EnvironmentFailed`."""
        self._drop(drop)
        self._held[number] = environment = self._make()
        return sent(await _of_itself(environment.reset(unpack_item(item), seed)))

    async def step(
        self, number: int, text: str, token_ids: Sequence[int], drop: Sequence[int] = ()
    ) -> tuple[list[tuple[str, str]], bool]:
        """Answer the policy's action; return messages and whether it is over. Raises `EnvironmentFailed`."""
        self._drop(drop)
        return sent_outcome(await _of_itself(self._held[number].step(Action(text, token_ids))))

    async def reward(self, number: int, drop: Sequence[int] = ()) -> float:
        """Return the reward, and let the environment go. Raises `EnvironmentFailed`."""
        self._drop(drop)
        return await _of_itself(self._held.pop(number).reward())

    async def held(self) -> list[int]:
        """Return the numbers of the environments that it holds."""
        return sorted(self._held)

    async def ping(self) -> None:
        """Answer: the loop is not blocked."""

    def _drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._held.pop(number, None)


async def _of_itself(work: Awaitable[T]) -> T:
    """Await `work`; a cancellation that nobody asked for is a failure of the environment."""
    task = asyncio.current_task()
    assert task is not None
    requests = task.cancelling()
    try:
        return await work
    except asyncio.CancelledError as error:
        if task.cancelling() > requests:
            raise
        raise EnvironmentFailed("the call was cancelled from within") from error


def make(settings: dict[str, Any]) -> EnvironmentHolder:
    """Return a holder of the environments that `settings` name: the two sections, and the base folder."""
    section = EnvironmentSection.model_validate(settings["environment"])
    rollout = RolloutSection.model_validate(settings["rollout"])
    return EnvironmentHolder(environment_factory(section, rollout, Path(settings["base"])))
