"""Weight sync: every serving engine takes the published weights, or is lost.

One engine at a time would leave the others idle, so all take them at once. Three modes: ``drain`` pauses an engine
and lets it finish what it has; ``pause`` stops it in the middle and goes on with the new weights; ``in_flight``
swaps the weights between two decoding steps without a pause. Whatever the mode, every token knows its version.

An engine that does not acknowledge within the deadline is declared lost, so no engine can stay paused for ever
and none can serve weights that the run believes replaced.
"""

from __future__ import annotations

import asyncio

from ..events.record import causing
from ..events.types import (
    EnginePaused,
    EngineResumed,
    SyncAcknowledged,
    SyncFailed,
    SyncStarted,
)
from .config import RunConfig
from .engine_pool import EnginePool
from .failures import one_line
from .ports import PortError
from .projections import View
from .waits import Expired, Waiter


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
        version, mode = self.view.trainer.published, self.config.engine.sync_mode
        limit_s, life = self.config.deadlines.weight_sync_s, self.pool.life(name)
        started = self.waiter.publish(SyncStarted(engine=name, version=version, mode=mode))
        with causing(started.seq):
            try:
                await self.waiter.bounded(
                    "weight_sync", name, limit_s, self._transfer(name, version, started.mono)
                )
            except (PortError, Expired) as error:
                outcome = "expired" if isinstance(error, Expired) else "failed"
                self.waiter.publish(
                    SyncFailed(engine=name, version=version, outcome=outcome, message=one_line(error))
                )
                self.pool.lose(name, f"weight sync to version {version}: {one_line(error)}", life)
            except asyncio.CancelledError:
                self.waiter.publish(
                    SyncFailed(engine=name, version=version, outcome="cancelled", message="the run ended")
                )
                raise

    async def _transfer(self, name: str, version: int, started_ns: int) -> None:
        engine, mode = self.pool.engines[name], self.config.engine.sync_mode
        if mode != "in_flight":
            # Said before it is done: from here on nothing is routed to the engine.
            self.waiter.publish(EnginePaused(engine=name, mode=mode))
            await engine.pause(mode)
        await engine.load(self.pool.artifacts.absolute(self.view.trainer.published_path), version)
        acknowledged = SyncAcknowledged(
            engine=name, version=version, seconds=self.waiter.elapsed_s(started_ns)
        )
        if mode == "in_flight":
            self.waiter.publish(acknowledged)
            return
        await engine.resume()
        self.waiter.publish(acknowledged)
        self.waiter.publish(EngineResumed(engine=name))
