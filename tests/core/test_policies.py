"""The policies `capacity` and `windowed`: their decisions, and whole runs of them among random faults."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from legacy import CountsTheFiltered
from worlds import World, config

from eventrain.adapters.simulated.virtual_time import Stalled
from eventrain.adapters.simulated.world import NumberedPrompts, SimulatedEnvironment
from eventrain.core.collector import step as collect
from eventrain.core.config import RunConfig
from eventrain.core.policies import Dispatch, Eviction, policy_for
from eventrain.core.policies.capacity import Capacity
from eventrain.core.policies.token_windowed import TokenWindowed
from eventrain.core.policies.windowed import Windowed
from eventrain.core.ports import EngineError, GenerateRequest, PromptTooLong
from eventrain.core.projections import View
from eventrain.core.projections.accounting import ALIVE, ENDED, Ledger
from eventrain.core.projections.pace import Survival, survival
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
    GroupFiltered,
    InvariantBroken,
    LearnerUp,
    PhaseEntered,
    PromptDrawn,
    PromptReturned,
    RunStarted,
    StepCompleted,
    TrajectoryFailed,
    WeightsPublished,
)


def settings_of(policy: str, staleness: int = 1, **scheduler: Any) -> RunConfig:
    scheduler = {"groups_per_step": 2, "max_staleness": staleness, "policy": policy, **scheduler}
    return config(run={"steps": 10}, scheduler=scheduler)


def begun(*events: Event | tuple[float, Event], version: int = 0) -> View:
    """Return the state of a run that is up at `version`, after `events`, each with its second if it has one."""
    view = View()
    start: list[Event | tuple[float, Event]] = [
        RunStarted(
            run="r",
            config=settings_of("windowed").model_dump(),
            code_version="",
            seed=0,
            host="",
            pid=0,
            prompts=100,
        ),
        LearnerUp(version=version, parameters=1, device="cpu"),
        WeightsPublished(version=version, path="w", size_bytes=1, seconds=0),
        EngineUp(engine="engine-0", version=version, context_tokens=100, slots=4),
    ]
    now_s = 0.0
    for seq, item in enumerate([*start, *events]):
        now_s, event = item if isinstance(item, tuple) else (now_s, item)
        view.apply(Record(seq, 0, round(now_s * 1e9), "test", None, "", event))
    return view


def drawn(group: int, target: int, version: int = 0) -> list[Event]:
    return [
        PromptDrawn(prompt=group, epoch=0, index=group),
        GroupDispatched(group=group, prompt=group, target=target, version=version, size=2),
    ]


def buffered(group: int, target: int = 0) -> Event:
    return GroupBuffered(group=group, target=target, trajectories=2, reward_mean=0, reward_std=0)


def trained(step: int, *groups: int) -> list[Event]:
    done = StepCompleted(step=step, version=step + 1, loss=0, reward_mean=0, lag_mean=0, lag_max=0)
    return [BatchTaken(step=step, groups=groups), done]


# capacity: the count


def test_the_count_allows_the_steps_up_to_max_staleness_ahead() -> None:
    """At version 0 with staleness 1 four groups of two a step are due, counted for steps 0 and 1."""
    assert [d.target for d in Capacity().plan(begun(), settings_of("capacity"))] == [0, 0, 1, 1]


def test_what_is_buffered_or_trained_uses_up_capacity_and_what_was_filtered_gives_it_back() -> None:
    """Of four groups one was filtered: one is due again, and none when it was buffered."""
    four = [event for group in range(4) for event in drawn(group, group // 2)]
    filtered = GroupFiltered(group=0, reason="zero_variance", reward_mean=0)
    assert Capacity().plan(begun(*four, buffered(0)), settings_of("capacity")) == []
    assert Capacity().plan(begun(*four, filtered), settings_of("capacity")) == [Dispatch(1, 0)]
    assert (
        Capacity().plan(begun(*four, buffered(0), buffered(1), *trained(0, 0, 1)), settings_of("capacity"))
        == []
    )


def test_the_first_to_be_buffered_are_the_first_to_be_trained() -> None:
    """A batch follows the order of the buffer, whatever the groups' numbers and targets."""
    three = [event for group in range(3) for event in drawn(group, group)]
    assert Capacity().batch(begun(*three, buffered(2, 2)), settings_of("capacity")) is None
    assert Capacity().batch(begun(*three, buffered(2, 2), buffered(0)), settings_of("capacity")) == (2, 0)


@pytest.mark.parametrize("policy", ["capacity", "windowed"])
def test_at_the_end_of_the_data_a_short_batch_is_taken(policy: str) -> None:
    """One group that is left, with nothing in flight and nothing to draw, makes a step."""
    view = begun(*drawn(0, 1), buffered(0, 1), DataExhausted(drawn=1, quarantined=0))
    assert policy_for(settings_of(policy)).batch(view, settings_of(policy)) == (0,)


