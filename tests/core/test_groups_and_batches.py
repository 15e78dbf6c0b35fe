"""What a group may do without, what a step may do without, and how many groups may teach nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, config

from eventrain.adapters.simulated.world import NumberedPrompts, SimulatedEnvironment
from eventrain.core.collector import step as collect
from eventrain.core.config import RunConfig
from eventrain.core.ending import end_of_data
from eventrain.core.failures import Drop, GiveUp, RunFailure, respond
from eventrain.core.policies import Eviction
from eventrain.core.policies.targeted import Targeted
from eventrain.core.ports import EngineError, EngineGone, GenerateRequest
from eventrain.core.projections import Group, View
from eventrain.core.projections.accounting import Ledger
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    DataExhausted,
    EngineUp,
    Event,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    LearnerUp,
    PayloadRef,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RetryScheduled,
    RunFinished,
    RunStarted,
    StepCompleted,
    StepStarted,
    TrajectoryCompleted,
    TrajectoryDropped,
    TrajectoryFailed,
    TrajectoryStarted,
    WeightsPublished,
)

FLOOR = config(
    run={"steps": 10},
    scheduler={"groups_per_step": 2},
    rollout={"group_size": 4, "group_floor": 3},
    failures={"attempts_max": 1, "engine_attempts_max": 1},
)
MORE = config(run={"steps": 10}, scheduler={"groups_per_step": 2, "oversample_groups": 2})
POLICY = Targeted()
PROMPTS = NumberedPrompts(100)


def records(*events: Event) -> list[Record]:
    return [Record(seq, 0, 0, "test", None, "", event) for seq, event in enumerate(events)]


def up(settings: RunConfig, version: int = 0) -> list[Event]:
    return [
        RunStarted(
            run="r", config=settings.model_dump(), code_version="", seed=0, host="", pid=0, prompts=100
        ),
        LearnerUp(version=version, parameters=1, device="cpu"),
        WeightsPublished(version=version, path="w", size_bytes=1, seconds=0),
        EngineUp(engine="engine-0", version=version, context_tokens=100, slots=4),
    ]


def view_of(settings: RunConfig, *events: Event, version: int = 0) -> View:
    view = View()
    for record in records(*up(settings, version), *events):
        view.apply(record)
    return view


def breaches(settings: RunConfig, *events: Event) -> list[str]:
    """Return the laws that the ledger finds broken."""
    ledger = Ledger()
    for record in records(*up(settings), *events):
        ledger.apply(record)
    return [breach.law for breach in ledger.breaches]


def drawn(group: int, target: int, size: int = 4, version: int = 0) -> list[Event]:
    return [
        PromptDrawn(prompt=group, epoch=0, index=group),
        GroupDispatched(group=group, prompt=group, target=target, version=version, size=size),
    ]


def complete(group: int, index: int) -> list[Event]:
    name = f"{group}/{index}"
    return [
        TrajectoryStarted(trajectory=name, group=group),
        TrajectoryCompleted(
            trajectory=name, group=group, attempt=0, turns=1, prompt_tokens=1, completion_tokens=0,
            version_spans=(), reward=float(index), stop_reason="done", queue_s=0, llm_s=0, env_setup_s=0,
            env_s=0, reward_s=0, other_s=0, payload=PayloadRef(digest="", length=0, pack=1, offset=0),
        ),
    ]  # fmt: skip


def failed(group: int, index: int, failure: str = "env_expired", blame: str = "environment") -> list[Event]:
    name = f"{group}/{index}"
    ended = {"trajectory": name, "group": group, "attempt": 0, "failure": failure, "blame": blame}
    return [
        TrajectoryStarted(trajectory=name, group=group),
        TrajectoryFailed.model_validate({**ended, "retryable": True, "message": "late"}),
    ]


def dropped(group: int, index: int, failure: str = "env_expired", blame: str = "environment") -> Event:
    fields = {"trajectory": f"{group}/{index}", "group": group, "failure": failure, "blame": blame}
    return TrajectoryDropped.model_validate({**fields, "message": "late"})


def buffered(group: int, target: int, trajectories: int = 4) -> Event:
    return GroupBuffered(
        group=group, target=target, trajectories=trajectories, reward_mean=0, reward_std=1
    )


def whole(group: int, target: int, size: int = 4, version: int = 0) -> list[Event]:
    """Return the life of a group from its draw to the buffer."""
    members = [event for index in range(size) for event in complete(group, index)]
    return [*drawn(group, target, size, version), *members, buffered(group, target, size)]


# The floor: decisions


@pytest.mark.parametrize(
    ("blame", "failure", "strikes", "spare", "answer"),
    [
        ("environment", "env_expired", 0, 1, Drop()),
        ("environment", "env_expired", 0, 0, GiveUp(quarantine=False)),
        ("environment", "env_expired", 1, 1, GiveUp(quarantine=True)),
        ("engine", "llm_expired", 0, 1, Drop()),
        ("engine", "llm_expired", 2, 1, GiveUp(quarantine=True)),
        ("engine", "engine_error", 2, 0, GiveUp(quarantine=True)),
        ("engine", "engine_lost", 9, 1, Drop()),
        ("engine", "engine_lost", 9, 0, GiveUp(quarantine=False)),
    ],
)
def test_a_trajectory_is_given_up_alone_where_its_group_can_do_without_it(
    blame: str, failure: str, strikes: int, spare: int, answer: Drop | GiveUp
) -> None:
    """With the attempts used up: dropped above the floor, the group's end below it, the item's at its last strike."""
    group, (_, event) = Group(0, 0, 0, 0, 4, 0), failed(0, 1, failure, blame)
    assert isinstance(event, TrajectoryFailed)
    (group.prompt_failures if blame == "environment" else group.engine_failures)["0/1"] = 1
    assert respond(event, group, strikes, FLOOR.failures, spare) == answer


def test_a_permanent_failure_ends_its_group_whatever_the_floor_is() -> None:
    """A prompt that is too long is too long for all its trajectories."""
    fields = {"trajectory": "0/1", "group": 0, "attempt": 0, "failure": "prompt_too_long", "blame": "prompt"}
    event = TrajectoryFailed.model_validate({**fields, "retryable": False, "message": ""})
    assert respond(event, Group(0, 0, 0, 0, 4, 0), 0, FLOOR.failures, 3) == GiveUp(quarantine=True)


def test_of_two_that_fail_together_the_floor_lets_one_go_and_the_other_ends_the_group() -> None:
    """What was dropped in the same look counts, and both are one strike against the item."""
    view = view_of(FLOOR, *drawn(0, 0), *complete(0, 0), *failed(0, 1), *failed(0, 2))
    drop, end, back = collect(view, FLOOR, POLICY, PROMPTS)
    assert drop == dropped(0, 1)
    assert isinstance(end, GroupFailed)
    assert back == PromptReturned(prompt=0, reason="failed")
    after = view_of(FLOOR, *drawn(0, 0), *complete(0, 0), *failed(0, 1), *failed(0, 2), drop, end, back)
    assert after.prompts.strikes[0] == 1


def test_a_group_is_whole_when_all_that_were_not_dropped_are_complete() -> None:
    """Whether the dropped one or the last complete one comes last, the group is buffered with three rows."""
    three = [event for index in (0, 2, 3) for event in complete(0, index)]
    last_dropped = view_of(FLOOR, *drawn(0, 0), *three, *failed(0, 1), dropped(0, 1))
    last_complete = view_of(FLOOR, *drawn(0, 0), *failed(0, 1), dropped(0, 1), *three)
    for view in (last_dropped, last_complete):
        (ended,) = collect(view, FLOOR, POLICY, PROMPTS)
        assert isinstance(ended, GroupBuffered)
        assert ended.trajectories == 3
    assert not view_of(FLOOR, *drawn(0, 0), *three, *failed(0, 1)).groups.whole


def test_engine_strikes_are_counted_by_item_and_apart() -> None:
    """Used-up attempts at engines count for their item, once a group; the death of an engine does not."""
    view = view_of(
        FLOOR,
        *drawn(0, 0), dropped(0, 1, "llm_expired", "engine"), dropped(0, 2, "engine_error", "engine"),
        *drawn(1, 0), dropped(1, 1, "engine_lost", "engine"),
    )  # fmt: skip
    assert dict(view.prompts.engine_strikes) == {0: 1}
    assert not view.prompts.strikes
    assert view.prompts.strikes_before(0, "engine") == 0, "its own is not an earlier one"


# The floor: laws


def test_a_buffered_group_has_what_was_not_dropped() -> None:
    """The ledger counts by itself: too few, more than were said, and fewer than the floor each break a law."""
    three = [event for index in (0, 2, 3) for event in complete(0, index)]
    two = [event for index in (0, 3) for event in complete(0, index)]
    assert breaches(FLOOR, *drawn(0, 0), *three, *failed(0, 1), dropped(0, 1), buffered(0, 0, 3)) == []
    assert breaches(FLOOR, *drawn(0, 0), *three, *failed(0, 1), buffered(0, 0, 3)) == ["groups"]
    assert breaches(FLOOR, *drawn(0, 0), *three, dropped(0, 1), buffered(0, 0, 4)) == ["groups"]
    fell = [*drawn(0, 0), *two, dropped(0, 1), dropped(0, 2), buffered(0, 0, 2)]
    assert breaches(FLOOR, *fell) == ["floor"]
    whole_ones = config(scheduler={"groups_per_step": 2}, rollout={"group_size": 4})
    assert breaches(whole_ones, *drawn(0, 0), *three, dropped(0, 1), buffered(0, 0, 3)) == ["floor"]


@pytest.mark.parametrize(
    "events",
    [
        [*complete(0, 1), dropped(0, 1)],
        [TrajectoryStarted(trajectory="0/1", group=0), dropped(0, 1)],
        [dropped(0, 1), dropped(0, 1)],
        [dropped(0, 1), TrajectoryStarted(trajectory="0/1", group=0, attempt=1)],
        [dropped(7, 1)],
    ],
    ids=["complete", "running", "twice", "tried again", "of no group"],
)
def test_a_trajectory_is_dropped_once_and_after_its_last_attempt(events: list[Event]) -> None:
    """Anything else breaks the law of trajectories."""
    assert breaches(FLOOR, *drawn(0, 0), *events) == ["trajectory"]


# The floor: whole runs


def hanging(settings: RunConfig, *names: str) -> World:
    """Return a world in which the calls of these trajectories (``prompt/index``) never come back."""
    world = World(settings)

    async def hang(request: GenerateRequest) -> None:
        group, index, _ = request.request.split("+")[0].split("/")
        live = world.view.groups.live.get(int(group))
        if live is not None and f"{live.prompt}/{index}" in names:
            await asyncio.Event().wait()

    world.pool[0].on_generate = hang
    return world


def test_a_trajectory_that_always_hangs_costs_its_group_one_row() -> None:
    """It is tried again alone, its siblings once; then the group is trained with the other seven."""
    world = hanging(
        config(
            run={"steps": 3},
            rollout={"group_size": 8, "group_floor": 7},
            deadlines={"llm_call_s": 10},
            failures={"engine_attempts_max": 2},
        ),
        "2/5",
    ).go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    (gone,) = world.events(TrajectoryDropped)
    assert (gone.trajectory, gone.failure, gone.blame) == ("2/5", "llm_expired", "engine")
    assert [event.trajectory for event in world.events(RetryScheduled)] == ["2/5"]
    starts = Counter(event.trajectory for event in world.events(TrajectoryStarted) if event.group == 2)
    assert starts == {f"2/{index}": 2 if index == 5 else 1 for index in range(8)}
    assert [event.trajectories for event in world.events(StepStarted)] == [31, 32, 32]
    rows = [row for row in world.learner.batches[0].rows if row.trajectory.startswith("2/")]
    assert [row.trajectory for row in rows] == [f"2/{index}" for index in (0, 1, 2, 3, 4, 6, 7)]
    assert sum(row.advantage for row in rows) == pytest.approx(0, abs=1e-5), "over the seven alone"
    assert any(row.advantage for row in rows)
    assert not world.events(GroupFailed)
    assert world.ledger.breaches == []


def test_without_a_floor_the_group_fails() -> None:
    """The same world with the default: the group ends, and its prompt is set aside."""
    settings = config(
        run={"steps": 3},
        rollout={"group_size": 8},
        deadlines={"llm_call_s": 10},
        failures={"engine_attempts_max": 2},
    )
    world = hanging(settings, "2/5").go()
    assert [event.group for event in world.events(GroupFailed)] == [2]
    assert not world.events(TrajectoryDropped)
    assert PromptReturned(prompt=2, reason="failed") in world.events(PromptReturned)


def test_a_prompt_that_makes_every_engine_fail_is_quarantined_after_its_engine_strikes() -> None:
    """All others are trained first; then it is drawn until three of its groups have failed, and the data ends."""
    world = World(
        config(
            run={"steps": 3},
            data={"size": 12},
            failures={"engine_attempts_max": 2, "share_max": 1.0},
        )
    )

    async def poison(request: GenerateRequest) -> None:
        live = world.view.groups.live.get(int(request.request.split("/")[0]))
        if live is not None and live.prompt == 3:
            raise EngineError("illegal memory access")

    world.pool[0].on_generate = poison
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert [event.failure for event in world.events(GroupFailed)] == ["engine_error"] * 3
    (quarantined,) = world.events(PromptQuarantined)
    assert (quarantined.prompt, quarantined.message) == (3, "illegal memory access")
    assert [len(event.groups) for event in world.events(BatchTaken)] == [4, 4, 3]


def test_the_death_of_an_engine_is_nobodys_strike() -> None:
    """Prompts whose attempts ran out because engines were gone come back as often as need be."""
    world = World(
        config(
            run={"steps": 2},
            data={"size": 8},
            engine={"restarts_max": 50},
            failures={"engine_attempts_max": 1, "engine_strikes_max": 1},
        )
    )
    lives = iter(range(6))

    async def gone(request: GenerateRequest) -> None:
        if next(lives, None) is not None:
            raise EngineGone("killed")

    world.pool[0].on_generate = gone
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert world.events(GroupFailed)
    assert not world.events(PromptQuarantined)


# Oversampling: decisions


def test_a_step_gets_more_groups_than_it_trains() -> None:
    """Two a step and two more: four for each of the two steps of the window, lowest step first."""
    assert [d.target for d in POLICY.plan(view_of(MORE), MORE)] == [0, 0, 0, 0, 1, 1, 1, 1]
    tight = config(run={"steps": 10}, scheduler={**MORE.scheduler.model_dump(), "permits": 3})
    assert [d.target for d in POLICY.plan(view_of(tight), tight)] == [0, 0, 0]


def test_what_a_step_does_not_need_is_surplus_once_it_has_enough() -> None:
    """With two of step 0 buffered its third and fourth are given up, in flight or buffered; step 1's are not."""
    rest = [*drawn(2, 0), *drawn(3, 0), *drawn(4, 1)]
    two = view_of(MORE, *whole(0, 0), *whole(1, 0), *rest)
    assert POLICY.evict(two, MORE) == [Eviction(2, 0, surplus=True), Eviction(3, 0, surplus=True)]
    assert POLICY.batch(two, MORE) == (0, 1)
    assert collect(two, MORE, POLICY, PROMPTS) == [
        GroupDiscarded(group=2, reason="surplus"), PromptReturned(prompt=2, reason="surplus"),
        GroupDiscarded(group=3, reason="surplus"), PromptReturned(prompt=3, reason="surplus"),
    ]  # fmt: skip
    three = view_of(MORE, *whole(1, 0), *whole(0, 0), *whole(2, 0))
    assert POLICY.evict(three, MORE) == [Eviction(2, 0, surplus=True)]
    assert POLICY.evict(view_of(MORE, *whole(0, 0), *rest), MORE) == []


