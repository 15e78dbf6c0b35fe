"""A trial: the shipped run on simulated ports in virtual time, and what is asked of its log.

For planning rather than testing: nothing is drawn from a tape, and the schedule is asyncio's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...core.config import RunConfig
from ...core.policies import Policy
from ...core.ports import Engine, Environment, Learner, Ports
from ...core.run import Run, RunOutcome
from ...events.bus import Bus, Writer
from ...events.record import Record
from ...events.types import Event
from .virtual_time import VirtualClock, run_virtual
from .world import NumberedPrompts, SimulatedArtifacts, SimulatedPayloads, SimulatedRenderer


@dataclass
class Parts:
    """What a trial's run is given: engines, a learner, environments, and as many prompts as `items` says."""

    clock: VirtualClock
    engines: Sequence[Engine]
    learner: Learner
    environments: Callable[[], Environment]
    items: int
    eval_items: int = 0
    """0: the run has no evaluations."""
    disk: Writer | None = None
    """Without one every event is durable at once."""

    def ports(self) -> Ports:
        """Return the ports of a run."""
        return Ports(
            clock=self.clock,
            engines=self.engines,
            learner=self.learner,
            environments=self.environments,
            prompts=NumberedPrompts(self.items),
            renderer=SimulatedRenderer(),
            artifacts=SimulatedArtifacts(),
            eval_prompts=NumberedPrompts(self.eval_items) if self.eval_items else None,
        )


@dataclass
class Keep:
    """Keeps the records of some kinds of event. A projection, so it is asked in the order of the log."""

    kinds: tuple[type[Event], ...]
    records: list[Record] = field(default_factory=list)

    def apply(self, record: Record) -> None:
        """Keep the record if it is of those kinds."""
        if isinstance(record.event, self.kinds):
            self.records.append(record)


def without_workers(config: RunConfig) -> RunConfig:
    """Return `config` for a world whose environments need no process of their own."""
    environment = config.environment.model_copy(update={"workers": 0})
    return config.model_copy(update={"environment": environment})


def trial(
    config: RunConfig,
    parts: Parts,
    *,
    policy: Policy | None = None,
    watching: Callable[[Run, Bus], object] = lambda run, bus: None,
) -> tuple[Run, RunOutcome]:
    """Run `config` on `parts` to its end and return the run and how it ended.

    `watching` is called before it begins, and may register projections. Raises `Stalled` where it would wait for
    ever.
    """

    async def conducted() -> tuple[Run, RunOutcome]:
        bus = Bus(parts.clock, parts.disk) if parts.disk is not None else Bus(parts.clock)
        run = Run(without_workers(config), parts.ports(), bus, SimulatedPayloads(), policy=policy)
        watching(run, bus)
        try:
            return run, await run.conduct(asyncio.Event())
        finally:
            bus.close()

    return run_virtual(conducted())
