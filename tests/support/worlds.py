"""Whole runs in virtual time: the shipped core on simulated ports, and the log that comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eventrain.adapters.simulated.engine import SimulatedEngine
from eventrain.adapters.simulated.environment_worker import SimulatedEnvironmentWorker
from eventrain.adapters.simulated.virtual_time import VirtualClock, run_virtual
from eventrain.adapters.simulated.world import (
    NumberedPrompts,
    SimulatedArtifacts,
    SimulatedEnvironment,
    SimulatedLearner,
    SimulatedPayloads,
    SimulatedRenderer,
)
from eventrain.core.config import RunConfig
from eventrain.core.policies import Policy
from eventrain.core.ports import Ports
from eventrain.core.projections.environment_workers import worker_name
from eventrain.core.run import Run, RunOutcome
from eventrain.events.bus import Bus
from eventrain.events.record import Record
from eventrain.events.types import Event

E = TypeVar("E", bound=Event)


def config(**sections: dict[str, Any]) -> RunConfig:
    """Return a small configuration, with `sections` laid over it."""
    settings: dict[str, dict[str, Any]] = {
        "run": {"steps": 6},
        "model": {"path": "model"},
        "data": {"kind": "generated", "size": 1000},
        "environment": {"kind": "number_hunt"},
        "scheduler": {"groups_per_step": 4, "max_staleness": 1},
        "rollout": {"group_size": 4, "max_turns": 2},
        "failures": {"backoff_s": 0.5},
    }
    for name, values in sections.items():
        settings[name] = {**settings.get(name, {}), **values}
    return RunConfig.model_validate(settings)


@dataclass
class World:
    """One run: change the ports before `go`, look at log, view and outcome after."""

    config: RunConfig = field(default_factory=config)
    engines: int = 1
    items: int | None = None
    turns: int = 1
    clock: VirtualClock = field(default_factory=VirtualClock)
    log: list[Record] = field(default_factory=list)
    on_bus: Callable[[Bus], None] = lambda bus: None
    stop_after: Callable[[Record], bool] = lambda record: False
    policy: Policy | None = None

    def __post_init__(self) -> None:
        self.pool = [SimulatedEngine(f"engine-{n}", self.clock) for n in range(self.engines)]
        self.learner = SimulatedLearner(self.clock)
        self.artifacts = SimulatedArtifacts()
        self.renderer = SimulatedRenderer()
        self.environment: Callable[[], Any] = lambda: SimulatedEnvironment(self.clock, turns=self.turns)
        self.workers = [
            SimulatedEnvironmentWorker(worker_name(n), lambda: self.environment())  # noqa: PLW0108 - it may be replaced
            for n in range(self.config.environment.workers)
        ]
        self.outcome: RunOutcome | None = None

    def go(self) -> World:
        """Run to the end in virtual time."""
        self.outcome = run_virtual(self._go())
        return self

    async def _go(self) -> RunOutcome:
        evaluating = self.config.eval.every_steps > 0
        items = self.items or self.config.data.size or 1
        ports = Ports(
            clock=self.clock,
            engines=self.pool,
            learner=self.learner,
            environments=self.environment,
            environment_workers=self.workers,
            prompts=NumberedPrompts(items),
            renderer=self.renderer,
            artifacts=self.artifacts,
            eval_prompts=NumberedPrompts(20) if evaluating else None,
        )
        self.bus = Bus(self.clock)
        self.on_bus(self.bus)
        self.run = Run(self.config, ports, self.bus, SimulatedPayloads(), policy=self.policy)
        self.view, self.ledger = self.run.view, self.run.ledger
        stop = asyncio.Event()
        log = self.bus.subscribe("log")

        async def keep() -> None:
            async for batch in log:
                for record in batch:
                    self.log.append(record)
                    if self.stop_after(record):
                        stop.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep())
            try:
                return await self.run.conduct(stop)
            finally:
                self.bus.close()

    def events(self, *kinds: type[E]) -> list[E]:
        """Return the logged events of `kinds`, in order."""
        return [record.event for record in self.log if isinstance(record.event, kinds)]

    def records(self, *kinds: type[Event]) -> list[Record]:
        """Return the records of events of `kinds`, in order."""
        return [record for record in self.log if isinstance(record.event, kinds)]


def kinds(records: Iterable[Record]) -> list[str]:
    """Return the kind of every record."""
    return [record.event.kind for record in records]  # type: ignore[attr-defined]
