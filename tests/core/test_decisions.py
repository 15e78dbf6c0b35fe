"""The pure decisions, without a loop: policy, collector, trainer, failure response, routing, advantages."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import config

from eventrain.adapters.simulated.world import NumberedPrompts
from eventrain.core.advantage import advantages, deviation
from eventrain.core.collector import step as collect
from eventrain.core.engine_pool import route
from eventrain.core.failures import GiveUp, Retry, RunFailure, respond
from eventrain.core.policies import policy_for
from eventrain.core.policies.targeted import Targeted
from eventrain.core.projections import Group, View
from eventrain.core.trainer import Checkpoint, Finish, Publish, StartLearner, Sync, Take, decide
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    CheckpointCommitted,
    DataExhausted,
    EngineUp,
    Event,
    GroupBuffered,
    GroupDispatched,
    GroupFailed,
    LearnerUp,
    LlmCallStarted,
    PromptDrawn,
    PromptReturned,
    RunStarted,
    StepCompleted,
    StopRequested,
    TrajectoryFailed,
    WeightsPublished,
)

CONFIG = config(run={"steps": 10}, scheduler={"groups_per_step": 2, "max_staleness": 1})
POLICY = policy_for(CONFIG)


def view_of(*events: Event) -> View:
    """Return the state after `events`."""
    view = View()
    for seq, event in enumerate(events):
        view.apply(Record(seq, 0, 0, "test", None, "", event))
    return view


def begun(*events: Event, version: int = 0) -> View:
    """Return the state of a run that is up at `version`, after `events`."""
    return view_of(
        RunStarted(run="r", config=CONFIG.model_dump(), code_version="", seed=0, host="", pid=0, prompts=100),
        LearnerUp(version=version, parameters=1, device="cpu"),
        WeightsPublished(version=version, path="w", size_bytes=1, seconds=0),
        EngineUp(engine="engine-0", version=version, context_tokens=100, slots=4),
        *events,
    )


def drawn(group: int, target: int, version: int = 0) -> list[Event]:
    return [
        PromptDrawn(prompt=group, epoch=0, index=group),
        GroupDispatched(group=group, prompt=group, target=target, version=version, size=2),
    ]


def buffered(group: int, target: int) -> Event:
    return GroupBuffered(group=group, target=target, trajectories=2, reward_mean=0, reward_std=0)


def trained(step: int, *groups: int) -> list[Event]:
    done = StepCompleted(step=step, version=step + 1, loss=0, reward_mean=0, lag_mean=0, lag_max=0)
    return [BatchTaken(step=step, groups=groups), done]


# The targeted policy


def test_a_fresh_run_fills_the_window_lowest_step_first() -> None:
    """At version 0 with staleness 1 the groups of steps 0 and 1 are due, and no others."""
    assert [d.target for d in POLICY.plan(begun(), CONFIG)] == [0, 0, 1, 1]


def test_a_hole_behind_the_version_is_filled() -> None:
    """Step 0 short by one while later steps are full: the missing group is due, whatever the version is."""
    view = begun(
        *drawn(0, 0), *drawn(1, 0), *drawn(2, 1), *drawn(3, 1),
        buffered(0, 0), buffered(2, 1), buffered(3, 1),
        GroupFailed(group=1, failure="refused", retryable=False, blame="prompt", message=""),
    )  # fmt: skip
    assert [d.target for d in POLICY.plan(view, CONFIG)] == [0]


def test_the_window_never_passes_the_last_step() -> None:
    """Nothing is generated for steps that the run will not make."""
    view = begun(version=9)
    view.trainer.step = 9
    assert [d.target for d in POLICY.plan(view, CONFIG)] == [9, 9]


def test_permits_bound_what_is_in_flight() -> None:
    """With three permits only three of four due groups start."""
    tight = config(run={"steps": 10}, scheduler={"groups_per_step": 2, "max_staleness": 1, "permits": 3})
    assert len(POLICY.plan(begun(), tight)) == 3


def test_nothing_is_planned_without_an_engine() -> None:
    """The version that would answer is unknown, so the lag could not be bounded."""
    assert POLICY.plan(view_of(LearnerUp(version=0, parameters=1, device="cpu")), CONFIG) == []


@given(
    staleness=st.integers(0, 5),
    per_step=st.integers(1, 5),
    permits=st.integers(1, 40),
    version=st.integers(0, 12),
    consumed=st.integers(0, 2),
)
def test_a_plan_keeps_every_bound(
    staleness: int, per_step: int, permits: int, version: int, consumed: int
) -> None:
    """Whatever the numbers: no target beyond version + staleness, none consumed, none overfull, permits kept."""
    settings = config(
        run={"steps": 12},
        scheduler={"groups_per_step": per_step, "max_staleness": staleness, "permits": permits},
    )
    view = begun(version=version)
    view.trainer.step = version + consumed
    plan = POLICY.plan(view, settings)
    targets = [dispatch.target for dispatch in plan]
    assert len(plan) <= permits
    assert targets == sorted(targets)
    for target in targets:
        assert view.trainer.step <= target <= min(version + staleness, 11)
        assert targets.count(target) <= per_step


def test_a_batch_is_the_oldest_groups_of_its_step() -> None:
    """A step takes exactly groups_per_step groups, those that were buffered first."""
    view = begun(*drawn(0, 0), *drawn(1, 0), *drawn(2, 1), buffered(1, 0), buffered(2, 1))
    assert POLICY.batch(view, CONFIG) is None
    view = begun(*drawn(0, 0), *drawn(1, 0), *drawn(2, 1), buffered(1, 0), buffered(2, 1), buffered(0, 0))
    assert POLICY.batch(view, CONFIG) == (1, 0)


def test_at_the_end_of_the_data_a_batch_is_what_there_is() -> None:
    """When nothing more can come, later steps' groups are not left behind."""
    ended = [
        *drawn(0, 0),
        *drawn(1, 1),
        buffered(0, 0),
        buffered(1, 1),
        DataExhausted(drawn=2, quarantined=0),
    ]
    assert POLICY.batch(begun(*ended), CONFIG) == (0, 1)


