"""A run: where everything is wired together, supervised, and ended.

Actors live in one task group. The first exception of any of them ends all of them, and the log says which it was.
However a run ends, every group in flight is accounted for, every process is closed, and the last event says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ..events.bus import Bus
from ..events.types import (
    Event,
    InvariantBroken,
    PhaseEntered,
    RunFailed,
    RunFinished,
    RunStarted,
    StopRequested,
)
from .collector import Collector
from .config import RunConfig
from .ending import end_of_data
from .engine_pool import EnginePool
from .environment_calls import Environments
from .environment_pool import EnvironmentPool
from .evaluation import Evaluation
from .failures import RunFailure, first_leaf, one_line
from .policies import Policy, policy_for
from .ports import Payloads, Ports
from .projections import View
from .projections.accounting import Ledger
from .resume import Past
from .rollout import Rollouts
from .tracing import TraceParents
from .trainer import TrainerActor
from .waits import Expired, Waiter
from .watchdog import Watch, Watchdog, due_actors
from .weight_sync import WeightSync

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended."""

    outcome: str
    """completed, interrupted, data_exhausted or failed."""
    steps: int
    version: int
    seconds: float
    error: str = ""
    message: str = ""
    """Why it failed, or why steps are missing."""
    exception: BaseException | None = None
    """The first cause, where it was an exception."""


