"""Doubles of behaviour from the field that stalls: small, and only for tests that show how it is reported."""

from __future__ import annotations

from worlds import World, config

from eventrain.core.config import RunConfig
from eventrain.core.policies import Dispatch
from eventrain.core.policies.targeted import Targeted
from eventrain.core.ports import GenerateRequest, PromptTooLong
from eventrain.core.projections import View


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
