"""A vLLM that hangs is found: every call has a deadline, and work in hand has to make progress.

A vLLM that is wedged answers its health check with 200, and calls to a dead one may never return. So what counts here
is progress: while requests are in flight and the engine is not paused, the tokens that it has processed must grow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ...core.ports import EngineGone, GenerateRequest, Generation, PortError
from .link import Link, PauseMode
from .load import engine_load

T = TypeVar("T")

LOOK_S = 2.0
"""Between two looks at an engine that has work in hand."""
LOOK_LIMIT_S = 10.0
"""For one look; one that takes longer has seen no progress."""


class GuardedLink:
    """`link`, of which every call ends. Once the engine is gone, so is every call under way and every later one.

    `pause_s` bounds a pause, which may wait for requests to finish; `call_s` every other call that is not a request;
    `stalled_s` is how long an engine with work in hand may go without processing a token.
    """

    def __init__(self, link: Link, name: str, *, pause_s: float, call_s: float, stalled_s: float) -> None:
        self._link = link
        self.bounds, self.owner = link.bounds, link.owner
        self._name = name
        self._pause_s, self._call_s, self._stalled_s = pause_s, call_s, stalled_s
        self._gone: EngineGone | None = None
        self._paused = False
        self._requests = 0
        self._tokens = -1
        self._moved_s = time.monotonic()
        self._looked_s = self._moved_s

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion. Has no deadline of its own: that is the caller's."""
        if self._requests == 0:
            self._moved_s = time.monotonic()
        self._requests += 1
        try:
            return await self._alive(self._link.generate(request))
        finally:
            self._requests -= 1

    async def reach(self, path: str) -> str:
        """Return where vLLM finds a file. How long that may take is the caller's to say."""
        return await self._alive(self._link.reach(path))

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Stop scheduling, within `pause_s`."""
        await self._within(self._pause_s, "pause", self._link.pause(mode, clear_cache=clear_cache))
        self._paused = True

    async def resume(self) -> None:
        """Schedule again."""
        await self._within(self._call_s, "resume", self._link.resume())
        self._paused, self._moved_s = False, time.monotonic()

    async def workers(self, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Call the engine's workers."""
        return await self._within(self._call_s, method, self._link.workers(method, request))

    async def set_version(self, version: str) -> None:
        """Name the version of the tokens to come."""
        await self._within(self._call_s, "set_version", self._link.set_version(version))

    async def drop_cache(self) -> bool:
        """Forget keys and values."""
        return await self._within(self._call_s, "drop_cache", self._link.drop_cache())

    async def metrics(self) -> str:
        """Return the metrics."""
        return await self._within(self._call_s, "metrics", self._link.metrics())

    async def looked_at(self) -> str:
        """Return the metrics for somebody who only looks: that it takes long is nothing against the engine."""
        if self._gone is not None:
            raise self._gone
        return await self._link.metrics()

    async def check_alive(self) -> None:
        """Raise `EngineGone` if it is known to be."""
        if self._gone is not None:
            raise self._gone
        await self._link.check_alive()

    async def close(self) -> None:
        """End the link."""
        self._gone = self._gone or EngineGone(f"{self._name} is closed")
        await self._link.close()

    async def _within(self, limit_s: float, what: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(limit_s):
                return await self._alive(work)
        except TimeoutError as error:
            self._gone = EngineGone(f"{self._name} has not answered '{what}' for {limit_s:g} s")
            raise self._gone from error

    async def _alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` and end it when the engine turns out to be dead or wedged."""
        if self._gone is not None:
            work.close()
            raise self._gone
        try:
            async with self._watching():
                return await work
        except EngineGone as error:
            self._gone = self._gone or error
            raise

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch())
                try:
                    yield
                finally:
                    watch.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _watch(self) -> None:
        """Raise `EngineGone` when there is no more use in waiting. Calls that wait together look but once."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._gone is not None:
                raise self._gone
            now_s = time.monotonic()
            if now_s - self._looked_s < LOOK_S:
                continue
            self._looked_s = now_s
            await self._look()

    async def _look(self) -> None:
        tokens = self._tokens
        try:
            async with asyncio.timeout(LOOK_LIMIT_S):
                await self._link.check_alive()
                load = engine_load(await self._link.metrics(), self._name)
                tokens = load.prompt_tokens + load.sampled_tokens
        except EngineGone:
            raise
        except (PortError, TimeoutError, ValueError):
            pass  # no progress was seen
        now_s = time.monotonic()
        if tokens != self._tokens or self._paused or self._requests == 0:
            self._tokens, self._moved_s = tokens, now_s
        if now_s - self._moved_s > self._stalled_s:
            raise EngineGone(
                f"{self._name} has {self._requests} requests in flight and has not processed a token for "
                f"{now_s - self._moved_s:.0f} s"
            )
