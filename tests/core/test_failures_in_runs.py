"""What fails outside ends as a typed event; the run goes on, or ends with its first cause, and never waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from worlds import World, config

from eventrain.adapters.simulated.world import SimulatedEnvironment
from eventrain.core.ports import (
    CheckpointError,
    EngineError,
    EngineGone,
    GenerateRequest,
    LearnerGone,
    PromptRefused,
    PromptTooLong,
)
from eventrain.events.types import (
    BatchTaken,
    CheckpointCommitted,
    CheckpointFailed,
    DataExhausted,
    DeadlineExpired,
    EngineLost,
    EngineRestarted,
    EngineUp,
    EnvStepFinished,
    EvalCompleted,
    GroupDiscarded,
    GroupDispatched,
    GroupFailed,
    GroupFiltered,
    LlmCallFinished,
    LlmCallStarted,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RetryScheduled,
    RunFailed,
    RunFinished,
    StepCompleted,
    SyncFailed,
    TrajectoryCompleted,
    TrajectoryFailed,
)


async def hang(*_: Any) -> None:
    """Never return."""
    await asyncio.Event().wait()


def completed(world: World) -> bool:
    """Whether the run trained every step, and every law held."""
    assert world.ledger.breaches == []
    assert world.outcome is not None
    return world.outcome.outcome == "completed"


def group_of(request: GenerateRequest) -> str:
    return request.request.split("/")[0]


def test_a_prompt_that_fails_on_every_attempt_leaves_no_hole() -> None:
    """A refused prompt is quarantined at once and its target refilled: training never waits for it (S1)."""
    world = World(config(run={"steps": 8}))
    world.learner.seconds = 3.0

    async def refuse_13(request: GenerateRequest) -> None:
        if group_of(request) == "13":
            await world.clock.sleep(10)
            raise PromptTooLong("4000 tokens do not fit 1000")

    world.pool[0].on_generate = refuse_13
    assert completed(world.go())
    (failed,) = world.events(GroupFailed)
    (quarantined,) = world.events(PromptQuarantined)
    assert (failed.group, failed.failure, failed.blame) == (13, "prompt_too_long", "prompt")
    assert quarantined.index == 13
    target = next(e.target for e in world.events(GroupDispatched) if e.group == 13)
    refill = [e for e in world.events(GroupDispatched) if e.target == target and e.group > 15]
    assert len(refill) == 1


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
@pytest.mark.parametrize("delay_s", [0.5, 3, 6, 10, 60])
def test_a_failed_group_is_refilled_however_late_it_fails(staleness: int, delay_s: float) -> None:
    """Whatever version training has reached when a group fails, its target is filled again."""
    world = World(config(run={"steps": 6}, scheduler={"groups_per_step": 4, "max_staleness": staleness}))

    async def refuse(request: GenerateRequest) -> None:
        if group_of(request) in ("3", "9", "14"):
            await world.clock.sleep(delay_s)
            raise PromptTooLong("too long")

    world.pool[0].on_generate = refuse
    assert completed(world.go())
    assert len(world.events(PromptQuarantined)) == 3


def test_an_engine_error_is_tried_again_and_not_charged_to_the_prompt() -> None:
    """Two engine errors cost two retries with a doubling delay, no strike and no group."""
    world = World(config(failures={"backoff_s": 0.5}))
    failures = Counter[str]()

    async def twice(request: GenerateRequest) -> None:
        trajectory = request.request.split("+")[0].rsplit("/", 1)[0]
        if trajectory == "2/1" and failures[trajectory] < 2:
            failures[trajectory] += 1
            raise EngineError("connection reset")

    world.pool[0].on_generate = twice
    assert completed(world.go())
    assert [event.delay_s for event in world.events(RetryScheduled)] == [0.5, 1.0]
    assert not world.events(GroupFailed)
    assert not world.view.prompts.strikes


def test_an_environment_that_raises_is_retried_then_set_aside_then_quarantined() -> None:
    """Attempts are counted per trajectory, strikes per item, and an item with too many strikes is not drawn again."""
    world = World(
        config(
            run={"steps": 6},
            data={"kind": "generated", "size": 8, "epochs": 6},
            failures={"attempts_max": 2, "strikes_max": 2, "backoff_s": 0.1},
        )
    )

    async def broken(item: dict[str, int], seed: int, turn: int) -> None:
        if item["number"] == 1:
            raise RuntimeError("division by zero in the tool")

    world.environment = lambda: SimulatedEnvironment(world.clock, on_step=broken)
    assert completed(world.go())
    assert {event.failure for event in world.events(TrajectoryFailed)} <= {"env_error", "cancelled"}
    assert "RuntimeError: division by zero in the tool" in world.events(GroupFailed)[0].message
    assert len(world.events(GroupFailed)) == 2
    assert [event.reason for event in world.events(PromptReturned)] == ["failed"]
    (quarantined,) = world.events(PromptQuarantined)
    assert quarantined.index == 1


def test_only_completed_trajectories_are_trained() -> None:
    """A failed attempt is never a row, and never a reward in its group's baseline (S15)."""
    world = World()

    async def sometimes(request: GenerateRequest) -> None:
        if request.seed % 5 == 0:
            raise EngineError("connection error")

    world.pool[0].on_generate = sometimes
    assert completed(world.go())
    assert world.events(TrajectoryFailed)
    ended = {event.trajectory for event in world.events(TrajectoryCompleted)}
    for batch in world.learner.batches:
        assert {row.trajectory for row in batch.rows} <= ended
        assert len(batch.rows) == 16


