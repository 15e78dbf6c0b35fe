"""The targeted policy: every group is meant for one step, and no hole can hide.

The window of targets starts at the first step that training has not consumed and ends at the last step that a
group dispatched now may still serve, ``version + max_staleness``. A target that is short, counting what is in
flight, is filled first, whatever its number. So a failed group is replaced: its target is short again and still
inside the window, because a step that lacks a group has not been consumed.

With `oversample_groups` more groups are started for a step than it trains: the first ones to be buffered are trained,
and as soon as there are enough, the rest is given up as surplus, in flight or buffered. It is not kept for the next
step: in the steady state a group is meant for the last step that its lag allows.

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
        """Return how many groups `target` lacks, counting what is buffered and what is in flight.

        One that has enough buffered lacks none, whatever else was meant to be started for it.
        """
        buffered = len(view.groups.buffered_by_target.get(target, ()))
        if buffered >= config.scheduler.groups_per_step:
            return 0
        return config.scheduler.groups_started_per_step - buffered - view.groups.in_flight_by_target[target]

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
        """Give up the groups of steps that have enough without them; none where no groups are oversampled.

        At the end of the data a step takes what there is, and then only what is too old for any is given up.
        """
        if not config.scheduler.oversample_groups:
            return []
        step, per_step, groups = view.trainer.step, config.scheduler.groups_per_step, view.groups
        if data_ended(view):
            late = [number for number in groups.buffer if not self.young(view, config, number)]
        else:
            full = [target for target, waiting in groups.buffered_by_target.items() if len(waiting) >= per_step]
            needed = {number for target in full for number in groups.buffered_by_target[target][:per_step]}
            late = [
                group.group
                for group in groups.live.values()
                if group.state != "training"
                and (group.target < step or (group.target in full and group.group not in needed))
            ]
        return [Eviction(number, step - groups.live[number].version, surplus=True) for number in late]

    def young(self, view: View, config: RunConfig, number: int) -> bool:
        """Return whether the next step may still train group `number`."""
        return view.trainer.step - view.groups.live[number].version <= config.scheduler.max_staleness

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
            left = [group for group in left if self.young(view, config, group)]
            return tuple(left[:per_step]) or None
        return None

    def why_waiting(self, view: View, config: RunConfig) -> Edge:
        """Say how many groups of its own the next step has."""
        step, need = view.trainer.step, config.scheduler.groups_per_step
        have = len(view.groups.buffered_by_target.get(step, ()))
        flying = view.groups.in_flight_by_target[step]
        return Edge("buffer_ready", f"step {step}: {need} groups", f"{have} buffered, {flying} in flight")
