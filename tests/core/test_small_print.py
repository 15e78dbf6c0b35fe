"""Single rules that whole runs rarely need: one test for each, so that none can be lost unnoticed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worlds import World, config

from eventrain.adapters.simulated.world import NumberedPrompts, SimulatedEnvironment
from eventrain.core.collector import next_prompts
from eventrain.core.collector import step as collect
from eventrain.core.policies.targeted import Targeted
from eventrain.core.ports import EngineError, EngineGone, EngineInfo, GenerateRequest, PromptTooLong, Weights
from eventrain.core.projections import Prompts, View
from eventrain.core.trainer import Checkpoint, Finish, decide
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    CheckpointCommitted,
    DataExhausted,
    EngineUp,
    EvalCompleted,
    Event,
    GroupBuffered,
    GroupDispatched,
    GroupFailed,
    LearnerUp,
    LlmCallFinished,
    PayloadRef,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RetryScheduled,
    RunStarted,
    StepCompleted,
    TrajectoryCompleted,
    TrajectoryFailed,
    WeightsPublished,
)

CONFIG = config(run={"steps": 10}, scheduler={"groups_per_step": 2, "max_staleness": 1, "buffer_groups": 3})
POLICY = Targeted()


def begun(*events: Event, version: int = 0) -> View:
    """Return the state of a run that is up at `version`, after `events`."""
    view = View()
    started = RunStarted(
        run="r", config=CONFIG.model_dump(), code_version="", seed=0, host="", pid=0, prompts=100
    )
    up: list[Event] = [
        started,
        LearnerUp(version=version, parameters=1, device="cpu"),
        WeightsPublished(version=version, path="w", size_bytes=1, seconds=0),
        EngineUp(engine="engine-0", version=version, context_tokens=100, slots=4),
    ]
    for seq, event in enumerate([*up, *events]):
        view.apply(Record(seq, 0, 0, "test", None, "", event))
    return view


def dispatched(group: int, target: int) -> list[Event]:
    return [
        PromptDrawn(prompt=group, epoch=0, index=group),
        GroupDispatched(group=group, prompt=group, target=target, version=0, size=2),
    ]


def buffered(group: int, target: int) -> Event:
    return GroupBuffered(group=group, target=target, trajectories=2, reward_mean=0, reward_std=0)


def test_the_end_of_the_data_makes_no_short_batch_while_a_group_is_in_flight() -> None:
    """What is in flight may still complete the step."""
    view = begun(
        *dispatched(0, 0), *dispatched(1, 0), buffered(0, 0), DataExhausted(drawn=2, quarantined=0)
    )  # fmt: skip
    assert POLICY.batch(view, CONFIG) is None


def test_in_flight_and_buffered_groups_share_the_buffers_room() -> None:
    """With room for three, two buffered and none in flight leave one to dispatch: it may end in the buffer too."""
    view = begun(*dispatched(0, 0), *dispatched(1, 0), buffered(0, 0), buffered(1, 0))
    assert [due.target for due in POLICY.plan(view, CONFIG)] == [1]


def test_what_was_trained_is_saved_when_the_data_ends() -> None:
    """A run without data left saves its last version before it ends."""
    trained: list[Event] = [
        *dispatched(0, 0),
        *dispatched(1, 0),
        buffered(0, 0),
        buffered(1, 0),
        BatchTaken(step=0, groups=(0, 1)),
        StepCompleted(step=0, version=1, loss=0, reward_mean=0, lag_mean=0, lag_max=0),
        WeightsPublished(version=1, path="w", size_bytes=1, seconds=0),
        EngineUp(engine="engine-0", version=1, context_tokens=100, slots=4),
        DataExhausted(drawn=2, quarantined=0),
    ]
    assert decide(begun(*trained), CONFIG, POLICY) == Checkpoint()
    saved = CheckpointCommitted(step=1, version=1, path="c", size_bytes=1, seconds=0)
    assert decide(begun(*trained, saved), CONFIG, POLICY) == Finish("data_exhausted")


def test_a_prompt_that_was_set_aside_is_not_drawn_once_its_item_is_quarantined() -> None:
    """The same item in a later epoch may be quarantined while the earlier draw waits to be tried again."""
    prompts = Prompts()
    group = {"failure": "env_error", "retryable": True, "blame": "environment", "message": ""}
    events: list[Event] = [
        PromptDrawn(prompt=0, epoch=0, index=0),
        GroupDispatched(group=0, prompt=0, target=0, version=0, size=2),
        GroupFailed(group=0, **group),  # type: ignore[arg-type]
        PromptReturned(prompt=0, reason="failed"),
        PromptDrawn(prompt=1, epoch=0, index=1),
        GroupDispatched(group=1, prompt=1, target=0, version=0, size=2),
        GroupFailed(group=1, **group),  # type: ignore[arg-type]
        PromptReturned(prompt=1, reason="failed"),
        PromptDrawn(prompt=2, epoch=1, index=0),
        GroupDispatched(group=2, prompt=2, target=0, version=0, size=2),
        GroupFailed(group=2, **group),  # type: ignore[arg-type]
        PromptQuarantined(prompt=2, index=0, failure="env_error", message=""),
    ]
    for seq, event in enumerate(events):
        prompts.apply(Record(seq, 0, 0, "test", None, "", event))
    assert [drawn.prompt for drawn in next_prompts(prompts, 2, NumberedPrompts(2))] == [3, 1]


def test_an_engine_is_started_anew_only_once_its_former_process_has_ended() -> None:
    """Two processes of one engine would hold its memory twice."""
    world = World()
    alive: list[str] = []
    engine = world.pool[0]
    start, close = engine.start, engine.close

    async def starting(weights: Weights) -> EngineInfo:
        assert alive == []
        alive.append("process")
        return await start(weights)

    async def closing() -> None:
        await world.clock.sleep(8)
        alive.clear()
        await close()

    async def die_once(request: GenerateRequest) -> None:
        if request.request.startswith("7/") and not world.records(TrajectoryFailed):
            engine.die()

    engine.start, engine.close, engine.on_generate = starting, closing, die_once  # type: ignore[method-assign]
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert len(world.events(EngineUp)) == 2


def test_a_group_that_failed_frees_its_engine_at_once() -> None:
    """Its other trajectories are cancelled in the same instant; they do not decode to their end for nothing."""
    world = World(config(run={"steps": 2}))

    async def refuse(request: GenerateRequest) -> None:
        if request.request == "2/1/0":
            raise PromptTooLong("too long")
        if request.request.startswith("2/"):
            await asyncio.Event().wait()

    world.pool[0].on_generate = refuse
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    (failed,) = world.records(GroupFailed)
    ends = [r for r in world.records(LlmCallFinished) if r.event.outcome == "cancelled"]  # type: ignore[attr-defined]
    assert [end.mono for end in ends] == [failed.mono] * 3


def test_a_retry_in_its_delay_ends_with_its_group() -> None:
    """A sibling fails for good while a trajectory waits for its next attempt: that attempt never starts."""
    world = World(
        config(run={"steps": 2}, failures={"backoff_s": 20, "backoff_max_s": 20, "attempts_max": 2})
    )

    async def step(item: dict[str, int], seed: int, turn: int) -> None:
        if item["number"] == 2:
            raise RuntimeError("no such tool")

    async def refuse(request: GenerateRequest) -> None:
        if request.request == "2/1/0":
            await world.clock.sleep(5)
            raise PromptTooLong("too long")

    world.environment = lambda: SimulatedEnvironment(world.clock, on_step=step)
    world.pool[0].on_generate = refuse
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    attempts = {event.attempt for event in world.events(TrajectoryFailed) if event.group == 2}
    assert attempts == {0}
    assert world.ledger.breaches == []


def failed(trajectory: str, attempt: int = 0, failure: str = "engine_error") -> TrajectoryFailed:
    return TrajectoryFailed.model_validate(
        {
            "trajectory": trajectory,
            "group": int(trajectory.split("/", maxsplit=1)[0]),
            "attempt": attempt,
            "failure": failure,
            "retryable": failure != "cancelled",
            "blame": "engine",
            "message": f"{trajectory}+{attempt}",
        }
    )


def completed(trajectory: str) -> TrajectoryCompleted:
    return TrajectoryCompleted(
        trajectory=trajectory,
        group=int(trajectory.split("/", maxsplit=1)[0]),
        attempt=0,
        turns=1,
        prompt_tokens=1,
        completion_tokens=1,
        version_spans=((0, 1),),
        reward=0,
        stop_reason="done",
        queue_s=0,
        llm_s=0,
        env_setup_s=0,
        env_s=0,
        reward_s=0,
        other_s=0,
        payload=PayloadRef(digest="", length=0, pack=0, offset=0),
    )


def test_a_cancelled_attempt_is_not_tried_again() -> None:
    """It was given up on purpose, and its group is not failed for it; one that an engine failed is."""
    for failure, answered in (("cancelled", False), ("engine_error", True)):
        view = begun(*dispatched(0, 0), failed("0/0", failure=failure))
        decisions = collect(view, CONFIG, POLICY, NumberedPrompts(100))
        assert any(isinstance(event, RetryScheduled | GroupFailed) for event in decisions) is answered


def test_only_failures_that_mean_something_count_towards_the_limit() -> None:
    """Cancelled attempts and those that fell with an engine are neither failures nor successes."""
    fell = [failed("0/0", failure=failure) for failure in ("cancelled", "engine_lost")]
    view = begun(*dispatched(0, 0), *fell, failed("0/0"), completed("0/1"))
    assert [attempt.failure for attempt in view.attempts.recent] == ["engine_error", ""]
    assert view.attempts.failed_share() == 0.5


def test_the_first_failure_is_that_of_the_present_trouble() -> None:
    """Once a whole window was free of failures, the next one is the first again."""
    view = View()
    view.attempts.keep = 2
    events = [failed("0/0"), completed("0/1"), completed("0/2"), failed("0/3"), failed("0/4")]
    for seq, event in enumerate(events):
        view.attempts.apply(Record(seq, 0, 0, "test", None, "", event))
    assert view.attempts.first_failure is not None
    assert (view.attempts.first_failure.seq, view.attempts.first_failure.message) == (3, "0/3+0")


def test_a_prompt_that_comes_back_after_the_end_of_the_data_is_drawn_again() -> None:
    """The last group fails when every prompt is drawn: its prompt is tried once more, and the step is whole."""
    world = World(
        config(run={"steps": 2}, data={"size": 8}, failures={"attempts_max": 1, "strikes_max": 2}), items=8
    )
    tries: list[int] = []

    async def once(item: dict[str, int], seed: int, turn: int) -> None:
        if item["number"] == 7 and not tries:
            tries.append(1)
            raise RuntimeError("no such tool")

    world.environment = lambda: SimulatedEnvironment(world.clock, on_step=once)
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert world.ledger.prompts["trained"] == 8
    view = begun(*dispatched(0, 0), *dispatched(1, 0), DataExhausted(drawn=2, quarantined=0))
    assert view.prompts.exhausted
    back = PromptReturned(prompt=1, reason="failed")
    view = begun(*dispatched(0, 0), *dispatched(1, 0), DataExhausted(drawn=2, quarantined=0), back)
    assert not view.prompts.exhausted


def test_only_a_prompts_own_failures_are_strikes_against_it() -> None:
    """A group that engines failed costs its item nothing, one that its environment failed costs a strike."""
    for blame, strikes in (("engine", 0), ("infrastructure", 0), ("environment", 1), ("prompt", 1)):
        ended = GroupFailed.model_validate(
            {"group": 0, "failure": "env_error", "retryable": True, "blame": blame, "message": ""}
        )
        view = begun(*dispatched(0, 0), ended)
        assert view.prompts.strikes[0] == strikes


@pytest.mark.parametrize(
    ("error", "times", "ended"),
    [
        (EngineError, 7, (4, 0)),
        (EngineError, 8, (3, 1)),
        (EngineGone, 2, (4, 0)),
        (PromptTooLong, 1, (3, 1)),
    ],
)
def test_an_evaluation_tries_again_what_training_would(
    error: type[Exception], times: int, ended: tuple[int, int]
) -> None:
    """Engine failures have their budget and their delays in evaluations too; a refused item is not asked twice."""
    world = World(config(run={"steps": 1}, eval={"every_steps": 1, "prompts": 4, "at_end": False}))
    asked: list[int] = []

    async def fail(request: GenerateRequest) -> None:
        if request.request.startswith("eval0/2/"):
            asked.append(world.clock.mono_ns())
            if len(asked) <= times:
                raise error("sabotage")

    world.pool[0].on_generate = fail
    world.go()
    assert world.ledger.breaches == []
    first = world.events(EvalCompleted)[0]
    assert (first.completed, first.failed) == ended
    assert len(asked) == (times if ended[1] else times + 1)
    assert len(set(asked)) == len(asked)


def test_a_reply_that_fills_the_context_ends_the_trajectory_there() -> None:
    """The conversation stops before the tokens that do not fit, and is scored as it stands."""
    world = World(
        config(
            run={"steps": 1}, rollout={"group_size": 4, "max_turns": 9, "max_tokens": 4, "context_tokens": 21}
        ),
        turns=9,
    )
    world.go()
    for event in world.events(TrajectoryCompleted):
        # three tokens each for the opening, an answer and a reply; 21 would leave no room for an answer
        assert (event.stop_reason, event.turns) == ("context_full", 3)
        assert event.prompt_tokens + event.completion_tokens == 18
    assert world.ledger.breaches == []


def test_every_turn_of_every_attempt_is_sampled_with_a_seed_of_its_own() -> None:
    """No two requests of a run share a seed."""
    world = World(config(run={"steps": 2}), turns=2)
    seeds: list[int] = []

    async def note(request: GenerateRequest) -> None:
        seeds.append(request.seed)

    world.pool[0].on_generate = note
    world.go()
    assert len(seeds) == 2 * 2 * 4 * 4
    assert len(set(seeds)) == len(seeds)


def test_an_engine_is_known_to_be_paused_before_it_is_asked_to_pause() -> None:
    """Otherwise requests would go on to an engine that drains, and it might never be empty."""
    world = World(config(engine={"sync_mode": "drain"}), engines=2)
    states: list[str] = []
    for engine in world.pool:
        pause = engine.pause

        async def pausing(mode: Any, pause: Any = pause, name: str = engine.name) -> None:
            world.bus.fold()
            states.append(world.view.engines.by_name[name].state)
            await pause(mode)

        engine.pause = pausing  # type: ignore[method-assign]
    world.go()
    assert states == ["paused"] * 12


def test_the_rows_of_a_batch_are_in_the_order_of_their_numbers() -> None:
    """Trajectory 10 of a group comes after trajectory 9, whenever either was complete."""
    world = World(config(run={"steps": 1}, rollout={"group_size": 12}))
    world.pool[0].seconds = lambda request: 1 + request.seed % 9
    world.go()
    (batch,) = world.learner.batches
    numbers = [int(row.trajectory.split("/")[1]) for row in batch.rows]
    assert numbers == [*range(12)] * 4