class Run:
    """One run on given ports, bus and payload store.

    Make it, look at `view` while it runs, await `conduct` once. `policy` is used in place of the configured one.
    With `past` it goes on where that log ends: the bus continues its seqs, and `opening` (see `resumption`) is what
    the run publishes first, in place of RunStarted.
    """

    def __init__(
        self,
        config: RunConfig,
        ports: Ports,
        bus: Bus,
        payloads: Payloads,
        *,
        policy: Policy | None = None,
        past: Past | None = None,
        opening: Sequence[Event] = (),
    ) -> None:
        self.config = config
        self.policy = policy or policy_for(config)
        self.ports = ports
        self.bus = bus
        self.payloads = payloads
        self.view = bus.register(past.view if past else View())
        self.view.attempts.keep = config.failures.window
        self.ledger = bus.register(past.ledger if past else Ledger())
        self.watch = bus.register(past.watch if past else Watch(self.view))
        self.opening = opening or [self._started()]
        self._me = Waiter(bus, ports.clock, "run")
        self._first: tuple[str, BaseException] | None = None

    async def conduct(self, stop: asyncio.Event) -> RunOutcome:
        """Run to the end and return how it ended; setting `stop` asks for an early, clean one.

        Does not raise for anything that goes wrong in the run: that is an outcome. Cancelling ends the run at
        once, closes every process, and raises.
        """
        first, *more = self.opening
        started = self._me.publish(first)
        for event in more:
            self._me.publish(event, cause=started.seq)
        before_s = self.ledger.wall_ns / 1e9
        outcome = ""
        try:
            outcome = await self._actors(stop)
        except asyncio.CancelledError:
            self._note("run", RunFailure("cancelled", "the run was cancelled before its end"))
            raise
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - noted as the outcome
            self._note("run", error)
        finally:
            try:
                await self._close_ports()
            finally:
                ended = self._end(outcome, before_s, started.mono)
        return ended

    def _started(self) -> RunStarted:
        facts = self.ports.facts
        return RunStarted(
            run=self.config.run.name,
            config=self.config.model_dump(mode="json"),
            code_version=str(facts.get("code_version", "")),
            seed=self.config.run.seed,
            host=str(facts.get("host", "")),
            pid=int(facts.get("pid", 0)),
            prompts=len(self.ports.prompts),
            engines=len(self.ports.engines),
            base=str(facts.get("base", "")),
        )

    def _note(self, actor: str, error: BaseException) -> None:
        """Remember the first thing that went wrong."""
        if self._first is None:
            self._first = (actor, first_leaf(error))

    async def _actors(self, stop: asyncio.Event) -> str:
        config, view, ports = self.config, self.view, self.ports
        pool = EnginePool(view, config, ports.engines, ports.artifacts, self._waiter("engine_pool"))
        worlds = self._environment_pool()
        rollouts = Rollouts(
            config,
            Environments(config, ports.environments, worlds, self._waiter("rollout")),
            ports.renderer,
            pool,
            self.payloads,
            TraceParents(view, config),
            self._waiter("rollout"),
        )
        policy = self.policy
        collector = Collector(view, config, policy, ports.prompts, rollouts, self._waiter("collector"))
        trainer = TrainerActor(
            view,
            config,
            policy,
            ports.learner,
            self.payloads,
            ports.artifacts,
            WeightSync(view, config, pool, self._waiter("weight_sync")),
            self._evaluation(rollouts),
            self._waiter("trainer"),
        )
        async with asyncio.TaskGroup() as actors:
            collecting = actors.create_task(self._supervised("collector", collector.run), name="collector")
            beside: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = [
                ("bus", self.bus.guard),
                ("auditor", self._audit),
                ("run", partial(self._obey, stop)),
                ("engine_pool", pool.run),
                ("watchdog", self._watchdog().run),
            ]
            if worlds is not None:
                beside.append(("environment_pool", worlds.run))
            others = [
                actors.create_task(self._supervised(name, work), name=name) for name, work in beside
            ]
            outcome = await self._supervised("trainer", trainer.run)
            self._me.publish(PhaseEntered(phase="finished", step=view.trainer.step))
            collecting.cancel()
            await asyncio.wait({collecting})  # its groups are accounted for before the engines go
            for task in others:
                task.cancel()
        return outcome

    def _waiter(self, actor: str) -> Waiter:
        return Waiter(self.bus, self.ports.clock, actor)

    def _environment_pool(self) -> EnvironmentPool | None:
        workers = self.ports.environment_workers
        if not workers:
            return None
        return EnvironmentPool(self.view, self.config, workers, self._waiter("environment_pool"))

    def _watchdog(self) -> Watchdog:
        def due() -> list[str]:
            ports = self.ports
            return due_actors(self.view, self.config, self.policy, ports.prompts, len(ports.engines))

        return Watchdog(self.watch, self.ledger, self.config, due, self._waiter("watchdog"))

    def _evaluation(self, rollouts: Rollouts) -> Evaluation | None:
        if self.ports.eval_prompts is None:
            return None
        return Evaluation(
            self.view, self.config, self.ports.eval_prompts, rollouts, self._waiter("evaluation")
        )

    async def _supervised(self, actor: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run an actor; note the first exception of all actors before it ends the others."""
        try:
            return await work()
        except Exception as error:
            self._note(actor, error)
            raise

    async def _obey(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._me.publish(StopRequested(reason="interrupted"))

    async def _audit(self) -> None:
        """Publish every breach of a law that the ledger finds."""
        told = [breach for breach in self.ledger.breaches if breach.law in self.ledger.published]
        while True:
            await self.bus.watch(lambda: len(self.ledger.breaches) > len(told))
            for breach in [breach for breach in self.ledger.breaches if breach not in told]:
                told.append(breach)
                broken = InvariantBroken(
                    law=breach.law, broken_by=breach.seq, expected=breach.expected, found=breach.found
                )
                self.bus.publish("auditor", broken, cause=breach.seq)

    async def _close_ports(self) -> None:
        limit_s = self.config.deadlines.close_s

        async def close(name: str, work: Coroutine[Any, Any, None]) -> None:
            try:
                await self._me.bounded("close", name, limit_s, work)
            except Expired:
                return  # the log says so; the process ends with ours
            except Exception as error:  # noqa: BLE001 - noted, and the run's failure; the others are closed all the same
                self._note(name, error)

        async with asyncio.TaskGroup() as closing:
            for engine in self.ports.engines:
                closing.create_task(close(engine.name, engine.close()))
            closing.create_task(close("learner", self.ports.learner.close()))
            for worker in self.ports.environment_workers:
                closing.create_task(close(worker.name, worker.close()))

    def _end(self, outcome: str, before_s: float, started_ns: int) -> RunOutcome:
        try:
            self.bus.fold()
        except Exception as broken:  # noqa: BLE001 - a projection's, and the run's failure
            self._note("bus", broken)
        trainer, seconds = self.view.trainer, before_s + self._me.elapsed_s(started_ns)
        if self._first is None:
            reason = end_of_data(self.view) if outcome == "data_exhausted" else ""
            self._me.publish(
                RunFinished.model_validate(
                    {
                        "outcome": outcome,
                        "steps": trainer.version,
                        "version": trainer.version,
                        "seconds": seconds,
                        "reason": reason,
                    }
                )
            )
            return RunOutcome(outcome, trainer.version, trainer.version, seconds, message=reason)
        actor, cause = self._first
        error = cause.error if isinstance(cause, RunFailure) else type(cause).__name__
        seq = cause.first_cause if isinstance(cause, RunFailure) else None
        message = one_line(cause)
        self._me.publish(
            RunFailed(failed_actor=actor, error=error, message=message, first_cause=seq), cause=seq
        )
        return RunOutcome("failed", trainer.version, trainer.version, seconds, error, message, cause)
