"""The targeted policy: every group is meant for one step, and no hole can hide.

The window of targets starts at the first step that training has not consumed and ends at the last step that a
group dispatched now may still serve, ``version + max_staleness``. A target that is short, counting what is in
flight, is filled first, whatever its number. So a failed group is replaced: its target is short again and still
inside the window, because a step that lacks a group has not been consumed.

(A window that starts at ``version + 1`` instead cannot see a hole in a step that it has passed, and then every
actor waits for another; see NVIDIA-NeMo/RL pull request 3938.)
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import RunConfig
from ..projections import View
from ..waits import Edge
from .dispatch import Dispatch, Eviction, data_ended, room


class Targeted:
    """Groups are meant for steps; see the module."""

    def window(self, view: View, config: RunConfig) -> range:
        """Return the steps that a group dispatched now may be meant for."""
        version = view.engines.generation_version
        if version is None:
            return range(0)
        last = min(version + config.scheduler.max_staleness, config.run.steps - 1)
        return range(view.trainer.step, last + 1)

    def short(self, view: View, config: RunConfig, target: int) -> int:
        """Return how many groups `target` lacks, counting what is buffered and what is in flight."""
        have = view.groups.in_flight_by_target[target] + len(view.groups.buffered_by_target.get(target, ()))
        return config.scheduler.groups_per_step - have

    def plan(self, view: View, config: RunConfig) -> Sequence[Dispatch]:
        """Fill the window, lowest target first, within the permits and the room of the buffer."""
        free = room(view, config)
        due: list[Dispatch] = []
        for target in self.window(view, config):
            version = view.engines.generation_version
            assert version is not None
            due += [Dispatch(target, version)] * min(self.short(view, config, target), free - len(due))
        return due

    def evict(self, view: View, config: RunConfig) -> Sequence[Eviction]:
        """Give up nothing: every group's step waits for it."""
        return []

    def why_idle(self, view: View, config: RunConfig) -> Edge:
        """Name the version that would widen the window, or the permit that would let it be filled."""
        groups, scheduler = view.groups, config.scheduler
        if any(self.short(view, config, target) > 0 for target in self.window(view, config)):
            return Edge(
                "permit", "a free permit", f"{groups.in_flight}/{scheduler.permits_or_default} in flight"
            )
        last = view.trainer.step + scheduler.max_staleness
        if view.engines.generation_version is None:
            return Edge("engine_available", "an engine", "none is up")
        if last >= config.run.steps and view.trainer.step >= config.run.steps:
            return Edge("drained", "the end of the run", f"step {view.trainer.step}/{config.run.steps}")
        wanted = view.engines.generation_version + 1
        return Edge("version", f"version {wanted}", f"version {view.engines.generation_version}")

    def batch(self, view: View, config: RunConfig) -> tuple[int, ...] | None:
        """Return the groups of the next step once they are all there.

        When the data has ended and nothing is in flight, a step is made of what there is, oldest target first.
        """
        step, per_step = view.trainer.step, config.scheduler.groups_per_step
        waiting = view.groups.buffered_by_target.get(step, [])
        if len(waiting) >= per_step:
            return tuple(waiting[:per_step])
        if data_ended(view) and view.groups.buffered:
            oldest_first = sorted(view.groups.buffered_by_target)
            left = [group for target in oldest_first for group in view.groups.buffered_by_target[target]]
            return tuple(left[:per_step])
        return None

    def why_waiting(self, view: View, config: RunConfig) -> Edge:
        """Say how many groups of its own the next step has."""
        step, need = view.trainer.step, config.scheduler.groups_per_step
        have = len(view.groups.buffered_by_target.get(step, ()))
        flying = view.groups.in_flight_by_target[step]
        return Edge("buffer_ready", f"step {step}: {need} groups", f"{have} buffered, {flying} in flight")
