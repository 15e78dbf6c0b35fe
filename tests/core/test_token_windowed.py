"""The policy `token_windowed`: which groups are at hand, which tokens a step masks, and the law that says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import World, config

from eventrain.adapters.simulated.world import SimulatedEnvironment
from eventrain.core.advantage import train_batch
from eventrain.core.config import RunConfig
from eventrain.core.policies import Dispatch, Eviction
from eventrain.core.policies.token_windowed import TokenWindowed
from eventrain.core.ports import EngineError, GenerateRequest, PromptTooLong, TrainBatch
from eventrain.core.projections import View
from eventrain.core.projections.accounting import Ledger
from eventrain.core.projections.pace import Survival
from eventrain.events.record import Record
from eventrain.events.trajectory import int32_list
from eventrain.events.types import (
    BatchTaken,
    DataExhausted,
    EngineUp,
    Event,
    GroupBuffered,
    GroupDispatched,
    GroupEvicted,
    InvariantBroken,
    LearnerUp,
    PayloadRef,
    PromptDrawn,
    PromptReturned,
    RunStarted,
    StepCompleted,
    StepStarted,
    TrajectoryCompleted,
    TrajectoryStarted,
    WeightsPublished,
)


def settings_of(staleness: int = 2, **scheduler: Any) -> RunConfig:
    scheduler = {"policy": "token_windowed", "groups_per_step": 2, "max_staleness": staleness, **scheduler}
    return config(run={"steps": 10}, scheduler=scheduler)


ROOMY: dict[str, Any] = {"permits": 100, "buffer_groups": 100}


def started(run: RunConfig) -> RunStarted:
    return RunStarted(
        run="r", config=run.model_dump(), code_version="", seed=0, host="", pid=0, prompts=100
    )


def begun(*events: Event, version: int = 0, step: int | None = None) -> View:
    """Return the state of a run that is up at `version` and about to take the batch of `step`, after `events`."""
    start = [
        started(settings_of()),
        LearnerUp(version=version, parameters=1, device="cpu"),
        WeightsPublished(version=version, path="w", size_bytes=1, seconds=0),
        EngineUp(engine="engine-0", version=version, context_tokens=100, slots=4),
    ]
    view = View()
    for seq, event in enumerate([*start, *events]):
        view.apply(Record(seq, 0, 0, "test", None, "", event))
    view.trainer.step = version if step is None else step
    return view


def dispatched(group: int, version: int = 0, target: int = 2) -> list[Event]:
    return [
        PromptDrawn(prompt=group, epoch=0, index=group),
        GroupDispatched(group=group, prompt=group, target=target, version=version, size=1),
    ]


def whole(group: int, *spans: tuple[int, int], target: int = 2) -> list[Event]:
    """Return the life of a group of one trajectory with tokens of `spans`, from its dispatch to the buffer."""
    done = TrajectoryCompleted(
        trajectory=f"{group}/0", group=group, attempt=0, turns=1, prompt_tokens=1,
        completion_tokens=sum(count for _, count in spans), version_spans=spans, reward=0, stop_reason="done",
        queue_s=0, llm_s=0, env_setup_s=0, env_s=0, reward_s=0, other_s=0,
        payload=PayloadRef(digest="", length=0, pack=0, offset=0),
    )  # fmt: skip
    return [
        *dispatched(group, spans[0][0], target),
        TrajectoryStarted(trajectory=f"{group}/0", group=group, attempt=0),
        done,
        GroupBuffered(group=group, target=target, trajectories=1, reward_mean=0, reward_std=0),
    ]


# Decisions


def test_before_anything_is_known_one_step_is_started() -> None:
    """Without a duration in the log there is no lead to bridge: the groups of one step, with two versions to go."""
    assert TokenWindowed().plan(begun(), settings_of()) == [Dispatch(2, 0)] * 2


def test_the_level_bridges_the_time_that_groups_take() -> None:
    """All groups take 2.5 steps: those of the next step and of two more are at hand, and none in reserve."""
    view = begun()
    view.pace._curve = Survival((2.5,), (0.0,))
    view.pace.step_s = 1.0
    assert len(TokenWindowed().plan(view, settings_of(**ROOMY))) == 6
    assert len(TokenWindowed().plan(view, settings_of(permits=5, buffer_groups=100))) == 5
    view.pace._curve = Survival((0.5, 2.5), (0.5, 0.0))  # 2 + 1 + 1, and one for the deviation of sqrt(2 / 2)
    assert len(TokenWindowed().plan(view, settings_of(**ROOMY))) == 5
    assert len(TokenWindowed().plan(view, settings_of(1, **ROOMY))) == 4, "a reserve would be too old"
    view.pace._curve = Survival((0.9,), (0.0,))
    assert len(TokenWindowed().plan(view, settings_of(**ROOMY))) == 2


def test_no_more_is_started_than_the_run_still_trains() -> None:
    """Before the last step two groups are due, whatever the level; after it none."""
    view = begun(version=9)
    view.pace._curve = Survival((2.5,), (0.0,))
    view.pace.step_s = 1.0
    assert TokenWindowed().plan(view, settings_of(**ROOMY)) == [Dispatch(9, 9)] * 2
    view.trainer.step = 10
    assert TokenWindowed().plan(view, settings_of(**ROOMY)) == []


def test_a_group_that_may_hang_is_replaced() -> None:
    """One of two groups in flight is older than 98 % of groups become: one more starts."""
    view = begun(*dispatched(0), *dispatched(1))
    view.pace._curve = Survival((0.5,), (0.0,))
    view.pace.step_s = 1.0
    assert TokenWindowed().plan(view, settings_of(**ROOMY)) == []
    view.groups.live[0].since_ns = -600_000_000
    assert len(TokenWindowed().plan(view, settings_of(**ROOMY))) == 1


def test_a_group_without_a_token_left_is_evicted_and_others_are_not() -> None:
    """Step 4 trains versions 2 and on: a group of versions 0 and 1 goes, one with a token of version 2 stays."""
    events = [*whole(0, (0, 5), (1, 5)), *whole(1, (0, 9), (2, 1)), *dispatched(2)]
    view = begun(*events, version=4)
    assert TokenWindowed().evict(view, settings_of()) == [Eviction(0, 4)]
    assert TokenWindowed().batch(view, settings_of(groups_per_step=1)) == (1,)
    assert TokenWindowed().batch(view, settings_of()) is None


def test_what_the_last_step_did_not_need_is_surplus() -> None:
    """After the last batch nothing is left to train: buffered and in flight, all goes, and not as stale."""
    view = begun(*whole(0, (8, 5)), *dispatched(1, 8), version=9, step=10)
    assert TokenWindowed().evict(view, settings_of()) == [Eviction(0, 2, True), Eviction(1, 2, True)]


def test_what_would_be_lost_by_waiting_is_trained_first() -> None:
    """Before step 4, with two versions to go: last chances, then most tokens in theirs, then the first buffered."""
    events = [
        *whole(0, (3, 10)),
        *whole(1, (2, 3), (3, 7)),
        *whole(2, (2, 6), (3, 4)),
        *whole(3, (0, 9), (2, 1)),
        *whole(4, (3, 10)),
    ]
    view = begun(*events, version=4)
    for count, expected in ((1, (3,)), (2, (3, 2)), (4, (3, 2, 1, 0)), (5, (3, 2, 1, 0, 4))):
        assert TokenWindowed().batch(view, settings_of(groups_per_step=count)) == expected


def test_at_the_end_of_the_data_a_short_batch_is_taken() -> None:
    """One group that is left, with nothing in flight and nothing to draw, makes a step."""
    view = begun(*whole(0, (0, 5)), DataExhausted(drawn=1, quarantined=0))
    assert TokenWindowed().batch(view, settings_of()) == (0,)


def test_draining_engines_are_refused() -> None:
    """Engines that keep the weights back until groups have ended leave the policy nothing to do."""
    with pytest.raises(ValueError, match=r"engine.sync_mode is 'drain', but .* use 'in_flight' or 'pause'"):
        config(scheduler={"policy": "token_windowed", "groups_per_step": 2}, engine={"sync_mode": "drain"})


# The batch


def stale(batch: TrainBatch, staleness: int) -> tuple[int, int]:
    """Return the trained and the masked tokens of `batch`, after checking every one of them by its own version."""
    trained = masked = 0
    for row in batch.rows:
        versions = int32_list(row.versions)
        for flag, version in zip(row.sampled, versions, strict=True):
            assert flag == (version >= max(0, batch.step - staleness))
            trained += flag
            masked += version >= 0 and not flag
    return trained, masked


def slow_and_quick(policy: str = "token_windowed", **sections: Any) -> World:
    """Return a world of steps of 2 s in which every fourth group takes 7 s and the others one."""
    scheduler = {"policy": policy, "groups_per_step": 4, "max_staleness": 2}
    world = World(config(run={"steps": 12}, scheduler=scheduler, **sections))
    world.pool[0].seconds = lambda request: 7.0 if int(request.request.split("/")[0]) % 4 == 1 else 1.0
    world.pool[0].length = lambda request: 70
    return world


@pytest.mark.parametrize("mode", ["in_flight", "pause"])
def test_a_run_masks_old_tokens_and_gives_up_no_group(mode: str) -> None:
    """Groups that take three steps are trained, without their old tokens, and the counts are in the log."""
    world = slow_and_quick(engine={"sync_mode": mode}).go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert world.ledger.breaches == []
    assert not world.events(GroupEvicted)
    counts = [stale(batch, 2) for batch in world.learner.batches]
    assert [(e.trained_tokens, e.masked_tokens) for e in world.events(StepStarted)] == counts
    assert [(e.trained_tokens, e.masked_tokens) for e in world.events(StepCompleted)] == counts
    assert sum(masked for _, masked in counts) > 500
    versions = {event.group: event.version for event in world.events(GroupDispatched)}
    assert max(e.step - versions[group] for e in world.events(BatchTaken) for group in e.groups) > 2


def test_other_policies_mask_nothing() -> None:
    """With `capacity` the same world trains old tokens, and the counts say that none is masked."""
    world = slow_and_quick("capacity").go()
    assert world.ledger.breaches == []
    done = world.events(StepCompleted)
    assert {event.masked_tokens for event in done} == {0}
    assert [event.trained_tokens for event in done] == [4 * 4 * 70] * 12


def test_max_staleness_0_is_synchronous() -> None:
    """Every group is trained at the version it was dispatched at, nothing is masked, and no group is surplus."""
    world = World(config(scheduler={"policy": "token_windowed", "max_staleness": 0}))
    world.pool[0].seconds = lambda request: 0.5 + request.seed % 7
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert {event.lag_max for event in world.events(StepCompleted)} == {0}
    assert {event.masked_tokens for event in world.events(StepCompleted)} == {0}
    assert len(world.events(GroupDispatched)) == 24


def test_advantages_count_trajectories_without_a_trained_token() -> None:
    """A row that is masked as a whole stays a row, and its reward stays in its group's mean."""
    kept: list[tuple[TrainBatch, list[float]]] = []
    world = slow_and_quick()

    async def on_train(batch: TrainBatch) -> None:
        groups = [group for group in world.view.groups.live.values() if group.state == "training"]
        later = train_batch(batch.step, batch.version, groups, world.run.trainer.payloads, "dr_grpo", 10**6)
        kept.append((later, [row.advantage for row in later.rows]))

    world.learner.on_train = on_train
    world.go()
    for batch, advantages in kept:
        assert not any(any(row.sampled) for row in batch.rows)
        assert len(batch.rows) == 16
        assert sum(advantages) == pytest.approx(0)
        assert any(advantages)


