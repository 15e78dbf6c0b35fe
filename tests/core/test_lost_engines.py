"""An engine that is lost costs time: not the run, not an evaluation, not the weights that another one is reading."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worlds import World, config

from eventrain.core.ports import EngineGone, GenerateRequest
from eventrain.events.types import (
    Blocked,
    EngineLost,
    EngineRestarted,
    EvalCompleted,
    EvalStarted,
    PhaseEntered,
    RunFailed,
    StepCompleted,
    SyncAcknowledged,
    SyncFailed,
    TrajectoryFailed,
    WeightsPublished,
)


def outcome(world: World) -> str:
    """Return how the run ended, its books being in order."""
    assert world.ledger.breaches == []
    assert world.outcome is not None
    return world.outcome.outcome


def test_attempts_that_fall_with_an_engine_do_not_count_as_failures_of_the_run() -> None:
    """The only engine dies with more attempts in flight than the window holds; it is restarted, and the run goes on."""
    world = World(config(failures={"window": 8, "share_max": 0.25}))

    async def die_once(request: GenerateRequest) -> None:
        if request.request.startswith("7/") and not world.records(EngineLost):
            world.pool[0].die()

    world.pool[0].on_generate = die_once
    world.go()
    assert outcome(world) == "completed"
    assert len([e for e in world.events(TrajectoryFailed) if e.failure == "engine_lost"]) > 8


def test_a_restart_that_takes_longer_than_a_call_may_is_waited_for() -> None:
    """Waiting for an engine is no call: with llm_call_s far below a start, nothing fails but what was in flight."""
    world = World(config(deadlines={"llm_call_s": 5, "start_s": 100}))

    async def slow_start(version: int) -> None:
        await world.clock.sleep(60)

    async def die_once(request: GenerateRequest) -> None:
        if request.request.startswith("7/") and not world.records(EngineLost):
            world.pool[0].die()

    world.pool[0].on_start, world.pool[0].on_generate = slow_start, die_once
    world.go()
    assert outcome(world) == "completed"
    (lost,) = world.records(EngineLost)
    late = [r for r in world.records(TrajectoryFailed) if r.mono > lost.mono + 1e9]
    assert late == []


def test_when_no_engine_comes_back_in_time_the_attempts_end_as_lost() -> None:
    """The wait for an engine has its deadline, after which the attempt is tried again."""
    world = World(config(deadlines={"llm_call_s": 5, "start_s": 20, "close_s": 5, "weight_sync_s": 5}))
    starts: list[int] = []

    async def second_start_hangs(version: int) -> None:
        starts.append(version)
        if len(starts) == 2:
            await asyncio.Event().wait()
        await world.clock.sleep(10)

    async def die_once(request: GenerateRequest) -> None:
        if request.request.startswith("7/") and not world.records(EngineLost):
            world.pool[0].die()

    world.pool[0].on_start, world.pool[0].on_generate = second_start_hangs, die_once
    world.go()
    assert outcome(world) == "completed"
    messages = {e.message for e in world.events(TrajectoryFailed) if e.failure == "engine_lost"}
    assert "no engine served within 25 s" in messages


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_engine_that_is_still_starting_is_one_to_hope_for(restarts: int) -> None:
    """One engine fails at once and for good while the other still loads: the run waits for the other."""
    world = World(config(engine={"restarts_max": restarts}), engines=2)

    async def fail(version: int) -> None:
        raise EngineGone("no such device")

    async def slow(version: int) -> None:
        await world.clock.sleep(50)

    world.pool[0].on_start, world.pool[1].on_start = fail, slow
    world.go()
    assert outcome(world) == "completed"
    assert len(world.events(EngineRestarted)) == restarts


def test_the_run_ends_once_the_last_engine_to_hope_for_is_lost_too() -> None:
    """Both fail for good: the run ends with the first one's words, and not before the second one failed."""
    world = World(config(engine={"restarts_max": 0}), engines=2)

    async def fail(version: int) -> None:
        raise EngineGone("no such device")

    async def fail_late(version: int) -> None:
        await world.clock.sleep(50)
        raise EngineGone("out of memory")

    world.pool[0].on_start, world.pool[1].on_start = fail, fail_late
    world.go()
    (failed,) = world.events(RunFailed)
    assert failed.error == "no_engine_left"
    assert "engine-0: no such device" in failed.message
    assert world.log[-1].mono > 50e9