def test_permits_that_the_count_can_never_use_are_refused() -> None:
    """Nine permits where the count allows four groups are a misunderstanding, and said to be one."""
    with pytest.raises(ValueError, match=r"scheduler.permits is 9, but .* = 4 groups in flight"):
        settings_of("capacity", permits=9)


def test_each_policy_says_what_it_waits_for() -> None:
    """An engine, a permit, a version, the end: each by name."""
    for policy in (Capacity(), Windowed(), TokenWindowed()):
        one = settings_of("capacity", permits=1)
        assert policy.why_idle(View(), one).name == "engine_available"
        assert policy.why_idle(begun(*drawn(0, 1)), one).name == "permit"
        ended = begun()
        ended.trainer.step = ended.engines.by_name["engine-0"].version = 10
        assert policy.why_idle(ended, one).name == "drained"
        full = begun(*[event for group in range(4) for event in drawn(group, 1)])
        roomy = settings_of("capacity", permits=4, buffer_groups=9)
        found = policy.why_idle(full, roomy)
        assert found.awaited == ("version 1" if isinstance(policy, Capacity) else "a free permit")
        assert policy.why_waiting(begun(*drawn(0, 1)), one).present == "0 buffered, 1 in flight"


# windowed: the window


def test_a_group_may_be_trained_up_to_its_version_and_max_staleness() -> None:
    """At version 0 with staleness 1 all four groups have until step 1, and the run's last step is a limit too."""
    assert [d.target for d in Windowed().plan(begun(), settings_of("windowed"))] == [1, 1, 1, 1]
    last = begun(version=9)
    last.trainer.step = 9
    assert {d.target for d in Windowed().plan(last, settings_of("windowed"))} == {9}


def test_a_step_trains_the_oldest_groups_first() -> None:
    """A group of an older version goes before a younger one that was buffered earlier."""
    view = begun(*drawn(0, 1), *drawn(1, 2, 1), *drawn(2, 1), buffered(1, 2), buffered(2, 1), buffered(0, 1))
    assert Windowed().batch(view, settings_of("windowed")) == (2, 0)


def test_what_missed_its_window_is_evicted_in_flight_and_buffered() -> None:
    """Once step 2 is the next, groups of version 0 cannot be trained with staleness 1, and that of version 1 can."""
    events = [*drawn(0, 1), *drawn(1, 1), *drawn(2, 1), *drawn(3, 2, 1), *drawn(4, 1)]
    view = begun(*events, buffered(0, 1), buffered(1, 1), buffered(4, 1), *trained(0, 0), *trained(1, 1))
    assert Windowed().evict(view, settings_of("windowed")) == [Eviction(2, 2), Eviction(4, 2)]
    assert Windowed().batch(view, settings_of("windowed")) is None
    decisions = collect(view, settings_of("windowed"), Windowed(), NumberedPrompts(100))
    assert decisions == [
        GroupEvicted(group=2, lag=2), PromptReturned(prompt=2, reason="evicted"),
        GroupEvicted(group=4, lag=2), PromptReturned(prompt=4, reason="evicted"),
    ]  # fmt: skip


def test_what_the_last_step_did_not_need_is_surplus_and_not_stale() -> None:
    """After the last batch the groups left over are discarded at once, not called evicted."""
    view = begun(*drawn(0, 9, 9), version=9)
    view.trainer.step = 10
    decisions = collect(view, settings_of("windowed"), Windowed(), NumberedPrompts(100))
    assert decisions[0] == GroupDiscarded(group=0, reason="surplus")


def test_an_evicted_prompt_is_drawn_next_and_after_all_others_when_it_is_evicted_again() -> None:
    """A prompt gets a second chance; a slow one cannot take every place in the engines for ever."""
    out = [GroupEvicted(group=0, lag=2), PromptReturned(prompt=0, reason="evicted")]
    again = [
        PromptDrawn(prompt=0, epoch=0, index=0),
        GroupDispatched(group=1, prompt=0, target=3, version=2, size=2),
        GroupEvicted(group=1, lag=2),
        PromptReturned(prompt=0, reason="evicted"),
    ]
    first = begun(*drawn(0, 1), *out)
    assert (first.prompts.returned, first.prompts.set_aside) == ([0], [])
    second = begun(*drawn(0, 1), *out, *again)
    assert (second.prompts.returned, second.prompts.set_aside) == ([], [0])


