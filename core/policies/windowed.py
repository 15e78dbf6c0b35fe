"""The windowed policy: no group is ever trained beyond max_staleness, and no slow group holds up a step.

A group dispatched at version v may be trained in any step up to ``v + max_staleness``, its `target`. A step trains
the oldest groups first. When a step beyond its target is the next one, a group is evicted, in flight or buffered:
its rollouts end, its prompt goes back. So the lag of every single group is bounded, and no step waits for
a straggler; what is given up is the work on the groups that do not make it.

How much is given up depends on when groups start. The log tells how long groups take and how long steps take
(`Pace`), and so the chance of every group, in flight or still to start, to be whole before its target. Groups start
while those at hand are expected to fill fewer steps than there are up to the horizon: the first step by which most
groups of a version are whole, the target at the latest. (This is the base-stock rule of inventories: order up to
what the lead time needs.) And none starts late in a step with a chance that is poor beside the one that the next
version will give it; unless a step waits already and lacks groups, for then a start is what it waits for.

With max_staleness 0 a group's only step waits for it: nothing is evicted, and training is synchronous.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from ..config import RunConfig
from ..projections import Group, View
from ..waits import Edge
from .dispatch import Dispatch, Eviction, data_ended, room, whole_buffer, why_no_more

MOST = 0.7
"""Share of the groups that ever make it that must be whole by a step for groups to be started no further ahead."""
POOR = 0.7
"""Share of the chance at the start of a version below which a group waits for the next version."""
SHY = 1.0
"""Standard deviations of shortage that are left to luck at the end of the window, where a surplus is thrown away."""


class Windowed:
    """Groups have until their target to be trained; see the module."""

    def target(self, view: View, config: RunConfig) -> int | None:
        """Return the last step that may train a group dispatched now; None when there is none."""
        version = view.engines.generation_version
        if version is None:
            return None
        last = min(version + config.scheduler.max_staleness, config.run.steps - 1)
        return last if last >= view.trainer.step else None

    def chance(self, view: View, group: Group) -> float:
        """Return the chance that `group`, in flight, is whole before its target is taken."""
        steps = group.target - view.trainer.step
        if view.pace.waiting and steps == 0:
            return 1.0  # the step waits for such groups
        age_s = (view.last_mono - group.since_ns) / 1e9
        return view.pace.curve.chance(age_s, view.pace.until_s(view.last_mono, steps))

    def horizon(self, view: View, config: RunConfig, target: int) -> int:
        """Return the step up to which groups are started: one that gets most groups of this version, if it waits."""
        version, staleness, pace = view.engines.generation_version, config.scheduler.max_staleness, view.pace
        assert version is not None
        if math.isinf(pace.step_s):
            return target
        most = MOST * pace.curve.chance(0.0, staleness * pace.step_s)
        ahead = [n for n in range(staleness) if pace.curve.chance(0.0, n * pace.step_s) >= most]
        return min(target, max(view.trainer.step, version + min(ahead, default=staleness)))

    def shortage(self, view: View, config: RunConfig, horizon: int) -> tuple[float, float]:
        """Return by how many groups the steps up to `horizon` are expected to be short, and the variance of that."""
        expected: defaultdict[int, float] = defaultdict(float)
        for by, numbers in view.groups.buffered_by_target.items():
            expected[min(by, horizon)] += len(numbers)
        variance = 0.0
        for group in view.groups.live.values():
            if group.state == "in_flight":
                chance = self.chance(view, group)
                expected[min(group.target, horizon)] += chance
                variance += chance * (1 - chance)
        filled, need = 0.0, 0
        for step in range(view.trainer.step, horizon + 1):
            filled = min(filled, need) + expected[step]  # what is left over of a target serves no later step
            need += config.scheduler.groups_per_step
        return need - filled, variance

    def plan(self, view: View, config: RunConfig) -> Sequence[Dispatch]:
        """Start groups until enough are expected to make it, within the permits and the room of the buffer."""
        target, free = self.target(view, config), room(view, config)
        if target is None or free <= 0:
            return []
        version = view.engines.generation_version
        assert version is not None
        staleness, steps = config.scheduler.max_staleness, target - view.trainer.step
        pace = view.pace
        fresh = pace.curve.chance(0.0, staleness * pace.step_s if staleness else math.inf)
        now = pace.curve.chance(0.0, pace.until_s(view.last_mono, steps)) if staleness else 1.0
        due = 0
        if now > 0 and now >= POOR * fresh:
            horizon = self.horizon(view, config, target)
            short, variance = self.shortage(view, config, horizon)
            shy = SHY if horizon == target else 0.0
            while due < free and short - shy * math.sqrt(variance) > 0:
                due += 1
                short -= now
                variance += now * (1 - now)
        return [Dispatch(target, version)] * min(free, max(due, self.lacking(view, config)))

    def lacking(self, view: View, config: RunConfig) -> int:
        """Return how many groups a step that waits already lacks, even if all in flight make it."""
        if view.engines.generation_version != view.trainer.step:
            return 0
        at_hand = view.groups.in_flight + view.groups.buffered
        return max(0, config.scheduler.groups_per_step - at_hand)

    def evict(self, view: View, config: RunConfig) -> Sequence[Eviction]:
        """Give up every group whose target has been taken without it, oldest first."""
        step, groups = view.trainer.step, view.groups
        targets = [*groups.in_flight_by_target, *groups.buffered_by_target]
        if min(targets, default=step) >= step:
            return []
        return [
            Eviction(group.group, step - group.version, surplus=step >= config.run.steps)
            for group in groups.live.values()
            if group.target < step and group.state != "training"
        ]

    def why_idle(self, view: View, config: RunConfig) -> Edge:
        """Name the permit that is lacking, or the version that starts the next window."""
        return why_no_more(view, config)

    def batch(self, view: View, config: RunConfig) -> tuple[int, ...] | None:
        """Return the oldest groups, once there are enough; at the end of the data, what there is."""
        groups, per_step = view.groups, config.scheduler.groups_per_step
        if groups.buffered < per_step and not data_ended(view):
            return None
        usable = [number for number in groups.buffer if groups.live[number].target >= view.trainer.step]
        usable.sort(key=lambda number: groups.live[number].version)
        if len(usable) >= per_step or (usable and data_ended(view)):
            return tuple(usable[:per_step])
        return None

    def why_waiting(self, view: View, config: RunConfig) -> Edge:
        """Say how many groups the next step has, of those that it needs."""
        return whole_buffer(view, config)