@pytest.mark.parametrize("call", ["reset", "step", "reward"])
def test_an_environment_call_that_hangs_expires_and_is_retried(call: str) -> None:
    """Each environment call has its own deadline; its expiry is an event and a typed failure (S3)."""
    limits = {"env_reset_s": 5, "env_step_s": 6, "reward_s": 7}
    world = World(config(deadlines=limits, failures={"backoff_s": 0.1}))
    hung: list[int] = []

    class Hanging(SimulatedEnvironment):
        async def reset(self, item: Any, seed: int) -> Any:
            opening = await super().reset(item, seed)
            await self._maybe("reset")
            return opening

        async def step(self, action: Any) -> Any:
            await self._maybe("step")
            return await super().step(action)

        async def reward(self) -> float:
            await self._maybe("reward")
            return await super().reward()

        async def _maybe(self, name: str) -> None:
            if name == call and self._item["number"] == 2 and not hung:
                hung.append(1)
                await hang()

    world.environment = lambda: Hanging(world.clock)
    assert completed(world.go())
    (expired,) = world.events(DeadlineExpired)
    name = {"reset": "env_reset", "step": "env_step", "reward": "reward"}[call]
    assert (expired.effect, expired.limit_s) == (name, limits[f"{name}_s"])
    (failed,) = world.events(TrajectoryFailed)
    assert failed.failure == ("reward_expired" if call == "reward" else "env_expired")
    assert [e.outcome for e in world.events(EnvStepFinished) if e.outcome != "completed"] == ["expired"]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "high"])
def test_a_reward_that_is_no_finite_number_is_a_typed_failure(reward: object) -> None:
    """NaN never reaches a baseline: it is a reward_error, counted and retried."""
    world = World(config(failures={"attempts_max": 1, "strikes_max": 1}))
    world.environment = lambda: SimulatedEnvironment(
        world.clock,
        score=lambda item, seed: reward if item["number"] == 2 else 1.0,  # type: ignore[arg-type,return-value]
    )
    assert completed(world.go())
    failures = {event.failure for event in world.events(TrajectoryFailed)}
    assert "reward_error" in failures
    assert failures <= {"reward_error", "cancelled"}


def test_too_many_failures_end_the_run_with_the_first_one() -> None:
    """When the share of failures in the window passes the limit, the run fails and names the first cause."""
    world = World(config(failures={"share_max": 0.5, "window": 20, "backoff_s": 0.1}))

    async def broken(*_: Any) -> None:
        raise ValueError("no such tool")

    world.environment = lambda: SimulatedEnvironment(world.clock, on_step=broken)
    world.go()
    (failed,) = world.events(RunFailed)
    assert failed.error == "too_many_failures"
    assert "ValueError: no such tool" in failed.message
    first = world.records(TrajectoryFailed)[0]
    assert failed.first_cause == first.seq
    assert not world.events(BatchTaken)


def test_a_lost_engine_is_restarted_at_the_current_version() -> None:
    """What it held is tried elsewhere, and it serves again only with the published weights (S7, S14)."""
    world = World(config(run={"steps": 10}), engines=2)

    async def die_once(request: GenerateRequest) -> None:
        if group_of(request) == "17" and not world.records(EngineLost):
            world.pool[1].die()

    world.pool[0].on_generate = world.pool[1].on_generate = die_once
    slow = 5.0

    async def slow_start(version: int) -> None:
        await world.clock.sleep(slow if version else 0.5)

    world.pool[1].on_start = slow_start
    assert completed(world.go())
    (lost,) = world.records(EngineLost)
    (restarted,) = world.events(EngineRestarted)
    assert (restarted.engine, restarted.restart) == ("engine-1", 1)
    up = [record for record in world.records(EngineUp) if record.seq > lost.seq]
    published = [r for r in world.log if r.event.kind == "weights_published" and r.seq < up[0].seq]  # type: ignore[attr-defined]
    assert up[0].event.version == published[-1].event.version  # type: ignore[attr-defined]
    while_down = [r for r in world.records(LlmCallStarted) if lost.seq < r.seq < up[0].seq]
    assert while_down
    assert {record.event.engine for record in while_down} == {"engine-0"}  # type: ignore[attr-defined]


