"""The collector: decides which groups to start, and what becomes of groups and failures.

`step` is pure: it reads the state and returns the events that are due, as decisions; the shell publishes them and
does what they say. It looks at the state, not at single events, so a decision cannot be missed: what is due stays
due until an event says that it was done.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from ..events.types import (
    DataExhausted,
    Event,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RetryScheduled,
    TrajectoryDropped,
)
from .advantage import deviation
from .config import RunConfig
from .failures import Drop, GiveUp, check_failure_share, check_filtered, respond
from .policies import Eviction, Policy
from .ports import PromptSource
from .projections import Group, Prompts, View, strike_of
from .rollout import Rollouts
from .waits import Edge, Waiter

ENDS = (GroupBuffered, GroupFiltered, GroupFailed, GroupEvicted, GroupDiscarded)
"""After these nothing of a group runs any more."""
STARTS_PER_TURN = 8
"""Trajectories after which everybody else gets a turn of the event loop, at the end of a group."""


def step(view: View, config: RunConfig, policy: Policy, source: PromptSource) -> list[Event]:
    """Return the decisions that are due in this state, in the order in which they are to be published.

    Raises `RunFailure` when too many attempts failed lately, or too many groups were filtered.
    """
    check_failure_share(view.attempts, config.failures, whole_window=True)
    check_filtered(view.groups, config.filtered_max)
    evictions = [event for eviction in policy.evict(view, config) for event in evicted(view, eviction)]
    if evictions:
        return evictions  # nothing else is to be decided about these groups
    decisions: list[Event] = [finish_group(view.groups.live[number], config) for number in view.groups.whole]
    decisions += answer_failures(view, config)
    if decisions:
        return decisions  # they change what is due; the next look plans on the state that they make
    return plan_dispatches(view, config, policy, source)


def evicted(view: View, eviction: Eviction) -> list[Event]:
    """Return the end of a group that the policy gives up, and its prompt's way back."""
    group = view.groups.live[eviction.group]
    if eviction.surplus:
        return [
            GroupDiscarded(group=group.group, reason="surplus"),
            PromptReturned(prompt=group.prompt, reason="surplus"),
        ]
    return [
        GroupEvicted(group=group.group, lag=eviction.lag),
        PromptReturned(prompt=group.prompt, reason="evicted"),
    ]


def finish_group(group: Group, config: RunConfig) -> GroupBuffered | GroupFiltered:
    """Decide on a group whose trajectories are all complete, but for those that were dropped."""
    rewards = [completed.reward for completed in group.completed.values()]
    mean = statistics.fmean(rewards)
    spread = deviation(rewards, mean)
    if config.algorithm.drop_zero_variance and spread == 0:
        return GroupFiltered(group=group.group, reason="zero_variance", reward_mean=mean)
    return GroupBuffered(
        group=group.group,
        target=group.target,
        trajectories=len(rewards),
        reward_mean=mean,
        reward_std=spread,
    )


def answer_failures(view: View, config: RunConfig) -> list[Event]:
    """Decide on every failed attempt: another attempt, none, or the end of its group and perhaps of its prompt."""
    decisions: list[Event] = []
    given_up: set[int] = set()
    dropped: Counter[int] = Counter()
    for trajectory, (_, failed) in view.groups.unanswered.items():
        assert failed.group is not None
        if failed.group in given_up:
            continue
        group = view.groups.live[failed.group]
        index = view.prompts.alive[group.prompt]
        strikes = view.prompts.strikes_before(group.group, strike_of(failed.failure, failed.blame))
        needed = len(group.dropped) + dropped[group.group] + config.rollout.floor_or_default
        answer = respond(failed, group, strikes, config.failures, group.size - needed)
        if isinstance(answer, Drop):
            dropped[group.group] += 1
            decisions.append(
                TrajectoryDropped(
                    trajectory=trajectory,
                    group=group.group,
                    failure=failed.failure,
                    blame=failed.blame,
                    message=failed.message,
                )
            )
        elif isinstance(answer, GiveUp):
            given_up.add(group.group)
            decisions += give_up(
                group, index, answer, failed.failure, failed.retryable, failed.blame, failed.message
            )
        else:
            decisions.append(
                RetryScheduled(
                    trajectory=trajectory,
                    group=group.group,
                    attempt=failed.attempt + 1,
                    delay_s=answer.delay_s,
                )
            )
    return decisions


def give_up(
    group: Group, index: int, answer: GiveUp, failure: str, retryable: bool, blame: str, message: str
) -> list[Event]:
    """Return the end of a failed group, and where its prompt goes."""
    ended = GroupFailed.model_validate(
        {
            "group": group.group,
            "failure": failure,
            "retryable": retryable,
            "blame": blame,
            "message": message,
        }
    )
    if answer.quarantine:
        return [
            ended,
            PromptQuarantined(prompt=group.prompt, index=index, failure=ended.failure, message=message),
        ]
    return [ended, PromptReturned(prompt=group.prompt, reason="failed")]


