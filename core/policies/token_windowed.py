"""The token-windowed policy: max_staleness bounds the age of every token that is trained, not that of its group.

A group goes on through weight updates, and its later tokens carry newer versions. When step k trains it, tokens
older than ``k - max_staleness`` are left out of the loss (xtuner calls this `max_token_staleness`). So no step waits
for a straggler, and a straggler still teaches what it sampled last. A group is evicted only when no token is left to
train, which can happen in the buffer alone: what is in flight has its newest tokens still to come.

What is given up are tokens, and every second in the buffer makes it more of them. So there is a level of groups at
hand, in flight and buffered, up to which groups are started, and no further. In a steady run of T seconds a step, 16
groups a step and P(t) the share of groups that takes longer than t (`Pace` has both from the log), the groups of the
step before last are still in flight with chance P(2T), and so on: right after a batch was taken ``16 sum_n P(nT)``
are in flight if the next batch is to be whole in the mean. Their number that is not whole in time varies; one
standard deviation is the reserve, so that a step rarely waits. A level cannot drift: a group that is late counts until
it comes (the slowest 2 % excepted), where orders by the chance to be whole in time would start another one for every
doubt, and never take one back.

A step trains first what would be lost by waiting: a group in its last step, then the one with most tokens in theirs,
then the one that was buffered first. So the reserve waits at no cost, as long as there are groups that are young.
With max_staleness 1 there are none: what is whole before its step is too old for the next one, so nothing is held in
reserve.

With max_staleness 0 nothing is started before its step, nothing is masked, and training is synchronous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..config import RunConfig
from ..projections import Group, View
from ..waits import Edge
from .dispatch import Dispatch, Eviction, data_ended, room, whole_buffer, why_no_more

RESERVE = 1.0
"""Standard deviations of the groups that are whole in time, at hand beyond the mean."""
RARE = 0.02
"""Share of the groups, the slowest ones, that are not planned with: such a group may hang, and is replaced."""


class TokenWindowed:
    """Tokens are bounded, groups are not; see the module."""

    def level(self, view: View, config: RunConfig) -> int:
        """Return how many groups are to be at hand: for the next step, on their way to later ones, and in reserve."""
        per_step, curve, step_s = config.scheduler.groups_per_step, view.pace.curve, view.pace.step_s
        left = (config.run.steps - view.trainer.step) * per_step
        longest_s = curve.seconds_until(RARE)
        mean, variance, flight_s = float(per_step), 0.0, step_s
        while flight_s < longest_s and mean < left:
            share = curve.beyond(flight_s)
            mean += per_step * share
            variance += per_step * share * (1 - share)
            flight_s += step_s
        reserve = RESERVE if config.scheduler.max_staleness > 1 else 0.0
        return min(left, math.ceil(mean + reserve * math.sqrt(variance)))

    def at_hand(self, view: View) -> int:
        """Return the groups that are buffered or in flight, without those that take longer than is planned with."""
        groups, curve = view.groups, view.pace.curve
        if not curve.times_s:
            return groups.buffered + groups.in_flight
        since_ns = view.last_mono - 1e9 * curve.seconds_until(RARE)
        timely = sum(g.state == "in_flight" and g.since_ns >= since_ns for g in groups.live.values())
        return groups.buffered + timely

    def plan(self, view: View, config: RunConfig) -> Sequence[Dispatch]:
        """Start groups up to the level, within the permits and the room of the buffer."""
        version, step = view.engines.generation_version, view.trainer.step
        staleness = config.scheduler.max_staleness
        if version is None or step >= config.run.steps or version + staleness < step:
            return []
        if staleness == 0:
            short = config.scheduler.groups_per_step - view.groups.in_flight - view.groups.buffered
        else:
            short = self.level(view, config) - self.at_hand(view)
        target = min(version + staleness, config.run.steps - 1)
        return [Dispatch(target, version)] * min(short, room(view, config))

    def evict(self, view: View, config: RunConfig) -> Sequence[Eviction]:
        """Give up buffered groups without a token left to train; after the last batch, all that are left."""
        step, groups = view.trainer.step, view.groups
        if step >= config.run.steps:
            rest = [group for group in groups.live.values() if group.state != "training"]
            return [Eviction(group.group, step - group.version, surplus=True) for group in rest]
        if min(groups.buffered_by_target, default=step) >= step:
            return []
        stale = [groups.live[number] for number in groups.buffer if spent(groups.live[number], config, step)]
        return [Eviction(group.group, step - group.version) for group in stale]

    def why_idle(self, view: View, config: RunConfig) -> Edge:
        """Name the permit that is lacking, or the version after which a batch is taken and makes room."""
        return why_no_more(view, config)

    def batch(self, view: View, config: RunConfig) -> tuple[int, ...] | None:
        """Return the groups that lose most by waiting, once there are enough; at the end of the data, what there is."""
        groups, per_step, step = view.groups, config.scheduler.groups_per_step, view.trainer.step
        ended = data_ended(view)
        if groups.buffered < per_step and not ended:
            return None
        usable = [number for number in groups.buffer if not spent(groups.live[number], config, step)]
        if len(usable) >= per_step or (usable and ended):
            usable.sort(key=lambda number: urgency(groups.live[number], config, step))
            return tuple(usable[:per_step])
        return None

    def why_waiting(self, view: View, config: RunConfig) -> Edge:
        """Say how many groups the next step has, of those that it needs."""
        return whole_buffer(view, config)


def spent(group: Group, config: RunConfig, step: int) -> bool:
    """Return whether a whole group has no token that `step` or a later one may train."""
    return group.target < step and group.tokens_before(config.scheduler.oldest_trained(step)) == group.sampled


def urgency(group: Group, config: RunConfig, step: int) -> tuple[bool, int]:
    """Return a key that puts first what `step` may train and the next step may not: whole groups, then most tokens."""
    now = group.tokens_before(config.scheduler.oldest_trained(step))
    later = group.tokens_before(config.scheduler.oldest_trained(step + 1))
    return later < group.sampled, now - later
