"""Stalls are reported when they become true, with their chain; a healthy run is never called stalled."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from legacy import ForgetfulPermits, hole_behind_the_window
from worlds import World, config

from eventrain.adapters.simulated.world import SimulatedEnvironment
from eventrain.core.projections.outstanding import Durations
from eventrain.core.waits import Waiter
from eventrain.events.types import (
    EngineLost,
    GroupDispatched,
    InvariantBroken,
    RunFailed,
    StallCleared,
    StallDetected,
    StepCompleted,
    SyncFailed,
    SyncStarted,
    Unblocked,
)

S1 = (
    "trainer waits buffer_ready(3)",
    "target 3 short by 1",
    "prompt 13 failed, permanent: prompt too long",
    "collector waits version(4)",
    "trainer",
)


async def hang(*_: Any) -> None:
    """Never return."""
    await asyncio.Event().wait()


def stalls(world: World, kind: str | None = None) -> list[StallDetected]:
    return [event for event in world.events(StallDetected) if kind in (None, event.stall_kind)]


def miss_a_wakeup(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Make the collector sleep for ever in its first wait at version 2, as one that lost a wakeup does."""
    until, missed = Waiter.until, []

    async def misses_one(self: Waiter, ready: Any, edge: Any, **options: Any) -> Any:
        self.bus.fold()
        if self.actor == "collector" and not missed and world.view.trainer.version == 2 and not ready():
            missed.append(True)
            async with self._blocked(edge(), None, self.actor):
                await hang()
        return await until(self, ready, edge, **options)

    monkeypatch.setattr(Waiter, "until", misses_one)


# Deadlock


def test_a_hole_behind_the_window_is_proven_at_the_event_after_which_nothing_can_move() -> None:
    """S1: the legacy policy stalls, and the very next event says so, at the same instant and with the whole chain."""
    world = hole_behind_the_window(legacy=True).go()
    detected = world.records(StallDetected)[0]
    assert detected.event.stall_kind == "deadlock"
    assert detected.event.chain == S1
    assert detected.event.sentence == "nothing can move: " + " <- ".join(S1)
    before = world.log[detected.seq - 1]
    assert before.mono == detected.mono
    after = world.log[detected.seq + 1]
    assert after.mono - detected.mono > 7000 * 10**9  # only the deadline of the trainer's wait ends it
    failed = world.log[detected.event.first_cause]
    assert (failed.event.kind, failed.event.group) == ("group_failed", 13)


def test_the_state_at_the_proof_is_the_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1 and S18: version 3, target 3 with three of four, target 4 full, and nothing in flight."""
    world = hole_behind_the_window(legacy=True, on_stall="abort").go()
    at = world.records(StallDetected)[0].seq
    dispatched = [e for e in world.events(GroupDispatched) if e.target >= 3]
    assert [e.target for e in dispatched] == [3] * 4 + [4] * 4
    assert len([r for r in world.log[:at] if isinstance(r.event, StepCompleted)]) == 3


def test_the_shipped_policy_does_not_stall_there() -> None:
    """The same prompt costs the shipped policy a refill and no report."""
    world = hole_behind_the_window(legacy=False).go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert stalls(world) == []


def test_abort_ends_the_run_with_the_chain_and_the_first_cause() -> None:
    """With on_stall = "abort" a proven deadlock is the run's failure, at once."""
    world = hole_behind_the_window(legacy=True, on_stall="abort").go()
    (failed,) = world.events(RunFailed)
    (detected,) = stalls(world)
    assert (failed.error, failed.message) == ("deadlock", detected.sentence)
    assert failed.first_cause == detected.first_cause
    assert world.log[-1].mono - world.records(StallDetected)[0].mono < 10**9
    assert world.ledger.breaches == []


@pytest.mark.parametrize(
    ("staleness", "recovers_s", "stalls_s"), [(1, 3.0, 3.5), (2, 6.0, 6.5), (4, 10.0, 10.5)]
)
def test_a_hole_that_shows_in_time_is_refilled_by_the_legacy_policy_too(
    staleness: int, recovers_s: float, stalls_s: float
) -> None:
    """A report follows only where the hole is really out of sight: both sides of the bound, for three windows."""
    in_time = hole_behind_the_window(legacy=True, staleness=staleness, fails_after_s=recovers_s).go()
    too_late = hole_behind_the_window(
        legacy=True, staleness=staleness, fails_after_s=stalls_s, on_stall="abort"
    )
    assert stalls(in_time) == []
    assert [stall.stall_kind for stall in stalls(too_late.go())] == ["deadlock"]


def test_a_stop_clears_a_deadlock() -> None:
    """StallCleared names the event from outside that set the run in motion again."""
    world = hole_behind_the_window(legacy=True)
    world.stop_after = lambda record: isinstance(record.event, StallDetected)
    world.go()
    (cleared,) = world.events(StallCleared)
    assert world.log[cleared.by].event.kind == "stop_requested"
    assert world.outcome is not None
    assert world.outcome.outcome == "interrupted"


