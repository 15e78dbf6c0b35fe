"""The capacity policy: a bound on the count of groups; what finishes first is trained first.

    accepted + running <= (max_staleness + version + 1) * groups_per_step

where accepted = buffered + training + trained and running = in flight (AReaL, arXiv 2505.24298, equation 3;
`version + 1` is the number of the step that this version trains, counted from 1). A group that was filtered, failed
or discarded is in neither sum: its capacity comes back by itself, and the next look refills it.

No slot idles behind a slow group and nothing is thrown away. What it gives up is the bound of the single group:
only the *mean* lag is bounded by `max_staleness`. A group that takes long is overtaken by any number of younger
ones, so its lag may be many times that. The ledger therefore checks the count here, and not the lag of each group.
With max_staleness 0 nobody can overtake, and training is synchronous.

`target` is the step that the count points at: the one that would train the group if groups finished in the order
of their dispatch and none was lost. It is a forecast, and the batch does not ask for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import RunConfig
from ..projections import View
from ..waits import Edge
from .dispatch import Dispatch, Eviction, data_ended, room, whole_buffer


class Capacity:
    """Groups are counted; see the module."""

    def capacity(self, view: View, config: RunConfig) -> int:
        """Return how many more groups the count allows; none while no engine is alive."""
        version, groups = view.engines.generation_version, view.groups
        if version is None:
            return 0
        steps = min(config.scheduler.max_staleness + version + 1, config.run.steps)
        accepted = groups.buffered + groups.training + groups.ended["trained"]
        return steps * config.scheduler.groups_per_step - accepted - groups.in_flight

    def plan(self, view: View, config: RunConfig) -> Sequence[Dispatch]:
        """Start as many groups as the count, the permits and the room of the buffer allow."""
        version, per_step = view.engines.generation_version, config.scheduler.groups_per_step
        if version is None:
            return []
        ahead = view.groups.buffered + view.groups.in_flight
        due = min(self.capacity(view, config), room(view, config))
        return [Dispatch(view.trainer.step + (ahead + n) // per_step, version) for n in range(due)]

    def evict(self, view: View, config: RunConfig) -> Sequence[Eviction]:
        """Give up nothing: whatever was generated is trained, however late."""
        return []

    def why_idle(self, view: View, config: RunConfig) -> Edge:
        """Name the permit that would use the capacity left, or the version that would give more."""
        version, step = view.engines.generation_version, view.trainer.step
        if version is None:
            return Edge("engine_available", "an engine", "none is up")
        if step >= config.run.steps:
            return Edge("drained", "the end of the run", f"step {step}/{config.run.steps}")
        if self.capacity(view, config) > 0:
            limit = config.scheduler.permits_or_default
            return Edge("permit", "a free permit", f"{view.groups.in_flight}/{limit} in flight")
        return Edge("version", f"version {version + 1}", f"version {version}")

    def batch(self, view: View, config: RunConfig) -> tuple[int, ...] | None:
        """Return the groups that were buffered first, once there are enough; at the end of the data, what there is."""
        waiting, per_step = view.groups.buffer, config.scheduler.groups_per_step
        if len(waiting) >= per_step or (waiting and data_ended(view)):
            return tuple(waiting[:per_step])
        return None

    def why_waiting(self, view: View, config: RunConfig) -> Edge:
        """Say how many groups the next step has, of those that it needs."""
        return whole_buffer(view, config)
