"""What engines of every kind have in common: what they are made of, and how a start ends that does not succeed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ..core.config import DeadlineSection, EngineSection, RolloutSection
from ..core.ports import EngineError, EngineGone


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """One engine of a run: its name, its model's folder and settings, and the file that its output is appended to."""

    name: str
    model_path: Path
    section: EngineSection
    rollout: RolloutSection
    log_path: Path
    deadlines: DeadlineSection


@asynccontextmanager
async def starting(name: str, limit_s: float, close: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Bound the block, in which engine `name` starts, to `limit_s`, and `close` it if it does not come up in it.

    Raises `EngineGone` for an `EngineError` of the block and for one that takes too long. Cancelled, it closes too.
    """
    try:
        async with asyncio.timeout(limit_s):
            yield
    except BaseException as error:
        await close()
        if isinstance(error, EngineError):
            raise EngineGone(f"{name} did not start: {error}") from error
        if isinstance(error, TimeoutError):
            raise EngineGone(f"{name} did not start within {limit_s:g} s") from error
        raise