def test_a_waiter_that_sleeps_although_its_predicate_is_true_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S2: a collector that misses one wakeup is reported as asleep, a second after everything else came to rest."""
    world = World(config(watchdog={"on_stall": "abort"}))
    miss_a_wakeup(monkeypatch, world)
    world.go()
    (stall,) = stalls(world)
    assert stall.stall_kind == "deadlock"
    assert stall.chain[-1] == ("collector asleep although its decision is due: predicate true, waiter asleep")
    at = world.records(StallDetected)[0]
    assert at.mono - world.log[at.seq - 1].mono == 10**9


# Overdue


@pytest.mark.parametrize("mode", ["drain", "pause", "in_flight", "abort"])
def test_an_engine_that_does_not_take_weights_is_named_long_before_its_deadline(mode: str) -> None:
    """S12: a reply that never comes is overdue, and the report names the engine; its loss clears the report."""
    world = World(config(engine={"count": 4, "sync_mode": mode}), engines=4)

    async def stuck(version: int) -> None:
        if version == 3:
            await hang()

    world.pool[3].on_load = stuck
    world.go()
    (stall,) = stalls(world)
    assert stall.stall_kind == "overdue"
    assert stall.chain[0] == "trainer in weight_sync"
    assert stall.chain[-1].startswith("weight sync of version 3 at engine-3 for 450 s")
    detected, failed = world.records(StallDetected)[0], world.records(SyncFailed)[0]
    started = next(r for r in world.records(SyncStarted) if r.event.version == 3)
    assert detected.mono - started.mono == pytest.approx(450e9, rel=0.01)
    assert failed.mono - detected.mono == pytest.approx(150e9, rel=0.01)
    (cleared,) = world.events(StallCleared)
    assert cleared.by == failed.seq


def test_a_restart_that_hangs_names_the_engine_and_why_it_was_lost() -> None:
    """S7: trajectories wait for an engine, the engine for its restart, and the report has both and the first error."""
    world = World(config(run={"steps": 6}))
    engine = world.pool[0]

    async def starts_once(version: int) -> None:
        if version > 1:
            await hang()

    engine.on_start = starts_once

    async def dies(request: Any) -> None:
        if request.request.startswith("13/"):
            engine.die()

    engine.on_generate = dies
    world.go()
    late = stalls(world, "overdue")[0]
    lost = world.events(EngineLost)[0]
    assert any("engine start at engine-0" in link for link in late.chain)
    assert late.chain[-1] == f"engine-0 was lost: {lost.message}"


def test_an_answer_that_never_comes_is_overdue_with_its_group_and_the_usual_time() -> None:
    """What is late is measured against what the finished ones of its kind took."""
    world = World(config(run={"steps": 8}, rollout={"group_size": 16}))

    async def stuck(request: Any) -> None:
        if request.request == "20/1/0":
            await hang()

    world.pool[0].on_generate = stuck
    world.go()
    (stall,) = stalls(world)
    assert stall.chain[0] == "trainer waits buffer_ready(5)"
    assert stall.chain[1] == "group 20 for step 5 in flight"
    assert "llm call of 20/1 at engine-0 for 60 s" in stall.chain[2]
    assert "99 % of" in stall.chain[2]
    (cleared,) = world.events(StallCleared)
    assert world.log[cleared.by].event.outcome == "expired"


# Livelock, degraded, silent loss


def test_groups_that_are_filtered_for_ever_are_a_livelock() -> None:
    """Attempts end and end, no group is of use: reported with what became of them."""
    world = World(
        config(
            data={"kind": "generated", "size": 100_000},
            algorithm={"drop_zero_variance": True, "filtered_max": 0},
            watchdog={"on_stall": "abort", "livelock_s": 20},
        )
    )
    world.environment = lambda: SimulatedEnvironment(world.clock, score=lambda item, seed: 1.0)
    world.go()
    (stall,) = stalls(world)
    assert stall.stall_kind == "livelock"
    assert "groups filtered" in stall.chain[-1]
    assert world.outcome is not None
    assert world.outcome.message == stall.sentence


def test_a_run_whose_permits_starve_the_engines_is_degraded() -> None:
    """S13: occupancy and the limiting resource are named, and the report is cleared when use rises or the run ends."""
    world = World(
        config(scheduler={"groups_per_step": 4, "permits": 1}, rollout={"group_size": 4}), engines=4
    )
    for engine in world.pool:
        engine.seconds = lambda request: 30.0
    world.go()
    found = stalls(world, "degraded")
    assert len(found) == 1
    assert "of 256 slots, less than 25 % for" in found[0].chain[1]
    assert found[0].chain[2].startswith("limited by permits: 1/1 in flight; of their trajectories")


def test_a_collector_that_sleeps_while_a_last_call_goes_on_is_degraded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While anything is outstanding nothing is proven, but a collector that sleeps on due work is named."""
    world = World(config())
    miss_a_wakeup(monkeypatch, world)

    async def slow(request: Any) -> None:
        if request.request == "14/0/0":
            await world.clock.sleep(500)

    world.pool[0].on_generate = slow
    world.stop_after = lambda record: isinstance(record.event, StallDetected)
    world.go()
    (stall, *_) = stalls(world, "degraded")
    assert stall.chain[2].startswith("limited by the collector: groups are due, and it waits version(")