# The law


def books(policy: str, *events: Event) -> list[str]:
    """Return the laws that `events` break; groups are of one trajectory, steps of two groups."""
    ledger = Ledger()
    run = settings_of(1).model_dump()
    run["scheduler"]["policy"] = policy
    start = started(settings_of(1)).model_copy(update={"config": run})
    for seq, event in enumerate([start, *events]):
        ledger.apply(Record(seq, 0, 0, "test", None, "", event))
    return [breach.law for breach in ledger.breaches if breach.law in ("token age", "lag")]


def step_started(step: int, trained: int, masked: int) -> StepStarted:
    return StepStarted(
        step=step, version=step, groups=2, trajectories=2, tokens=99, trained_tokens=trained, masked_tokens=masked
    )


def done(step: int, trained: int, masked: int) -> StepCompleted:
    return StepCompleted(
        step=step, version=step + 1, loss=0, reward_mean=0, lag_mean=0, lag_max=0,
        trained_tokens=trained, masked_tokens=masked,
    )  # fmt: skip


TWO = [*whole(0, (0, 5), (1, 4), (2, 1)), *whole(1, (2, 10)), BatchTaken(step=2, groups=(0, 1))]
"""A step 2 of twenty tokens, five of them of version 0."""


def test_exactly_the_old_tokens_are_masked() -> None:
    """Step 2 with max_staleness 1 masks the five tokens of version 0: neither none, nor six, nor some uncounted."""
    right = [step_started(2, 15, 5), done(2, 15, 5)]
    assert books("token_windowed", *TWO, *right) == []
    for trained, masked in ((20, 0), (14, 6), (15, 0), (0, 0)):
        assert books("token_windowed", *TWO, step_started(2, trained, masked)) == ["token age"]
        assert books("token_windowed", *TWO, right[0], done(2, trained, masked)) == ["token age"]


