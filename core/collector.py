"""The collector: decides which groups to start, and what becomes of groups and failures.

`step` is pure: it reads the state and returns the events that are due, as decisions; the shell publishes them and
does what they say. It looks at the state, not at single events, so a decision cannot be missed: what is due stays
due until an event says that it was done.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Sequence

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
)
from .config import RunConfig
from .failures import GiveUp, check_failure_share, respond
from .policies import Eviction, Policy
from .ports import PromptSource
from .projections import Group, Prompts, View
from .rollout import Rollouts
from .waits import Edge, Waiter


def step(view: View, config: RunConfig, policy: Policy, source: PromptSource) -> list[Event]:
    """Return the decisions that are due in this state, in the order in which they are to be published.

    Raises `RunFailure` when too many attempts failed lately.
    """
    check_failure_share(view.attempts, config.failures, whole_window=True)
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
            PromptReturned(prompt=group.prompt, reason="discarded"),
        ]
    return [
        GroupEvicted(group=group.group, lag=eviction.lag),
        PromptReturned(prompt=group.prompt, reason="evicted"),
    ]


def finish_group(group: Group, config: RunConfig) -> GroupBuffered | GroupFiltered:
    """Decide on a group whose trajectories are all complete."""
    rewards = [completed.reward for completed in group.completed.values()]
    mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
    if config.algorithm.drop_zero_variance and deviation == 0:
        return GroupFiltered(group=group.group, reason="zero_variance", reward_mean=mean)
    return GroupBuffered(
        group=group.group,
        target=group.target,
        trajectories=len(rewards),
        reward_mean=mean,
        reward_std=deviation,
    )


def answer_failures(view: View, config: RunConfig) -> list[Event]:
    """Decide on every failed attempt: another attempt, or the end of its group and perhaps of its prompt."""
    decisions: list[Event] = []
    given_up: set[int] = set()
    for trajectory, (_, failed) in view.groups.unanswered.items():
        assert failed.group is not None
        if failed.group in given_up:
            continue
        group = view.groups.live[failed.group]
        index = view.prompts.alive[group.prompt]
        answer = respond(failed, group, view.prompts.strikes[index], config.failures)
        if isinstance(answer, GiveUp):
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
                    decisions = await self.waiter.until(self._due, self._edge)
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

    def _edge(self) -> Edge:
        if self.view.trainer.stop_reason or self.view.prompts.exhausted:
            return Edge("drained", "the end of the run", f"{self.view.groups.in_flight} groups in flight")
        return self.policy.why_idle(self.view, self.config)

    async def _perform(self, decisions: Sequence[Event], tasks: asyncio.TaskGroup) -> None:
        """Publish all decisions, which are of one state, and then do what they say.

        Groups start one in each turn of the event loop: a whole window of them in one turn would hold up the
        trainer on its way to the next step, and everybody else.
        """
        cause = self.view.last_seq if self.view.last_seq >= 0 else None
        dispatched: list[tuple[GroupDispatched, int]] = []
        for decision in decisions:
            record = self.waiter.publish(decision, cause=cause)
            if isinstance(decision, GroupDispatched):
                dispatched.append((decision, record.seq))
            elif isinstance(decision, RetryScheduled):
                self.rollouts.retry(decision, record.seq, tasks)
            elif isinstance(
                decision, GroupFailed | GroupBuffered | GroupFiltered | GroupEvicted | GroupDiscarded
            ):
                self.rollouts.end_group(decision.group)
        per_epoch = len(self.source)
        for group, seq in dispatched:
            _, item = self.source.item(group.prompt // per_epoch, group.prompt % per_epoch)
            self.rollouts.start_group(group, item, seq, tasks)
            await self.waiter.clock.sleep(0)

    def _discard_in_flight(self) -> None:
        reason = "interrupted" if self.view.trainer.stop_reason == "interrupted" else "run_ended"
        self.waiter.bus.fold()
        for group in [group for group in self.view.groups.live.values() if group.state == "in_flight"]:
            self.waiter.publish(GroupDiscarded(group=group.group, reason=reason))
            self.waiter.publish(PromptReturned(prompt=group.prompt, reason="discarded"))