def test_the_run_fails_with_the_engines_first_error_when_none_is_left() -> None:
    """With every engine dead and no restart left, the run ends within seconds and names the engine's own error."""
    world = World(config(engine={"restarts_max": 1}), engines=2)
    since: list[float] = []

    async def broken(request: GenerateRequest) -> None:
        if int(group_of(request)) >= 6:
            since.append(world.clock.mono_ns() / 1e9)
            raise EngineGone("CUDA error: an illegal memory access was encountered")

    world.pool[0].on_generate = world.pool[1].on_generate = broken
    world.go()
    (failed,) = world.events(RunFailed)
    assert failed.error == "no_engine_left"
    assert "illegal memory access" in failed.message
    assert world.log[-1].mono / 1e9 - since[0] < 30
    assert len(world.events(EngineRestarted)) == 2


@pytest.mark.parametrize("mode", ["in_flight", "pause", "abort"])
def test_an_engine_that_does_not_take_weights_is_lost_not_paused_for_ever(mode: str) -> None:
    """A sync that hangs expires; the engine is replaced, and the others train on (S12)."""
    world = World(
        config(engine={"sync_mode": mode}, deadlines={"weight_sync_s": 4}, run={"steps": 8}), engines=2
    )

    async def hang_at_3(version: int) -> None:
        if version == 3 and not world.records(SyncFailed):
            await hang()

    world.pool[1].on_load = hang_at_3
    assert completed(world.go())
    (failed,) = world.events(SyncFailed)
    assert (failed.engine, failed.version, failed.outcome) == ("engine-1", 3, "expired")
    assert world.view.engines.by_name["engine-1"].state == "serving"


def test_a_completion_that_never_comes_expires() -> None:
    """An engine call has a deadline; the trajectory is tried again."""
    world = World(config(deadlines={"llm_call_s": 20}), engines=1)

    async def hang_once(request: GenerateRequest) -> None:
        if request.request == "5/2/0":
            await hang()

    world.pool[0].on_generate = hang_once
    assert completed(world.go())
    assert [e.outcome for e in world.events(LlmCallFinished) if e.outcome != "completed"] == ["expired"]


def test_a_learner_that_dies_ends_the_run_with_its_words() -> None:
    """LearnerGone is the run's first cause."""
    world = World()

    async def die(batch: Any) -> None:
        if batch.step == 3:
            raise LearnerGone("the gradient of lm_head.weight is not finite")

    world.learner.on_train = die
    world.go()
    assert world.outcome is not None
    assert (world.outcome.outcome, world.outcome.steps) == ("failed", 3)
    (failed,) = world.events(RunFailed)
    assert (failed.failed_actor, failed.error) == ("trainer", "learner_lost")
    assert "not finite" in failed.message


def test_a_training_step_that_hangs_ends_the_run() -> None:
    """The learner's step has a deadline, and its effect is unknown: the run ends rather than train it twice."""
    world = World(config(deadlines={"train_step_s": 100}))
    world.learner.on_train = hang
    world.go()
    (failed,) = world.events(RunFailed)
    assert failed.error == "learner_lost"
    assert "no end within 100 s" in failed.message


def test_a_failed_checkpoint_costs_nothing_but_itself() -> None:
    """The run goes on, the log says which checkpoint failed and why."""
    world = World(config(checkpoint={"every_steps": 2}))

    async def full(path: str) -> None:
        if path.endswith("/2"):
            raise CheckpointError("no space left on device")

    world.learner.on_checkpoint = full
    assert completed(world.go())
    (failed,) = world.events(CheckpointFailed)
    assert (failed.version, failed.message) == (2, "no space left on device")
    assert [e.version for e in world.events(CheckpointCommitted)] == [4, 6]