def test_a_step_that_has_enough_is_not_filled_again() -> None:
    """The two that were given up are not replaced: step 0 has its two, and step 1 its four."""
    view = view_of(MORE, *whole(0, 0), *whole(1, 0), *[e for group in (2, 3, 4, 5) for e in drawn(group, 1)])
    assert POLICY.plan(view, MORE) == []
    assert POLICY.why_idle(view, MORE).awaited == "version 1"


def test_what_its_step_left_is_given_up_when_the_step_was_taken_first() -> None:
    """The trainer may take the batch before the collector looks: groups of a step that is past are surplus."""
    view = view_of(MORE, *whole(0, 0), *whole(1, 0), *drawn(2, 0), BatchTaken(step=0, groups=(0, 1)))
    assert [eviction.group for eviction in POLICY.evict(view, MORE)] == [2]


def test_at_the_end_of_the_data_a_surplus_group_is_trained() -> None:
    """Nothing can be added any more: what is buffered is used, oldest step first, within the bound of its lag."""
    end = DataExhausted(drawn=3, quarantined=0)
    events = [*whole(0, 0), *whole(1, 0), *whole(2, 0), end, BatchTaken(step=0, groups=(0, 1))]
    view = view_of(MORE, *events)
    assert POLICY.evict(view, MORE) == []
    assert POLICY.batch(view, MORE) == (2,)
    view.trainer.step = 2
    assert POLICY.batch(view, MORE) is None
    assert POLICY.evict(view, MORE) == [Eviction(2, 2, surplus=True)]