def test_calls_that_stick_to_one_engine_are_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    """S13: sticky routing is named with the engine that holds the calls and those that idle."""
    monkeypatch.setattr(
        "eventrain.core.engine_pool.route", lambda engines: next(iter(engines.serving()), None)
    )
    world = World(config(rollout={"group_size": 16}), engines=8)
    for engine in world.pool:
        engine.slots = 8
        engine.seconds = lambda request: 200.0
    world.go()
    (stall, *_) = stalls(world, "degraded")
    assert stall.chain[2].startswith("limited by routing: engine-0 holds 128 calls in 8 slots, and engine-1")


def test_a_policy_that_admits_one_group_at_a_time_is_no_false_deadlock() -> None:
    """A slow policy is not a stalled one: the run completes and no deadlock is ever called."""
    world = World(config(run={"steps": 4}), policy=ForgetfulPermits()).go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert stalls(world, "deadlock") == []


def test_a_breach_of_the_accounting_is_a_silent_loss() -> None:
    """A group that vanishes from the books is reported with the event that broke the law."""
    world = World(config(run={"steps": 3}))

    def lose(record: Any) -> bool:
        if isinstance(record.event, StepCompleted) and record.event.step == 0:
            world.bus.publish("collector", GroupDispatched(group=2, prompt=0, target=9, version=0, size=4))
        return False

    world.stop_after = lose
    world.go()
    found = stalls(world, "silent_loss")
    broken = world.events(InvariantBroken)[0]
    assert found[0].first_cause == broken.broken_by
    assert f"broken by seq {broken.broken_by}" in found[0].chain[-1]


# No false alarm


def healthy(seed: int, steps: int) -> World:
    """Return a world without faults and with heavy tails, up to two thirds of an environment's deadline."""
    draw = random.Random(seed)
    engines, size = draw.choice([1, 2, 4]), draw.choice([2, 4])
    world = World(
        config(
            run={"steps": steps},
            scheduler={"groups_per_step": draw.choice([2, 4]), "max_staleness": draw.choice([0, 1, 2, 4])},
            rollout={"group_size": size, "max_turns": 3},
            engine={"sync_mode": draw.choice(["drain", "pause", "in_flight", "abort"])},
            eval={"every_steps": draw.choice([0, 3])},
            checkpoint={"every_steps": draw.choice([0, 2])},
        ),
        engines=engines,
        turns=draw.choice([1, 3]),
    )
    median_s, sigma = draw.choice([0.3, 3.0, 20.0]), draw.choice([0.3, 0.8, 1.2])
    calls, steps_s = random.Random(seed + 1), draw.choice([1.0, 30.0, 900.0])
    for engine in world.pool:
        engine.seconds = lambda request: min(550.0, median_s * calls.lognormvariate(0, sigma))
    world.learner.seconds = steps_s

    async def slow(*_: Any) -> None:
        await world.clock.sleep(min(40.0, 0.05 * calls.paretovariate(1.3)))

    async def slow_step(*_: Any) -> None:
        await world.clock.sleep(min(600.0, 0.1 * steps_s * calls.paretovariate(1.5)))

    world.environment = lambda: SimulatedEnvironment(world.clock, turns=world.turns, on_step=slow)
    world.learner.on_train = slow_step
    return world


def alarms(seed: int, steps: int) -> list[str]:
    world = healthy(seed, steps).go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    return [f"seed {seed}: {stall.sentence}" for stall in stalls(world)]


def test_healthy_runs_are_never_called_stalled() -> None:
    """30 seeds with heavy-tailed latencies and no fault: not one report."""
    assert [line for seed in range(30) for line in alarms(seed, 4)] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_healthy_runs_are_never_called_stalled() -> None:
    """2,000 such seeds: not one report."""
    assert [line for seed in range(1000, 3000) for line in alarms(seed, 4)] == []


def test_a_sync_that_drains_long_calls_is_not_overdue() -> None:
    """In this world an engine is drained for 450 s, by calls that take as long as calls take there."""
    assert healthy(5364, 4).config.engine.sync_mode == "drain"
    assert alarms(5364, 4) == []


def test_the_watchdog_adds_no_event_to_a_healthy_run() -> None:
    """Without a stall it publishes nothing, and waits in the log under nobody's name."""
    world = World().go()
    assert {record.actor for record in world.log if record.actor == "watchdog"} == set()
    assert not [event for event in world.events(Unblocked) if event.waiter == "watchdog"]


def test_the_usual_time_is_never_understated() -> None:
    """A quantile of the durations seen is rounded up, by an eighth at most."""
    seen, draw = Durations(), random.Random(3)
    took = sorted(round(draw.lognormvariate(20, 2)) for _ in range(5000))
    for ns in took:
        seen.add(ns)
    for share in (0.01, 0.5, 0.99, 1.0):
        exact = took[round(share * 5000) - 1] / 1e9
        assert exact <= seen.quantile_s(share) <= exact * 1.126
    assert Durations().quantile_s(0.99) == 0.0