def paced(seconds: float, at_s: float) -> View:
    """Return the state `at_s` seconds into step 2; groups take `seconds`, steps 10 seconds."""
    events: list[Event | tuple[float, Event]] = []
    for step in range(3):
        now = 10.0 * step
        for group in (2 * step, 2 * step + 1):
            events += [(now, event) for event in drawn(group, step + 1, step)]
        events += [(now + seconds, buffered(group, step + 1)) for group in (2 * step, 2 * step + 1)]
        events.append((now + 10, BatchTaken(step=step, groups=(2 * step, 2 * step + 1))))
        if step < 2:
            done = StepCompleted(step=step, version=step + 1, loss=0, reward_mean=0, lag_mean=0, lag_max=0)
            events.append((now + 10, done))
    events.append((30.0 + at_s, PhaseEntered(phase="training", step=2)))
    view = begun(*events)
    view.engines.by_name["engine-0"].version = 2
    return view


def test_no_group_starts_that_can_hardly_make_it_and_it_does_at_the_next_version() -> None:
    """Groups take 4 s and step 3 is taken in 2 s: none starts; with 6 s left, or at version 3, they do."""
    once = settings_of("windowed", 1)
    assert Windowed().plan(paced(4, at_s=8), once) == []
    assert Windowed().plan(paced(4, at_s=4), once) != []
    later = paced(4, at_s=8)
    later.engines.by_name["engine-0"].version = 3
    assert Windowed().plan(later, once) != []


def test_groups_that_were_given_up_count_as_long_ones() -> None:
    """Of four groups two took 1 s and two were given up after it: half of all take longer than 2 s."""
    curve = survival([(1.0, True), (1.0, True), (2.0, False), (2.0, False)])
    assert curve.beyond(0.5) == 1
    assert curve.beyond(2.0) == pytest.approx(0.5)
    assert curve.chance(0.0, 1.0) == pytest.approx(0.5)
    assert curve.chance(1.0, 5.0) == 0
    assert Survival().chance(3.0, 0.0) == 1


# Whole runs


class Books(Ledger):
    """A ledger that checks its sums at every single event."""

    def apply(self, record: Record) -> None:
        super().apply(record)
        assert set(self.groups) <= {*ALIVE, *ENDED}
        assert sum(self.groups.values()) == self.dispatched
        assert sum(self.prompts.values()) == self.drawn
        assert min(self.groups.values(), default=0) >= 0
        assert self.breaches == []


def lags(world: World) -> list[int]:
    """Return the lag of every trained group."""
    versions = {event.group: event.version for event in world.events(GroupDispatched)}
    return [event.step - versions[group] for event in world.events(BatchTaken) for group in event.groups]