@given(
    per_step=st.integers(1, 4),
    more=st.integers(1, 4),
    staleness=st.integers(0, 2),
    states=st.lists(
        st.tuples(st.sampled_from(["in_flight", "buffered"]), st.integers(0, 3), st.integers(0, 2)),
        max_size=14,
    ),
    step=st.integers(0, 3),
    ended=st.booleans(),
)
def test_no_group_is_both_given_up_and_trained(
    per_step: int,
    more: int,
    staleness: int,
    states: list[tuple[str, int, int]],
    step: int,
    ended: bool,
) -> None:
    """Whatever lies in the buffer: what `evict` names `batch` does not take, and a step that waits keeps its groups."""
    scheduler = {"groups_per_step": per_step, "oversample_groups": more, "max_staleness": staleness}
    settings = config(run={"steps": 10}, scheduler=scheduler)
    events: list[Event] = []
    for group, (state, target, some) in enumerate(states):
        version = min(target, max(some, target - staleness))
        events += whole(group, target, 2, version) if state == "buffered" else drawn(group, target, 2, version)
    if ended:
        events.append(DataExhausted(drawn=9, quarantined=0))
    view = view_of(settings, *events)
    view.trainer.step = step
    given_up = {eviction.group for eviction in POLICY.evict(view, settings)}
    batch = POLICY.batch(view, settings) or ()
    assert not given_up & set(batch)
    assert all(eviction.surplus for eviction in POLICY.evict(view, settings))
    for target in range(step, 10):
        waiting = view.groups.buffered_by_target.get(target, [])
        assert not given_up & set(waiting[:per_step])
        if len(waiting) < per_step:
            assert all(view.groups.live[group].target != target for group in given_up)


