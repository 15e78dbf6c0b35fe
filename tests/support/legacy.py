"""Doubles of behaviour from the field that stalls: small, and only for tests that show how it is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from worlds import World, config

from eventrain.adapters.simulated.message_attention import Attention
from eventrain.core.config import RunConfig
from eventrain.core.policies import Dispatch
from eventrain.core.policies.capacity import Capacity
from eventrain.core.policies.targeted import Targeted
from eventrain.core.ports import GenerateRequest, PromptTooLong
from eventrain.core.projections import View
from eventrain.events.types import Event


class WindowBehind(Targeted):
    """Targets begin at the version after the current one, so a hole in the step that training waits for is unseen."""

    def window(self, view: View, config: RunConfig) -> range:
        """Return the steps from ``version + 1`` on; at version 0 from the first step not trained."""
        version = view.engines.generation_version
        if version is None:
            return range(0)
        last = min(version + config.scheduler.max_staleness, config.run.steps - 1)
        return range(version + 1 if version else view.trainer.step, last + 1)


class ForgetfulPermits(Targeted):
    """Admits one group at a time, whatever the permits allow."""

    def plan(self, view: View, config: RunConfig) -> list[Dispatch]:
        """Return one dispatch once nothing is in flight."""
        return [] if view.groups.in_flight else list(super().plan(view, config))[:1]


class CountsTheFiltered(Capacity):
    """A group that was filtered stays accepted, so its capacity never comes back."""

    def capacity(self, view: View, config: RunConfig) -> int:
        """Return the capacity less what was filtered."""
        return super().capacity(view, config) - view.groups.ended["filtered"]


def watchdog_of_flights(view: View) -> bool:
    """Return whether a watchdog alarms that asks for "no progress while rollouts are in flight"."""
    return view.groups.in_flight > 0


class ClearsBeforeSleep(Attention):
    """Looks, finds nothing to do, clears the flag, sleeps until it is set: three moves, with gaps in between.

    Every event sets the flag; one that comes between the look and the clearing is forgotten.
    """

    def __init__(self, stage: str = "look", flag: bool = False) -> None:
        self.stage = stage
        self.flag = flag

    def awake(self) -> bool:
        """Return whether it does not sleep on a flag that is clear."""
        return self.stage != "asleep" or self.flag

    def hear(self, event: Event) -> None:
        """Set the flag."""
        self.flag = True

    def looks(self) -> bool:
        """Clear the flag if the last look found nothing; look otherwise."""
        if self.stage == "clear":
            self.stage, self.flag = "asleep", False
            return False
        return True

    def found(self, anything: bool) -> None:
        """Look again when there was something, clear the flag next when there was nothing."""
        self.stage = "look" if anything else "clear"

    def fork(self) -> ClearsBeforeSleep:
        """Return a copy."""
        return ClearsBeforeSleep(self.stage, self.flag)

    def key(self) -> Hashable:
        """Return both."""
        return (self.stage, self.flag)


class FlagWaiter:
    """The same on an event loop: whoever changes the state calls `notify`."""

    def __init__(self) -> None:
        self._flag = asyncio.Event()

    def notify(self) -> None:
        """Set the flag."""
        self._flag.set()

    async def until(self, ready: Callable[[], bool]) -> None:
        """Return once `ready` was found true; may sleep through it."""
        while not ready():
            await asyncio.sleep(0)  # says in the log that it must pause
            self._flag.clear()
            await self._flag.wait()


def hole_behind_the_window(
    *, legacy: bool, staleness: int = 1, fails_after_s: float = 10.0, on_stall: str = "warn"
) -> World:
    """Return the world of the over-long prompt: steps of 3 s, rollouts of about 1 s, prompt 13 refused late."""
    world = World(
        config(
            run={"steps": 8},
            scheduler={"groups_per_step": 4, "max_staleness": staleness},
            watchdog={"on_stall": on_stall},
        ),
        policy=WindowBehind() if legacy else None,
    )
    world.learner.seconds = 3.0

    async def refuse_13(request: GenerateRequest) -> None:
        if request.request.split("/")[0] == "13":
            await world.clock.sleep(fails_after_s)
            raise PromptTooLong("the prompt has 4,000 tokens and the context 1,000")

    world.pool[0].on_generate = refuse_13
    return world