def test_the_collector_says_what_it_waits_for() -> None:
    """A full window waits for a version, a spent permit for a permit."""
    full = begun(*drawn(0, 0), *drawn(1, 0), *drawn(2, 1), *drawn(3, 1))
    assert (Targeted().why_idle(full, CONFIG).name, Targeted().why_idle(full, CONFIG).awaited) == (
        "version",
        "version 1",
    )
    tight = config(run={"steps": 10}, scheduler={"groups_per_step": 2, "permits": 1})
    assert Targeted().why_idle(begun(*drawn(0, 0)), tight).name == "permit"


# The collector


def test_prompts_that_were_given_back_come_before_fresh_ones_and_failed_ones_after() -> None:
    """Discarded prompts are drawn first; failed ones once no fresh prompt is left."""
    view = begun(
        *drawn(0, 0), *drawn(1, 0), *drawn(2, 1),
        PromptReturned(prompt=1, reason="discarded"), PromptReturned(prompt=0, reason="failed"),
    )  # fmt: skip
    view.groups.live.clear()
    view.groups.in_flight, view.groups.in_flight_by_target = 0, type(view.groups.in_flight_by_target)()
    few = config(run={"steps": 2}, scheduler={"groups_per_step": 2, "max_staleness": 1}, data={"size": 4})
    decisions = collect(view, few, POLICY, NumberedPrompts(4))
    assert [d.prompt for d in decisions if isinstance(d, PromptDrawn)] == [1, 3, 0]
    assert isinstance(decisions[-1], DataExhausted)


def test_nothing_is_dispatched_once_a_stop_was_requested() -> None:
    """A run that is to stop starts nothing new."""
    assert collect(begun(StopRequested(reason="interrupted")), CONFIG, POLICY, NumberedPrompts(100)) == []


def failed_event(**fields: Any) -> TrajectoryFailed:
    base: dict[str, Any] = {
        "trajectory": "0/0", "group": 0, "attempt": 0, "failure": "engine_error", "retryable": True,
        "blame": "engine", "message": "x",
    }  # fmt: skip
    return TrajectoryFailed(**{**base, **fields})


def test_the_share_of_failures_is_judged_on_a_full_window_only() -> None:
    """Three failures of three say nothing yet; a full window of them ends the run."""
    limits = config(failures={"window": 4, "share_max": 0.5})
    few = begun(*drawn(0, 0), *[failed_event(attempt=n) for n in range(3)])
    collect(few, limits, POLICY, NumberedPrompts(100))
    many = begun(*drawn(0, 0), *[failed_event(attempt=n) for n in range(4)])
    with pytest.raises(RunFailure, match=r"100% of the last 4 trajectories failed .* engine_error: x"):
        collect(many, limits, POLICY, NumberedPrompts(100))


# The response to a failure


@pytest.mark.parametrize(
    ("event", "attempts", "strikes", "answer"),
    [
        (failed_event(), 1, 0, Retry(0.5)),
        (failed_event(), 4, 0, Retry(4.0)),
        (failed_event(), 7, 0, Retry(30)),
        (failed_event(), 8, 0, GiveUp(quarantine=False)),
        (
            failed_event(failure="prompt_too_long", retryable=False, blame="prompt"),
            1,
            0,
            GiveUp(quarantine=True),
        ),
        (failed_event(failure="env_error", blame="environment"), 2, 0, Retry(1.0)),
        (failed_event(failure="env_error", blame="environment"), 3, 0, GiveUp(quarantine=False)),
        (failed_event(failure="env_error", blame="environment"), 3, 1, GiveUp(quarantine=True)),
        (failed_event(failure="engine_lost"), 8, 5, GiveUp(quarantine=False)),
    ],
)
def test_every_failure_has_one_answer(
    event: TrajectoryFailed, attempts: int, strikes: int, answer: Retry | GiveUp
) -> None:
    """Retries double their delay within a budget; only the prompt's own failures are held against it."""
    group = Group(0, 0, 0, 0, 2, 0)
    mine = group.prompt_failures if event.blame in ("prompt", "environment") else group.engine_failures
    mine[event.trajectory] = attempts
    assert respond(event, group, strikes, CONFIG.failures) == answer