def test_a_group_without_a_token_to_train_must_not_be_in_a_batch() -> None:
    """Of two groups one has nothing but version 0: step 2 takes a group that it cannot train."""
    spent = [*whole(0, (0, 5)), *whole(1, (2, 10)), BatchTaken(step=2, groups=(0, 1))]
    assert books("token_windowed", *spent) == ["token age"]


def test_where_groups_are_bounded_no_token_is_masked() -> None:
    """The policy `windowed` breaks its own bound here, and a masked token is none of its business."""
    assert books("windowed", *TWO, step_started(2, 20, 0)) == ["lag"]
    assert books("windowed", *TWO, step_started(2, 15, 5)) == ["lag", "token age"]
    assert books("windowed", *TWO, step_started(2, 0, 0)) == ["lag"], "logs of before the counts are not judged"


def unlucky(seed: int, salt: int, kind: int, chance: float) -> bool:
    return ((seed ^ salt) * 2654435761 >> kind) % 1000 < chance * 1000


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_fault_lets_an_old_token_through(data: st.DataObject) -> None:
    """Whatever fails, hangs, dies or is slow: the run ends, and each trained token is young enough, each masked old."""
    chance = data.draw(st.floats(0, 0.25), label="chance of a fault")
    staleness = data.draw(st.integers(0, 3), label="staleness")
    salt = data.draw(st.integers(0, 2**20), label="salt")
    world = World(
        config(
            run={"steps": 6, "seed": salt},
            scheduler={
                "policy": "token_windowed",
                "groups_per_step": 3,
                "max_staleness": staleness,
                "permits": data.draw(st.integers(1, 12), label="permits"),
                "buffer_groups": data.draw(st.integers(3, 12), label="buffer"),
            },
            rollout={"group_size": 2, "max_turns": 2},
            data={"kind": "generated", "size": data.draw(st.integers(5, 40), label="items"), "epochs": 5},
            algorithm={"drop_zero_variance": data.draw(st.booleans(), label="drop zero variance")},
            engine={"sync_mode": data.draw(st.sampled_from(["in_flight", "pause", "abort"])), "restarts_max": 3},
            deadlines={"llm_call_s": 30, "env_step_s": 20, "weight_sync_s": 25},
            failures={"share_max": 1.0, "attempts_max": 2, "strikes_max": 2},
        ),
        engines=data.draw(st.integers(1, 2), label="engines"),
        turns=2,
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
        engine.length = lambda request: 1 + request.seed % 20
        engine.on_generate = on_generate
        engine.slots = data.draw(st.integers(2, 12), label="slots")
    world.learner.seconds = data.draw(st.sampled_from([2.0, 0.2]), label="seconds of training")
    world.environment = lambda: SimulatedEnvironment(
        world.clock, turns=2, score=lambda item, seed: float(seed % 3)
    )
    world.go()
    assert world.outcome is not None
    if world.outcome.outcome == "failed":
        assert world.outcome.error == "no_engine_left", world.outcome.message
    assert not world.events(InvariantBroken)
    counts = [stale(batch, staleness) for batch in world.learner.batches]
    assert [(event.trained_tokens, event.masked_tokens) for event in world.events(StepCompleted)] == counts
    assert all(trained for trained, _ in counts)
    assert staleness or not any(masked for _, masked in counts)
    returned = {event.prompt for event in world.events(PromptReturned) if event.reason == "evicted"}
    assert len(returned) <= len(world.events(GroupEvicted))