def test_weights_that_a_starting_engine_reads_are_kept_until_it_has_them() -> None:
    """An engine takes 15 s to start while steps take 2: the file that it was told to read is not removed under it."""
    world = World(config(run={"steps": 12}), engines=2)
    reading: list[str] = []

    async def slow_start(version: int) -> None:
        reading.append(f"weights/{version}")
        await world.clock.sleep(15)
        assert reading[-1] not in world.artifacts.dropped
        reading.clear()

    world.pool[1].on_start = slow_start
    world.go()
    assert outcome(world) == "completed"
    assert world.events(StepCompleted)[-1].step == 11
    dropped = [path for path in world.artifacts.dropped if path.startswith("weights")]
    assert dropped == [f"weights/{version}" for version in range(12)]


def test_an_evaluation_that_is_due_waits_for_an_engine() -> None:
    """The only engine is lost just before the last evaluation: it is made all the same, of the last version."""
    world = World(config(run={"steps": 4}, eval={"every_steps": 2, "prompts": 3}))

    async def slow_start(version: int) -> None:
        await world.clock.sleep(20 if version else 0)

    async def die_at_the_last(version: int) -> None:
        if version == 4:
            world.pool[0].die()

    world.pool[0].on_start, world.pool[0].on_load = slow_start, die_at_the_last
    world.go()
    assert outcome(world) == "completed"
    assert [event.version for event in world.events(EvalCompleted)] == [0, 2, 4]
    awaited = "an engine to evaluate version 4"
    (wait,) = [record for record in world.records(Blocked) if record.event.awaited == awaited]  # type: ignore[attr-defined]
    assert wait.event.edge == "engine_available"  # type: ignore[attr-defined]
    phase = [r for r in world.records(PhaseEntered) if r.seq < wait.seq][-1]
    assert phase.event.phase == "eval"  # type: ignore[attr-defined]
    assert world.records(EvalStarted)[-1].mono - wait.mono > 15e9


def test_before_the_first_engine_is_up_the_run_is_starting() -> None:
    """The wait for the first evaluation is not booked as evaluation."""
    world = World(config(run={"steps": 2}, eval={"every_steps": 2, "prompts": 3}))

    async def slow_start(version: int) -> None:
        await world.clock.sleep(20)

    world.pool[0].on_start = slow_start
    world.go()
    assert outcome(world) == "completed"
    assert world.view.trainer.phase_seconds()["starting"] > 20


@pytest.mark.parametrize(
    ("mode", "part"),
    [
        ("drain", "pause"),
        ("pause", "pause"),
        ("abort", "pause"),
        ("pause", "begin_update"),
        ("pause", "transfer"),
        ("pause", "finish_update"),
        ("pause", "resume"),
        ("in_flight", "begin_update"),
        ("in_flight", "finish_update"),
    ],
)
def test_a_sync_does_not_reach_into_an_engines_next_life(mode: str, part: str) -> None:
    """The engine dies and is back in the middle of a sync: the sync fails, the new life has the weights already."""
    world = World(config(engine={"sync_mode": mode}), engines=2)
    engine = world.pool[1]
    original = getattr(engine, part)
    reached: list[int] = []

    async def interrupted(*args: Any) -> Any:
        if not world.records(SyncFailed) and engine._in_flight:
            engine.die()  # whoever has a call there says so, and the pool starts it anew
            await world.clock.sleep(5)
            reached.append(1)
        return await original(*args)

    setattr(engine, part, interrupted)
    engine.seconds = lambda request: 1.0 + request.seed % 7
    world.learner.seconds = 0.1
    world.go()
    assert outcome(world) == "completed"
    (failed,) = world.events(SyncFailed)
    assert (failed.engine, failed.outcome, reached) == ("engine-1", "lost", [])
    assert world.view.engines.by_name["engine-1"].state == "serving"
    acknowledged = [e.version for e in world.events(SyncAcknowledged) if e.engine == "engine-1"]
    assert failed.version not in acknowledged
    assert len(world.events(WeightsPublished)) == 7


def test_a_stop_does_not_wait_for_a_sync_that_hangs() -> None:
    """Weights are of no use to a run that ends: the sync is given up at once."""
    world = World(config(run={"steps": 50}))

    async def hang(version: int) -> None:
        await asyncio.Event().wait()

    world.pool[0].on_load = hang
    world.stop_after = lambda record: record.event.kind == "sync_started"  # type: ignore[attr-defined]
    world.go()
    assert outcome(world) == "interrupted"
    (failed,) = world.events(SyncFailed)
    assert failed.outcome == "cancelled"
    assert world.outcome is not None
    assert world.outcome.seconds < 15
