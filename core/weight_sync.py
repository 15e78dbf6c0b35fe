"""Weight sync: every serving engine takes the published weights, or is lost.

One engine at a time would leave the others idle, so all take them at once. Whatever the transport, a sync of an engine
goes through the same states, each but the second an event:

    announced     SyncStarted; its seq is the lease of the update, and calls under an older one change nothing
    fetched       the weights are on the engine's machine, while it goes on decoding
    paused        EnginePaused, unless the mode is ``in_flight``: nothing more is routed to the engine
    transferred   all buckets, in order; an update that fails is made again, as a whole, before anything is sampled
                  (SyncRetried)
    verified      SyncVerified: the engine's receipt agrees with what was published, in count, names and bytes
    acknowledged  SyncAcknowledged, and EngineResumed

Four modes: ``drain`` pauses an engine once what it has is finished; ``pause`` stops it in the middle and goes on with
the new weights; ``abort`` ends what it has, and the rollouts ask for the rest of their answers afterwards;
``in_flight`` swaps the weights between two decoding steps without a pause. Whatever the mode, every token knows its
version.

An engine that has not acknowledged within the deadline is declared lost, so no engine can stay paused for ever and
none can serve weights that the run believes replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..events.record import causing
from ..events.types import (
    EnginePaused,
    EngineResumed,
    SyncAcknowledged,
    SyncFailed,
    SyncRetried,
    SyncStarted,
    SyncVerified,
)
from .config import RunConfig
from .engine_pool import EnginePool
from .failures import one_line, outcome_of
from .ports import EngineGone, PortError, Weights
from .projections import View
from .waits import Expired, Waiter
from .weight_update import update

LOST = "the engine was lost meanwhile"


def lagging(view: View) -> list[str]:
    """Return the engines that serve older weights than those published."""
    return [
        engine.name
        for engine in view.engines.by_name.values()
        if engine.state in ("serving", "paused") and engine.version < view.trainer.published
    ]


class WeightSync:
    """The shell that brings engines to the published version."""

    def __init__(self, view: View, config: RunConfig, pool: EnginePool, waiter: Waiter) -> None:
        self.view = view
        self.config = config
        self.pool = pool
        self.waiter = waiter

    async def run(self) -> None:
        """Sync every lagging engine; return when each has acknowledged or is lost."""
        async with asyncio.TaskGroup() as tasks:
            for name in lagging(self.view):
                tasks.create_task(self._sync(name), name=f"sync {name}")

    async def _sync(self, name: str) -> None:
        self.waiter.bus.fold()
        if name not in lagging(self.view):
            return  # lost since it was looked at
        weights, mode = self.pool.published(), self.config.engine.sync_mode
        limit_s, life = self.config.deadlines.weight_sync_s, self.pool.lives.present(name)
        started = self.waiter.publish(SyncStarted(engine=name, version=weights.version, mode=mode))
        with causing(started.seq):
            try:
                work = self._while_alive(name, life, self._through(name, life, weights, started.seq))
                await self.waiter.bounded("weight_sync", name, limit_s, work)
                self._expect(name, life)
            except BaseException as error:
                self.waiter.publish(
                    SyncFailed(
                        engine=name, version=weights.version, outcome=outcome_of(error), message=one_line(error)
                    )
                )
                if not isinstance(error, PortError | Expired):
                    raise
                why = f"weight sync to version {weights.version}: {one_line(error)}"
                self.pool.lives.lose(name, why, life)
                return
            self.waiter.publish(
                SyncAcknowledged(
                    engine=name, version=weights.version, seconds=self.waiter.elapsed_s(started.mono)
                )
            )
            if mode != "in_flight":
                self.waiter.publish(EngineResumed(engine=name))

    async def _through(self, name: str, life: int, weights: Weights, lease: int) -> bool:
        """Pause, update and resume the engine, which has what it can of the weights before it is paused."""
        engine, mode = self.pool.engines[name], self.config.engine.sync_mode
        self._expect(name, life)
        try:
            await engine.fetch(weights)
        except EngineGone:
            raise
        except PortError:
            pass  # the update asks for them again, and says what is wrong
        self._expect(name, life)
        if mode != "in_flight":
            # Said before it is done: from here on nothing is routed to the engine.
            self.waiter.publish(EnginePaused(engine=name, mode=mode))
            await engine.pause(mode)
            self._expect(name, life)
        await self._update(name, life, weights, lease)
        if mode != "in_flight":
            await engine.resume()
        return True

    async def _update(self, name: str, life: int, weights: Weights, lease: int) -> None:
        """Update the engine, and again if that fails: half updated, it is not resumed."""
        for attempt in range(1, self.config.engine.sync_attempts + 1):
            since_ns = self.waiter.clock.mono_ns()
            try:
                receipt = await update(self.pool.engines[name], weights, lease)
            except EngineGone:
                raise
            except PortError as error:
                self._expect(name, life)
                if attempt == self.config.engine.sync_attempts:
                    raise
                self.waiter.publish(
                    SyncRetried(
                        engine=name, version=weights.version, attempt=attempt, message=one_line(error)
                    )
                )
                continue
            self._expect(name, life)
            self.waiter.publish(
                SyncVerified(
                    engine=name,
                    version=receipt.version,
                    tensors=receipt.tensors,
                    digest=receipt.digest,
                    size_bytes=self.view.trainer.published_bytes,
                    seconds=self.waiter.elapsed_s(since_ns),
                )
            )
            return

    async def _while_alive(self, name: str, life: int, work: Coroutine[Any, Any, bool]) -> None:
        """Do `work`, but end it when the engine is lost: it must not go on in the engine's next life."""
        if await self.waiter.unless(lambda: not self.pool.alive(name, life), work) is None:
            raise EngineGone(LOST)

    def _expect(self, name: str, life: int) -> None:
        """Raise `EngineGone` if the engine was lost meanwhile; it may have been restarted, with weights of its own."""
        self.waiter.bus.fold()
        if not self.pool.alive(name, life):
            raise EngineGone(LOST)