# The trainer


def test_the_trainer_publishes_syncs_saves_and_takes_in_that_order() -> None:
    """After each event of a step the state alone says what comes next."""
    settings = config(
        run={"steps": 1}, scheduler={"groups_per_step": 1, "max_staleness": 0}, checkpoint={"every_steps": 1}
    )
    events: list[Event] = []

    def next_action() -> object:
        return decide(view_of(*events), settings, POLICY)

    assert next_action() == StartLearner()
    events.append(LearnerUp(version=0, parameters=1, device="cpu"))
    assert next_action() == Publish()
    events.append(WeightsPublished(version=0, path="w0", size_bytes=1, seconds=0))
    assert next_action() is None
    events += [
        EngineUp(engine="engine-0", version=0, context_tokens=9, slots=1),
        *drawn(0, 0),
        buffered(0, 0),
    ]
    assert next_action() == Take(0, (0,))
    events += trained(0, 0)
    assert next_action() == Publish()
    events.append(WeightsPublished(version=1, path="w1", size_bytes=1, seconds=0))
    assert next_action() == Sync()
    events.append(EngineUp(engine="engine-0", version=1, context_tokens=9, slots=1))
    assert next_action() == Checkpoint()
    events.append(CheckpointCommitted(step=1, version=1, path="c", size_bytes=1, seconds=0))
    assert next_action() == Finish("completed")


def test_a_stop_saves_what_was_trained_and_nothing_else() -> None:
    """With nothing trained there is nothing to save; with a step trained since the last checkpoint there is."""
    stop = StopRequested(reason="interrupted")
    assert decide(begun(stop), CONFIG, POLICY) == Finish("interrupted")
    after_a_step = begun(*drawn(0, 0), *drawn(1, 0), buffered(0, 0), buffered(1, 0), *trained(0, 0, 1), stop)
    assert decide(after_a_step, CONFIG, POLICY) == Checkpoint()


# Routing


def test_requests_go_to_the_engine_with_the_lowest_load() -> None:
    """Load is calls per slot: an engine with twice the slots gets twice the calls."""
    view = begun(EngineUp(engine="engine-1", version=0, context_tokens=100, slots=8))
    for turn in range(12):
        chosen = route(view.engines)
        assert chosen is not None
        view.apply(
            Record(
                100 + turn, 0, 0, "test", None, "",
                LlmCallStarted(trajectory="0/0", turn=turn, engine=chosen.name, prompt_tokens=1, max_tokens=1),
            )
        )  # fmt: skip
    assert {name: engine.in_flight for name, engine in view.engines.by_name.items()} == {
        "engine-0": 4,
        "engine-1": 8,
    }


def test_no_engine_no_route() -> None:
    """With none serving there is nobody to ask."""
    assert route(View().engines) is None


# Advantages


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_grpo_advantages_have_mean_zero_and_deviation_one(rewards: list[float]) -> None:
    """Unless all rewards are (nearly) equal, in which case nothing is learned from them."""
    values = advantages(rewards, "grpo")
    assert sum(values) == pytest.approx(0, abs=1e-6)
    deviation = statistics.pstdev(rewards)
    if deviation > 0.01:
        assert statistics.pstdev(values) == pytest.approx(1, rel=1e-3)
    assert all(math.isfinite(value) for value in values)


def test_dr_grpo_does_not_divide_by_the_deviation() -> None:
    """Its advantages are rewards less their mean."""
    assert advantages([0.0, 1.0, 2.0], "dr_grpo") == [-1.0, 0.0, 1.0]
    assert advantages([3.0, 3.0], "grpo") == [0.0, 0.0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=16))
def test_the_deviation_is_that_of_the_population(rewards: list[float]) -> None:
    """It is what the standard library computes exactly, in a hundredth of the time."""
    mean = statistics.fmean(rewards)
    assert deviation(rewards, mean) == pytest.approx(statistics.pstdev(rewards), rel=1e-6, abs=1e-9)


@given(st.floats(-1e300, 1e300), st.integers(1, 16))
def test_equal_rewards_have_no_deviation(reward: float, count: int) -> None:
    """Exactly none, whatever the rounding of their mean: it decides whether a group is filtered."""
    assert deviation([reward] * count, reward * (1 + 1e-15)) == 0.0


def test_huge_rewards_have_a_finite_deviation() -> None:
    """Squares beyond what a float can hold are no reason to fail."""
    assert deviation([1e200, -1e200], 0.0) == pytest.approx(1e200)