def test_the_ledger_knows_what_is_surplus() -> None:
    """Given up while its step lacks groups: a breach. With enough beside it, or with its step taken: none."""
    gone = GroupDiscarded(group=2, reason="surplus")
    back = PromptReturned(prompt=2, reason="surplus")
    assert breaches(MORE, *whole(0, 0), *drawn(2, 0), gone, back) == ["surplus"]
    assert breaches(MORE, *whole(0, 0), *whole(1, 0), *drawn(2, 0), gone, back) == []
    assert breaches(MORE, *whole(0, 0), *whole(1, 0), *whole(2, 0), gone, back) == []
    three = [*whole(0, 0), *whole(1, 0), *whole(2, 0)]
    assert breaches(MORE, *three, BatchTaken(step=0, groups=(0, 1, 2))) == ["steps"]


def test_a_prompt_that_is_surplus_twice_is_drawn_after_the_fresh_ones() -> None:
    """Else the slowest prompts would hold the extra places for ever."""
    out = [GroupDiscarded(group=0, reason="surplus"), PromptReturned(prompt=0, reason="surplus")]
    again = [
        PromptDrawn(prompt=0, epoch=0, index=0),
        GroupDispatched(group=1, prompt=0, target=3, version=2, size=4),
        GroupDiscarded(group=1, reason="surplus"),
        PromptReturned(prompt=0, reason="surplus"),
    ]
    first, second = view_of(MORE, *drawn(0, 0), *out), view_of(MORE, *drawn(0, 0), *out, *again)
    assert (first.prompts.returned, first.prompts.set_aside) == ([0], [])
    assert (second.prompts.returned, second.prompts.set_aside) == ([], [0])