def plan_dispatches(view: View, config: RunConfig, policy: Policy, source: PromptSource) -> list[Event]:
    """Return a drawn prompt and a dispatched group for everything that the policy finds due."""
    if view.trainer.stop_reason or view.prompts.exhausted:
        return []
    decisions: list[Event] = []
    fresh = 0
    prompts = next_prompts(view.prompts, config.data.epochs, source)
    group = view.groups.next_group
    for dispatch in policy.plan(view, config):
        drawn = next(prompts, None)
        if drawn is None:
            decisions.append(
                DataExhausted(drawn=view.prompts.drawn + fresh, quarantined=len(view.prompts.quarantined))
            )
            break
        fresh += drawn.prompt not in view.prompts.index_of_returned
        decisions += [
            drawn,
            GroupDispatched(
                group=group,
                prompt=drawn.prompt,
                target=dispatch.target,
                version=dispatch.version,
                size=config.rollout.group_size,
            ),
        ]
        group += 1
    return decisions


def next_prompts(prompts: Prompts, epochs: int, source: PromptSource) -> Iterator[PromptDrawn]:
    """Yield the prompts to draw, in order: returned ones, fresh ones, then those that failed before."""
    per_epoch = len(source)
    for prompt in prompts.returned:
        yield PromptDrawn(prompt=prompt, epoch=prompt // per_epoch, index=prompts.index_of_returned[prompt])
    for prompt in range(prompts.next_prompt, per_epoch * epochs):
        index, _ = source.item(prompt // per_epoch, prompt % per_epoch)
        if index not in prompts.quarantined:
            yield PromptDrawn(prompt=prompt, epoch=prompt // per_epoch, index=index)
    for prompt in prompts.set_aside:
        if prompts.index_of_returned[prompt] not in prompts.quarantined:
            yield PromptDrawn(
                prompt=prompt, epoch=prompt // per_epoch, index=prompts.index_of_returned[prompt]
            )


def wait_edge(view: View, config: RunConfig, policy: Policy) -> Edge:
    """Return what the collector waits for, which has nothing to decide."""
    if view.trainer.stop_reason or view.prompts.exhausted:
        return Edge("drained", "the end of the run", f"{view.groups.in_flight} groups in flight")
    return policy.why_idle(view, config)


def discard_in_flight(view: View) -> list[Event]:
    """Return the end of every group that the end of the run finds in flight, and its prompt's way back."""
    reason: Literal["interrupted", "run_ended"]
    reason = "interrupted" if view.trainer.stop_reason == "interrupted" else "run_ended"
    flying = [group for group in view.groups.live.values() if group.state == "in_flight"]
    ends: list[Event] = []
    for group in flying:
        ends.append(GroupDiscarded(group=group.group, reason=reason))
        ends.append(PromptReturned(prompt=group.prompt, reason="discarded"))
    return ends


class Collector:
    """The shell: waits until `step` has decisions, publishes them, and runs the rollouts that they ask for."""

    def __init__(
        self,
        view: View,
        config: RunConfig,
        policy: Policy,
        source: PromptSource,
        rollouts: Rollouts,
        waiter: Waiter,
    ) -> None:
        self.view = view
        self.config = config
        self.policy = policy
        self.source = source
        self.rollouts = rollouts
        self.waiter = waiter

    async def run(self) -> None:
        """Collect until cancelled.

        Cancelling ends every rollout in flight as cancelled and publishes GroupDiscarded for their groups, so
        that the accounting closes.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    decisions = await self.waiter.until(
                        self._due, lambda: wait_edge(self.view, self.config, self.policy)
                    )
                    if self._log_is_behind() and any(isinstance(d, GroupDispatched) for d in decisions):
                        # Not asked again whether it is behind: the end of this wait is an event to be saved, too.
                        decisions = await self._saved() or []
                    await self._perform(decisions, tasks)
        finally:
            self._discard_in_flight()

    def _log_is_behind(self) -> bool:
        return self.waiter.bus.unsaved > self.config.log.unsaved_max

    async def _saved(self) -> list[Event] | None:
        """Start nothing new before the disk has caught up; return what is due then."""
        bus, limit = self.waiter.bus, self.config.log.unsaved_max
        await self.waiter.until(
            lambda: not self._log_is_behind(),
            lambda: Edge("durable", f"at most {limit} unsaved events", f"{bus.unsaved} unsaved"),
            deadline_s=self.config.deadlines.durable_s,
        )
        self.waiter.bus.fold()
        return self._due()

    def _due(self) -> list[Event] | None:
        return step(self.view, self.config, self.policy, self.source) or None

    async def _perform(self, decisions: Sequence[Event], tasks: asyncio.TaskGroup) -> None:
        """Publish all decisions, which are of one state, and then do what they say.

        Trajectories start few in each turn of the event loop: a whole window of them in one turn would hold up
        the trainer on its way to the next step, and everybody else.
        """
        cause = self.view.last_seq if self.view.last_seq >= 0 else None
        dispatched: list[tuple[GroupDispatched, int]] = []
        for decision in decisions:
            record = self.waiter.publish(decision, cause=cause)
            if type(decision) is GroupDispatched:
                dispatched.append((decision, record.seq))
            elif type(decision) is RetryScheduled:
                self.rollouts.retry(decision, record.seq, tasks)
            elif type(decision) in ENDS:
                self.rollouts.end_group(decision.group)  # type: ignore[attr-defined]
        per_epoch = len(self.source)
        started = 0
        for group, seq in dispatched:
            _, item = self.source.item(group.prompt // per_epoch, group.prompt % per_epoch)
            self.rollouts.start_group(group, item, seq, tasks)
            started += group.size
            if started >= STARTS_PER_TURN:
                started = 0
                await self.waiter.clock.sleep(0)

    def _discard_in_flight(self) -> None:
        self.waiter.bus.fold()
        for event in discard_in_flight(self.view):
            self.waiter.publish(event)
