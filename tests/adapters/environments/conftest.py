"""Drive one environment through a trajectory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from eventrain.core.ports import Action, Environment


@pytest.fixture(scope="session")
def play() -> Callable[..., float]:
    """Return ``play(environment, item, answer, ...)``: reset, one step per answer, and the reward."""

    async def trajectory(environment: Environment, item: dict, answers: tuple[str, ...]) -> float:
        await environment.reset(item, seed=0)
        for answer in answers:
            await environment.step(Action(answer, []))
        return await environment.reward()

    return lambda environment, item, *answers: asyncio.run(trajectory(environment, item, answers))