# Oversampling: whole runs


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_no_step_waits_for_the_slow_groups_that_it_does_not_need(staleness: int) -> None:
    """Every fifth prompt takes 100 s: with two groups more a step never waits for one, and none is lost."""
    scheduler = {"groups_per_step": 4, "max_staleness": staleness}
    slow = World(config(scheduler=scheduler))
    fast = World(config(scheduler={**scheduler, "oversample_groups": 2}))
    for world in (slow, fast):

        def seconds(request: GenerateRequest, world: World = world) -> float:
            live = world.view.groups.live.get(int(request.request.split("/")[0]))
            return 100.0 if live is not None and live.prompt % 10 == 3 else 1.0

        world.pool[0].seconds = seconds
        world.go()
        assert world.outcome is not None
        assert world.outcome.outcome == "completed"
        assert [len(event.groups) for event in world.events(BatchTaken)] == [4] * 6
        assert world.ledger.breaches == []
    assert slow.outcome is not None
    assert fast.outcome is not None
    assert slow.outcome.seconds > 100
    assert fast.outcome.seconds < 60
    surplus = [event for event in fast.events(GroupDiscarded) if event.reason == "surplus"]
    assert len(surplus) >= 6
    assert not fast.events(GroupEvicted)
    versions = {event.group: event.version for event in fast.events(GroupDispatched)}
    lags = [event.step - versions[group] for event in fast.events(BatchTaken) for group in event.groups]
    assert max(lags) <= staleness
    books = fast.ledger.prompts
    assert books["trained"] == 24
    assert books["trained"] + books["returned"] == fast.ledger.drawn


