"""The engine pool: routes requests, keeps every engine alive, and readmits a restarted one only at the current weights.

Routing is by load: the serving engine with the fewest calls per slot. An engine that dies is lost at once; the
calls it held fail as retryable and are not charged to their prompts; it is restarted within its budget. When no
engine is left and none may be restarted, the run ends with the first cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..events.record import causing
from ..events.types import EngineLost, EngineRestarted, EngineUp
from .config import RunConfig
from .failures import Failure, RunFailure, TrajectoryAborted, engine_failure, expiry_failure, one_line
from .lives import Lives
from .llm_call import LlmCall
from .ports import Artifacts, Engine, EngineError, EngineGone, GenerateRequest, Generation, PortError, Weights
from .projections import Engines, EngineStatus, View
from .waits import Edge, Expired, Waiter
from .weight_update import update


def route(engines: Engines) -> EngineStatus | None:
    """Return the serving engine with the lowest load per slot, the newest weights first among equals."""
    serving = engines.serving()
    if not serving:
        return None
    return min(
        serving, key=lambda engine: (engine.in_flight / max(1, engine.slots), -engine.version, engine.name)
    )


def step(view: View, config: RunConfig, count: int) -> list[EngineRestarted]:
    """Return the restarts that are due. Raises `RunFailure` when none of `count` engines is left to hope for.

    An engine that has not come up yet is not in the view, and is one to hope for.
    """
    lost = [engine for engine in view.engines.by_name.values() if engine.state == "lost"]
    due = [
        EngineRestarted(engine=engine.name, restart=engine.restarts + 1)
        for engine in lost
        if engine.restarts < config.engine.restarts_max
    ]
    if not due and len(lost) == count:
        first = min(lost, key=lambda engine: engine.lost_seq or 0)
        raise RunFailure(
            "no_engine_left",
            f"every engine is lost and none may be restarted (engine.restarts_max = "
            f"{config.engine.restarts_max}); {first.name}: {first.lost_message}",
            first.lost_seq,
        )
    return due


def wait_edge(view: View, count: int) -> Edge:
    """Return what the pool of `count` engines waits for, which has nothing to decide."""
    if view.trainer.published < 0:
        return Edge("version", "the first weights", "none published")
    return Edge("work", "a lost engine", f"{len(view.engines.serving())}/{count} serving")


class EnginePool:
    """The shell: starts and restarts engines, and makes calls on behalf of rollouts."""

    def __init__(
        self, view: View, config: RunConfig, engines: Sequence[Engine], artifacts: Artifacts, waiter: Waiter
    ) -> None:
        self.view = view
        self.config = config
        self.engines = {engine.name: engine for engine in engines}
        self.artifacts = artifacts
        self.waiter = waiter
        self.lives = Lives(
            waiter,
            lambda: view.engines.by_name,
            lambda name, message: EngineLost(engine=name, message=message),
            lambda name: self.engines[name].close(),
            closing="engine_close",
            close_s=config.deadlines.close_s,
        )
        self._reading: dict[str, int] = {}  # engine that starts -> version whose file it reads

    async def run(self) -> None:
        """Prepare all engines, start them once weights are published, then restart lost ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            with self.lives.within(tasks):
                ready = {name: tasks.create_task(self._prepare(name)) for name in self.engines}
                await self.waiter.until(self._weights, self._rest)
                for name, preparing in ready.items():
                    tasks.create_task(self._start(name, preparing), name=f"start {name}")
                while True:
                    for restart in await self.waiter.until(self._due, self._rest):
                        record = self.waiter.publish(restart, cause=self.view.last_seq)
                        with causing(record.seq):
                            tasks.create_task(self._start(restart.engine), name=f"restart {restart.engine}")

    def _weights(self) -> bool:
        return self.view.trainer.published >= 0

    def _due(self) -> list[EngineRestarted] | None:
        return step(self.view, self.config, len(self.engines)) or None

    def _rest(self) -> Edge:
        return wait_edge(self.view, len(self.engines))

    async def _prepare(self, name: str) -> None:
        limit_s = self.config.deadlines.start_s
        try:
            await self.waiter.bounded("engine_prepare", name, limit_s, self.engines[name].prepare())
        except (PortError, Expired):
            return  # only a head start: what is wrong shows again, with its deadline, when the engine is started

    async def _start(self, name: str, preparing: asyncio.Task[None] | None = None) -> None:
        engine, limit_s = self.engines[name], self.config.deadlines.start_s
        if preparing is not None:
            await preparing  # bounded by the same deadline
        await self.lives.ended(name)
        try:
            weights = self._newest_for(name)
            info = await self.waiter.bounded("engine_start", name, limit_s, engine.start(weights))
            self.waiter.bus.fold()
            while weights.version < self.view.trainer.published:  # newer ones came meanwhile: never serve old ones
                weights, lease = self._newest_for(name), self.view.last_seq
                await self.waiter.bounded("weight_sync", name, limit_s, update(engine, weights, lease))
                self.waiter.bus.fold()
        except (PortError, Expired) as error:
            self.lives.lose(name, one_line(error), self.lives.present(name))
            return
        finally:
            self._reading.pop(name, None)
        self.waiter.publish(
            EngineUp(
                engine=name,
                version=weights.version,
                context_tokens=info.context_tokens,
                slots=info.slots,
                device=info.device,
                node=info.node,
            )
        )

    def published(self) -> Weights:
        """Return the newest weights that lie ready."""
        trainer = self.view.trainer
        return Weights(
            version=trainer.published,
            path=self.artifacts.absolute(trainer.published_path),
            tensors=trainer.published_tensors,
            buckets=trainer.published_buckets,
            digest=trainer.published_digest,
        )

    def _newest_for(self, name: str) -> Weights:
        """Return the published weights, which `name` is about to read."""
        weights = self.published()
        self._reading[name] = weights.version
        return weights

    def needed_from(self, version: int) -> int:
        """Return the oldest version that a starting engine still reads, `version` if none reads an older one."""
        return min([version, *self._reading.values()])

    def alive(self, name: str, life: int) -> bool:
        """Return whether the engine is up, and in the same life as when it had been restarted `life` times."""
        status = self.view.engines.by_name.get(name)
        return status is not None and status.restarts == life and status.state in ("serving", "paused")

    async def _available(self, trajectory: str) -> EngineStatus:
        """Return an engine that serves; wait for one as long as a restart or a weight sync may take."""
        self.waiter.bus.fold()
        engine = route(self.view.engines)
        if engine is not None:
            return engine
        limits = self.config.deadlines
        limit_s = max(limits.llm_call_s, limits.close_s + limits.start_s, limits.weight_sync_s)
        try:
            return await self.waiter.until(
                lambda: route(self.view.engines),
                lambda: Edge("engine_available", "a serving engine", self._rest().present),
                deadline_s=limit_s,
                waiter=trajectory,
            )
        except Expired:
            raise TrajectoryAborted(
                Failure("engine_lost", True, "engine", f"no engine served within {limit_s:g} s")
            ) from None

    async def generate(
        self, request: GenerateRequest, trajectory: str, turn: int, part: int = 0
    ) -> tuple[Generation, float]:
        """Sample one completion on the least loaded engine; return it and its seconds without the queue.

        Waits while no engine serves. Raises `TrajectoryAborted` with a typed failure. `part` counts the calls of one
        turn, of which all but the last end with ``finish_reason == "abort"``.
        Cancelling aborts the request in the engine.
        """
        engine = await self._available(trajectory)
        call = LlmCall.begin(self.waiter, engine, request, trajectory=trajectory, turn=turn, part=part)
        generation = await self._sampled(call)
        self._check(call, generation)
        return generation, call.end("completed", generation=generation)

    async def _sampled(self, call: LlmCall) -> Generation:
        """Return what the engine answers. Raises what `generate` raises, after the end of the call is published."""
        limit_s, work = self.config.deadlines.llm_call_s, self.engines[call.engine].generate(call.request)
        try:
            return await self.waiter.bounded("llm_call", call.request.request, limit_s, work)
        except Expired as expired:
            call.end("expired", str(expired))
            raise TrajectoryAborted(expiry_failure("llm_call", limit_s)) from None
        except asyncio.CancelledError:
            call.end("cancelled")
            raise
        except PortError as error:
            gone = isinstance(error, EngineGone)
            call.end("lost" if gone else "failed", one_line(error))
            if gone:
                self.lives.lose(call.engine, one_line(error), call.life)
            raise TrajectoryAborted(engine_failure(error)) from error
        except BaseException as error:
            call.end("failed", one_line(error))
            raise

    def _check(self, call: LlmCall, generation: Generation) -> None:
        """Refuse an answer of weights that the engine should not have, and one that nobody asked it to cut off."""
        oldest, newest = call.version, self.view.trainer.published
        if any(not oldest <= sampled <= newest for sampled, _ in generation.version_spans):
            found = f"answered with weights {generation.version_spans}, was to serve {oldest} to {newest}"
            call.end("failed", found)
            self.lives.lose(call.engine, found, call.life)
            raise TrajectoryAborted(engine_failure(EngineGone(found)))
        if generation.finish_reason == "abort" and not self._cut_off(call):
            unasked = "aborted the call, and no weight sync had asked for it"
            call.end("failed", unasked)
            raise TrajectoryAborted(engine_failure(EngineError(unasked)))

    def _cut_off(self, call: LlmCall) -> bool:
        """Return whether a weight sync may have aborted the call, which began before it."""
        self.waiter.bus.fold()
        engine = self.view.engines.by_name[call.engine]
        return (
            engine.restarts != call.life or engine.version != call.version or engine.syncing_to is not None
        )