def test_an_evaluation_that_takes_too_long_ends_and_training_goes_on() -> None:
    """Its deadline is an event, its outcome is expired, and what it had counts (S11)."""
    world = World(config(eval={"every_steps": 3, "prompts": 6}, deadlines={"eval_s": 30, "llm_call_s": 1000}))

    async def hang_in_eval(request: GenerateRequest) -> None:
        if request.request.startswith("eval1/4/"):
            await hang()

    world.pool[0].on_generate = hang_in_eval
    assert completed(world.go())
    outcomes = [(e.outcome, e.completed, e.failed) for e in world.events(EvalCompleted)]
    assert outcomes == [("completed", 6, 0), ("expired", 5, 1), ("completed", 6, 0)]


@pytest.mark.parametrize(
    ("dull", "outcome", "sizes"),
    [((3, 11, 12), "completed", [4, 4, 4, 4, 1]), ((3, 5, 11, 12), "data_exhausted", [4, 4, 4, 4])],
)
def test_the_end_of_the_data_is_a_short_step_or_a_clean_end(
    dull: tuple[int, ...], outcome: str, sizes: list[int]
) -> None:
    """With groups filtered, prompts run out: what there is is trained, and missing steps are no success (S4)."""
    world = World(
        config(
            run={"steps": 5},
            data={"kind": "generated", "size": 20},
            algorithm={"drop_zero_variance": True},
        )
    )
    world.environment = lambda: SimulatedEnvironment(
        world.clock, score=lambda item, seed: 1.0 if item["number"] in dull else float(seed % 97)
    )
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == outcome
    assert world.events(DataExhausted)
    assert len(world.events(GroupFiltered)) == len(dull)
    assert [len(e.groups) for e in world.events(BatchTaken)] == sizes
    assert world.ledger.breaches == []
    assert world.ledger.prompts["trained"] == sum(sizes)


@pytest.mark.parametrize(
    "kind", ["learner_up", "engine_up", "step_started", "sync_started", "eval_started", "group_buffered"]
)
def test_ctrl_c_ends_the_run_cleanly_wherever_it_is(kind: str) -> None:
    """The step that runs is finished and saved, every group is accounted for, and the last event says interrupted."""
    world = World(config(eval={"every_steps": 2, "prompts": 50}, run={"steps": 50}))
    world.stop_after = lambda record: record.event.kind == kind  # type: ignore[attr-defined]
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "interrupted"
    assert isinstance(world.log[-1].event, RunFinished)
    assert world.outcome.seconds < 15
    assert world.ledger.breaches == []
    assert world.ledger.groups["in_flight"] == world.ledger.groups["training"] == 0
    assert len(world.events(GroupDiscarded)) == world.ledger.groups["discarded"]
    if world.events(StepCompleted):
        assert world.events(CheckpointCommitted)[-1].version == world.events(StepCompleted)[-1].version


def test_prompts_of_discarded_groups_are_returned() -> None:
    """A prompt that was drawn and not trained goes back; none is lost."""
    world = World(config(run={"steps": 50}))
    world.stop_after = lambda record: record.event.kind == "step_completed"  # type: ignore[attr-defined]
    world.go()
    returned = {event.prompt for event in world.events(PromptReturned)}
    assert len(returned) == len(world.events(GroupDiscarded))
    drawn = {event.prompt for event in world.events(PromptDrawn)}
    accounted = world.ledger.prompts["trained"] + world.ledger.prompts["alive"] + len(returned)
    assert len(drawn) == accounted


def test_messages_that_the_template_refuses_are_the_prompts_own_failure() -> None:
    """A refusal by the chat template quarantines the prompt; it is no defect that ends the run."""
    world = World()
    accepted = world.renderer.opening

    def opening(messages: Any) -> list[int]:
        if messages[0].content == "{'number': 2}":
            raise PromptRefused("the chat template refuses a second system message")
        return accepted(messages)

    world.renderer.opening = opening  # type: ignore[method-assign]
    assert completed(world.go())
    (quarantined,) = world.events(PromptQuarantined)
    assert (quarantined.index, quarantined.failure) == (2, "refused")


@pytest.mark.parametrize("items", [2, 5])
def test_a_run_whose_every_prompt_fails_is_no_success(items: int) -> None:
    """When the data ends before the window of attempts is full, the share of failures is judged on what there is."""
    world = World(
        config(
            run={"steps": 2},
            data={"kind": "generated", "size": items, "epochs": 4},
            failures={"attempts_max": 1, "strikes_max": 1, "window": 64},
        )
    )

    async def broken(*_: Any) -> None:
        raise ValueError("no such tool")

    world.environment = lambda: SimulatedEnvironment(world.clock, on_step=broken)
    world.go()
    (failed,) = world.events(RunFailed)
    assert failed.error == "too_many_failures"
    assert failed.first_cause == world.records(TrajectoryFailed)[0].seq