def test_the_first_to_be_buffered_are_trained() -> None:
    """Each step trains its own groups in the order in which they were buffered, and the first of them."""
    world = World(config(scheduler={"groups_per_step": 3, "oversample_groups": 3}))
    world.pool[0].seconds = lambda request: 0.5 + request.seed % 7
    world.go()
    order: dict[int, list[int]] = {}
    for event in world.events(GroupBuffered):
        order.setdefault(event.target, []).append(event.group)
    for event in world.events(BatchTaken):
        assert list(event.groups) == order[event.step][:3]


def test_the_data_lasts_as_long_with_oversampling() -> None:
    """With exactly as many prompts as the steps train, every one of them is trained."""
    world = World(
        config(
            run={"steps": 5}, data={"size": 20}, scheduler={"groups_per_step": 4, "oversample_groups": 3}
        )
    )
    world.pool[0].seconds = lambda request: 0.5 + request.seed % 5
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert world.ledger.prompts["trained"] == 20
    assert world.ledger.breaches == []


# Filtering: bound and reason


def filtered(group: int, target: int, mean: float) -> list[Event]:
    members = [event for index in range(4) for event in complete(group, index)]
    end = GroupFiltered(group=group, reason="zero_variance", reward_mean=mean)
    return [*drawn(group, target), *members, end]


def test_too_many_filtered_groups_end_the_run_with_their_rewards() -> None:
    """Three for step 1 are one too many; two for it and two for step 2 are not, nor is anything without a bound."""
    settings = config(scheduler={"groups_per_step": 2}, algorithm={"filtered_max": 2})
    one = [*filtered(0, 1, 0.0), *filtered(1, 1, 1.0)]
    collect(view_of(settings, *one, *filtered(2, 2, 0.0), *filtered(3, 2, 0.0)), settings, POLICY, PROMPTS)
    three = view_of(settings, *one, *filtered(2, 1, 0.0))
    words = (
        r"^3 groups for step 1 had equal rewards and were filtered "
        r"\(limit algorithm.filtered_max = 2\): 2 of mean reward 0, 1 of mean reward 1$"
    )
    with pytest.raises(RunFailure, match=words) as failure:
        collect(three, settings, POLICY, PROMPTS)
    assert failure.value.error == "too_many_filtered"
    assert failure.value.first_cause == 14, "the first of them"
    unbound = config(scheduler={"groups_per_step": 2}, algorithm={"filtered_max": 0})
    collect(three, unbound, POLICY, PROMPTS)


def test_what_was_filtered_for_a_step_is_forgotten_when_its_batch_is_taken() -> None:
    """The bound is one of each step."""
    view = view_of(FLOOR, *filtered(0, 0, 0.0), *filtered(1, 1, 0.0), BatchTaken(step=0, groups=()))
    assert list(view.groups.filtered_for) == [1]


