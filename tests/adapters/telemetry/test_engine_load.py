"""Engines that count their own load are asked while they serve, and what they say becomes events and metrics."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from told_runs import ToldRun
from worlds import World, config

from eventrain.adapters.telemetry.engine_load import DEADLINE_S, FAILURES_MAX, EngineLoadSampler
from eventrain.adapters.telemetry.metrics.meter import Meter
from eventrain.core.ports import EngineError
from eventrain.events.types import EngineRestarted, EngineSampled, SyncRetried, TelemetryDegraded


def sample(engine: str = "engine-0", **figures: Any) -> EngineSampled:
    usual = {"running": 3, "waiting": 1, "kv_used": 0.5, "preemptions": 0, "prompt_tokens": 0, "sampled_tokens": 0}
    return EngineSampled(engine=engine, **{**usual, **figures})


def watched(answers: Any, interval_s: float = 1.0) -> World:
    """Return a world whose first engine answers as `answers` does, which has been sampled to its end."""
    world = World(config(run={"steps": 20}), engines=2)
    world.pool[0].sampled = answers  # type: ignore[attr-defined]

    go = world._go

    async def both() -> Any:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(go())
            await asyncio.sleep(0)  # the run is made in the first turn of the loop
            sampler = EngineLoadSampler(world.bus, world.clock, world.pool, interval_s, world.view)
            assert [engine.name for engine in sampler.engines] == ["engine-0"]
            tasks.create_task(sampler.run())
        return running.result()

    world._go = both  # type: ignore[method-assign]
    return world.go()


def test_an_engine_is_asked_while_it_serves() -> None:
    """Each answer is one event, none before the engine is up, and none after the run has ended."""

    async def answers() -> EngineSampled:
        return sample()

    world = watched(answers)
    samples = world.records(EngineSampled)
    assert len(samples) > 3
    assert samples[0].mono >= 1e9
    assert all(later.mono - sooner.mono == 1e9 for sooner, later in pairwise(samples))
    assert world.log[-1].event.kind == "run_finished"  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_an_engine_that_does_not_answer_is_given_up_and_the_run_goes_on(how: str) -> None:
    """After a few failures in a row it is not asked any more, and one event says so."""
    asked: list[float] = []

    async def answers() -> EngineSampled:
        asked.append(world_now())
        if how == "hangs":
            await asyncio.Event().wait()
        raise EngineError("no such page")

    def world_now() -> float:
        return asyncio.get_running_loop().time()

    world = watched(answers, interval_s=0.1)
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert len(asked) == FAILURES_MAX
    pause_s = 0.1 + (DEADLINE_S if how == "hangs" else 0.0)
    assert asked[-1] - asked[0] == pytest.approx((FAILURES_MAX - 1) * pause_s)
    why = f"no answer within {DEADLINE_S:g} s" if how == "hangs" else "no such page"
    assert [event.missing for event in world.events(TelemetryDegraded)] == [f"load of engine-0: {why}"]


def test_counts_go_on_when_an_engine_begins_again_at_zero() -> None:
    """Preemptions and tokens of a former life stay counted; gauges are those of the last sample."""
    told = ToldRun()
    told.begin()
    meter = Meter()
    told.publish("telemetry", sample(preemptions=2, prompt_tokens=100, cached_tokens=40, sampled_tokens=30))
    told.publish("telemetry", sample(preemptions=3, prompt_tokens=150, cached_tokens=60, sampled_tokens=50))
    told.publish("engine_pool", EngineRestarted(engine="engine-0", restart=1))
    told.publish("telemetry", sample(preemptions=1, prompt_tokens=10, sampled_tokens=7, waiting=0, kv_used=0.25))
    told.publish("weight_sync", SyncRetried(engine="engine-0", version=1, attempt=1, message="a hiccup"))
    for record in told.records:
        meter.apply(record)
    values = meter.snapshot(meter.last_mono).values
    assert values["rl_engine_preemptions_total"] == {("engine-0",): 4}
    assert values["rl_engine_tokens_total"] == {
        ("engine-0", "prompt"): 160, ("engine-0", "cached"): 60, ("engine-0", "sampled"): 57,
    }  # fmt: skip
    assert values["rl_engine_requests"] == {("engine-0", "running"): 3, ("engine-0", "waiting"): 0}
    assert values["rl_engine_kv_cache_usage_ratio"] == {("engine-0",): 0.25}
    assert values["rl_weight_sync_retries_total"] == {(): 1}