def unlucky(seed: int, salt: int, kind: int, chance: float) -> bool:
    return ((seed ^ salt) * 2654435761 >> kind) % 1000 < chance * 1000


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["capacity", "windowed"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_fault_stops_either_policy_or_breaks_its_bound(policy: str, data: st.DataObject) -> None:
    """Whatever fails, hangs, dies or is slow: sums hold at each event, the run ends, and the bound is kept."""
    chance = data.draw(st.floats(0, 0.25), label="chance of a fault")
    staleness = data.draw(st.integers(0, 3), label="staleness")
    salt = data.draw(st.integers(0, 2**20), label="salt")
    world = World(
        config(
            run={"steps": 6, "seed": salt},
            scheduler={
                "policy": policy,
                "groups_per_step": 3,
                "max_staleness": staleness,
                "permits": data.draw(st.integers(1, 3 * (staleness + 1)), label="permits"),
                "buffer_groups": data.draw(st.integers(3, 12), label="buffer"),
            },
            rollout={"group_size": 2, "max_turns": 2},
            data={"kind": "generated", "size": data.draw(st.integers(5, 40), label="items"), "epochs": 5},
            algorithm={"drop_zero_variance": data.draw(st.booleans(), label="drop zero variance")},
            engine={
                "sync_mode": data.draw(st.sampled_from(["in_flight", "pause", "drain", "abort"])),
                "restarts_max": 3,
            },
            deadlines={"llm_call_s": 30, "env_step_s": 20, "weight_sync_s": 25},
            failures={"share_max": 1.0, "attempts_max": 2, "strikes_max": 2},
        ),
        engines=data.draw(st.integers(1, 2), label="engines"),
        turns=2,
        on_bus=lambda bus: bus.register(Books()) and None,
    )

    async def on_generate(request: GenerateRequest) -> None:
        if unlucky(request.seed, salt, 3, chance):
            raise EngineError("reset by peer")
        if unlucky(request.seed, salt, 7, chance**2):
            raise PromptTooLong("too long")
        if unlucky(request.seed, salt, 11, chance**2):
            await asyncio.Event().wait()
        if unlucky(request.seed, salt, 15, chance**2):
            world.pool[0].die()

    for engine in world.pool:
        engine.seconds = lambda request: 0.1 + (request.seed % 17) * 0.3
        engine.on_generate = on_generate
        engine.slots = data.draw(st.integers(2, 12), label="slots")
    world.environment = lambda: SimulatedEnvironment(
        world.clock, turns=2, score=lambda item, seed: float(seed % 3)
    )
    world.go()
    assert world.outcome is not None
    if world.outcome.outcome == "failed":
        assert world.outcome.error == "no_engine_left", world.outcome.message
    assert not world.events(InvariantBroken)
    if policy == "windowed":
        assert max(lags(world), default=0) <= staleness


def test_a_slow_group_is_evicted_while_it_runs_and_its_requests_end() -> None:
    """A group that takes 100 s leaves the engine at the batch of its last step, and the run does not wait for it."""
    world = World(config(run={"steps": 12}, scheduler={"policy": "windowed", "max_staleness": 1}))
    world.pool[0].seconds = lambda request: 100.0 if request.request.startswith("5/") else 1.0
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert world.outcome.seconds < 60
    assert [(event.group, event.lag) for event in world.events(GroupEvicted) if event.group == 5] == [(5, 2)]
    ends = [event for event in world.events(TrajectoryFailed) if event.group == 5]
    assert [event.failure for event in ends] == ["cancelled"] * 4
    assert max(lags(world)) == 1
    assert world.ledger.breaches == []


def test_count_bounded_groups_may_exceed_the_lag_and_the_ledger_knows() -> None:
    """One slow group is overtaken by many steps and trained all the same, with no law broken."""
    world = World(config(run={"steps": 12}, scheduler={"policy": "capacity", "max_staleness": 1}))
    world.pool[0].seconds = lambda request: 12.0 if request.request.startswith("5/") else 1.0
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert max(lags(world)) > 1
    assert not world.events(GroupEvicted)
    assert world.ledger.breaches == []


def test_one_group_more_than_the_count_allows_breaks_a_law() -> None:
    """The ledger counts by itself: five groups of two a step at version 0 are one too many for staleness 1."""
    ledger = Ledger()
    started = RunStarted(
        run="r",
        config=settings_of("capacity").model_dump() | {"scheduler": {
            "policy": "capacity", "groups_per_step": 2, "max_staleness": 1, "permits": 9
        }},
        code_version="", seed=0, host="", pid=0, prompts=9,
    )  # fmt: skip
    five = [event for group in range(5) for event in drawn(group, 0)]
    for seq, event in enumerate([started, *five]):
        ledger.apply(Record(seq, 0, 0, "test", None, "", event))
    assert [breach.law for breach in ledger.breaches] == ["capacity"]


@pytest.mark.parametrize("policy", ["targeted", "capacity", "windowed"])
def test_max_staleness_0_is_synchronous_in_every_policy(policy: str) -> None:
    """Every group is trained at the version it was dispatched at, nothing is thrown away, and no batch is short."""
    world = World(config(scheduler={"policy": policy, "max_staleness": 0}))
    world.pool[0].seconds = lambda request: 0.5 + request.seed % 7
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert set(lags(world)) == {0}
    assert len(world.events(GroupDispatched)) == 24


# Filtered groups and the count


def filtering(staleness: int, places: Sequence[int]) -> World:
    """Return a world of two groups a step in which the groups of `places` have equal rewards and are filtered."""
    world = World(
        config(
            run={"steps": 4},
            scheduler={"policy": "capacity", "groups_per_step": 2, "max_staleness": staleness},
            algorithm={"drop_zero_variance": True},
            rollout={"group_size": 2},
            deadlines={"buffer_wait_s": 60},
        )
    )

    def score(item: Any, seed: int) -> float:
        return 0.0 if item["number"] in places else float(seed)

    world.environment = lambda: SimulatedEnvironment(world.clock, score=score)
    return world


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("place", range(8))
def test_a_filtered_group_gives_its_capacity_back_wherever_it_is(staleness: int, place: int) -> None:
    """Whichever prompt is dropped, one more is drawn, and every step trains two groups."""
    world = filtering(staleness, [place]).go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert [len(event.groups) for event in world.events(BatchTaken)] == [2] * 4
    assert world.ledger.groups["filtered"] == 1
    assert world.ledger.breaches == []


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_count_that_keeps_filtered_groups_starves_the_trainer(
    staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the legacy count, one dropped group at S = 0 and three at S = 1 leave a step short for ever."""
    monkeypatch.setattr("eventrain.core.run.policy_for", lambda config: CountsTheFiltered())
    world = filtering(staleness, [1] if staleness == 0 else [1, 2, 3])
    try:
        world.go()
    except Stalled:
        return
    assert world.outcome is not None
    assert (world.outcome.outcome, world.outcome.error) == ("failed", "buffer_wait_expired")