def test_the_bound_is_ten_batches_by_default() -> None:
    """It follows groups_per_step."""
    assert config(scheduler={"groups_per_step": 3}).filtered_max == 30
    assert config(algorithm={"filtered_max": 0}).filtered_max == 0


@pytest.mark.parametrize("policy", ["targeted", "capacity", "windowed"])
def test_a_run_that_only_filters_ends_within_its_bound(policy: str) -> None:
    """In every policy it fails with the number of groups and their reward; it does not go through all the data."""
    world = World(
        config(
            data={"size": 10_000},
            scheduler={"policy": policy, "groups_per_step": 2},
            algorithm={"drop_zero_variance": True, "filtered_max": 6},
        )
    )
    world.environment = lambda: SimulatedEnvironment(world.clock, score=lambda item, seed: 1.0)
    world.go()
    assert world.outcome is not None
    assert (world.outcome.outcome, world.outcome.error) == ("failed", "too_many_filtered")
    assert "of mean reward 1" in world.outcome.message
    assert len(world.events(GroupFiltered)) <= 20


def test_the_end_of_the_data_says_what_became_of_it() -> None:
    """The last event has the reason, its numbers add up to the prompts drawn, and so has the outcome."""
    world = World(
        config(
            run={"steps": 3},
            data={"size": 12},
            algorithm={"drop_zero_variance": True},
            failures={"attempts_max": 1, "strikes_max": 1},
        )
    )

    async def broken(item: dict[str, int], seed: int, turn: int) -> None:
        if item["number"] == 4:
            raise RuntimeError("no such tool")

    def score(item: Any, seed: int) -> float:
        return 0.0 if item["number"] in (0, 1, 2, 8, 9) else float(seed)

    world.environment = lambda: SimulatedEnvironment(world.clock, on_step=broken, score=score)
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "data_exhausted"
    (ended,) = world.events(RunFinished)
    assert ended.reason == "12 prompts: 6 trained, 5 filtered (equal rewards), 1 quarantined; 2 of 3 steps"
    assert world.outcome.message == ended.reason


def test_prompts_that_are_not_drawn_again_are_in_the_reason() -> None:
    """A prompt that was set aside, and whose item was quarantined in another epoch, is no trained one."""
    view = view_of(
        FLOOR,
        *drawn(0, 0), GroupFailed(group=0, failure="refused", retryable=True, blame="prompt", message=""),
        PromptReturned(prompt=0, reason="failed"),
        PromptDrawn(prompt=100, epoch=1, index=0),
        GroupDispatched(group=1, prompt=100, target=0, version=0, size=4),
        GroupFailed(group=1, failure="refused", retryable=False, blame="prompt", message=""),
        PromptQuarantined(prompt=100, index=0, failure="refused", message=""),
    )  # fmt: skip
    assert end_of_data(view) == (
        "2 prompts: 0 trained, 1 quarantined, 1 returned and not drawn again (their items are quarantined); "
        "0 of 10 steps"
    )


def test_a_run_that_makes_all_its_steps_has_no_reason() -> None:
    """The reason is for steps that are missing."""
    world = World().go()
    assert [event.reason for event in world.events(RunFinished)] == [""]
    assert len(world.events(StepCompleted)) == 6


# Settings that make no sense


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"rollout": {"group_size": 4, "group_floor": 5}},
            "rollout.group_floor is 5, but rollout.group_size is 4: no group could ever be whole",
        ),
        ({"rollout": {"group_floor": 1}}, "greater than or equal to 2"),
        (
            {"scheduler": {"policy": "capacity", "oversample_groups": 4}},
            "scheduler.oversample_groups is 4, but scheduler.policy = 'capacity' waits for no particular group",
        ),
        (
            {"scheduler": {"policy": "windowed", "oversample_groups": 4}},
            "scheduler.oversample_groups is 4, but scheduler.policy = 'windowed' waits for no particular group",
        ),
        (
            {"scheduler": {"oversample_groups": 2, "buffer_groups": 5}},
            "scheduler.buffer_groups is 5, but scheduler.groups_per_step + scheduler.oversample_groups = 6",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(sections: dict[str, Any], words: str) -> None:
    """One sentence says which setting, and beside which other."""
    with pytest.raises(ValueError, match=words.replace(".", r"\.").replace("+", r"\+")):
        config(**sections)
