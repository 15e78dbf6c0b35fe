"""Stalls of the field, by doubles that had the fault: reported with their cause, and not with the shipped code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import legacy
import pytest
from worlds import World, config

from eventrain.adapters.cli.scenario_file import load_scenario
from eventrain.adapters.clock import SystemClock
from eventrain.adapters.simulated.judge import judge
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.simulated.world import SimulatedEnvironment
from eventrain.core.engine_pool import route
from eventrain.core.ports import EngineError, GenerateRequest
from eventrain.core.projections import View
from eventrain.core.stalls import nothing_moves, unheard
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    EngineLost,
    EvalCompleted,
    StallCleared,
    StallDetected,
    StopRequested,
    WeightsPublished,
)

SCENARIOS = Path(__file__).parent.parent / "scenarios"


def stalls(world: World, kind: str | None = None) -> list[StallDetected]:
    return [event for event in world.events(StallDetected) if kind in (None, event.stall_kind)]


def outcome(world: World) -> str:
    assert world.outcome is not None
    return world.outcome.outcome


def sound(world: World) -> bool:
    """Return whether the run was completed, without a report and without a breach."""
    return outcome(world) == "completed" and not stalls(world) and not world.ledger.breaches


def at_first_report(do: Callable[[], object]) -> Callable[[Record], bool]:
    """Return a hook that calls `do` when the first stall is reported, and never asks for a stop."""
    done: list[object] = []

    def look(record: Record) -> bool:
        if isinstance(record.event, StallDetected) and not done:
            done.append(do())
        return False

    return look


# S13: degraded, not dead


def thirty_two_permits(**sections: dict[str, Any]) -> World:
    """Return a world with 4 engines and 32 permits, whose rollouts keep half of the slots busy."""
    scheduler = {"groups_per_step": 16, "max_staleness": 1, "permits": 32, **sections.pop("scheduler", {})}
    world = World(config(scheduler=scheduler, **sections), engines=4)
    for engine in world.pool:
        engine.slots = 64
        engine.seconds = lambda request: 30.0
    return world


def test_32_permits_keep_four_engines_busy() -> None:
    """Shipped: not one report, with staleness 1 and without, and with fewer slots than calls."""
    assert sound(thirty_two_permits().go())
    assert sound(thirty_two_permits(scheduler={"groups_per_step": 32, "max_staleness": 0}).go())
    crowded = thirty_two_permits()
    for engine in crowded.pool:
        engine.slots = 16
    assert sound(crowded.go())


def test_one_group_for_each_that_ends_is_degraded_by_its_dispatch() -> None:
    """After the first barrier one of 32 permits is used; the report says so, and ends when the policy is cured."""
    world = thirty_two_permits(run={"steps": 4}, scheduler={"groups_per_step": 32, "max_staleness": 0})
    world.policy = legacy.OneForOne(cured=2)
    world.go()
    (stall,) = stalls(world)
    assert stall.stall_kind == "degraded"
    assert stall.chain == (
        "trainer waits buffer_ready(1)",
        "engines use 4 of 256 slots, less than 25 % for 120 s",
        "limited by dispatch: 1 of 32 permits are used and groups are missing, but the policy starts none",
    )
    (cleared,) = world.records(StallCleared)
    second = next(r for r in world.records(WeightsPublished) if r.event.version == 2)
    assert cleared.seq > second.seq
    assert world.log[cleared.event.by].event.kind == "llm_call_started"
    assert outcome(world) == "completed"


def test_a_call_that_sticks_to_one_of_four_engines_is_degraded_by_its_routing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One engine of four is busy, which is a quarter; what counts is that calls queue there. Cured, the report ends."""
    world = thirty_two_permits()
    for engine in world.pool:
        engine.slots = 16
    monkeypatch.setattr("eventrain.core.engine_pool.route", legacy.route_to_the_first)
    world.stop_after = at_first_report(lambda: monkeypatch.setattr("eventrain.core.engine_pool.route", route))
    world.go()
    (stall,) = stalls(world)
    assert stall.stall_kind == "degraded"
    assert stall.chain[1].startswith("engines use 16 of 64 slots, while ")
    assert stall.chain[1].endswith(" calls queue for 120 s")
    assert stall.chain[2].startswith("limited by routing: engine-0 holds ")
    assert stall.chain[2].endswith("calls in 16 slots, and engine-1, engine-2, engine-3 hardly any")
    assert len(world.events(StallCleared)) == 1
    assert outcome(world) == "completed"


def test_a_pool_of_connections_smaller_than_the_permits_is_degraded_by_the_way_to_the_engines() -> None:
    """By the calls that are open half of the slots are in use, but 8 of 128 calls get through. Widened, it ends."""
    world, connections = thirty_two_permits(), asyncio.Semaphore(8)
    world.pool = [legacy.FewConnections(engine, connections) for engine in world.pool]  # type: ignore[misc]

    def widen() -> None:
        for _ in range(128):
            connections.release()

    world.stop_after = at_first_report(widen)
    world.go()
    (stall,) = stalls(world)
    assert stall.stall_kind == "degraded"
    assert "of 256 slots, less than 25 % for" in stall.chain[1]
    assert stall.chain[2].startswith("limited by the way to the engines: ")
    assert "calls are open, and no engine has them for 75 % of their time" in stall.chain[2]
    (cleared,) = world.records(StallCleared)
    assert cleared.mono - world.records(StallDetected)[0].mono < 240 * 10**9
    assert outcome(world) == "completed"


# Proven at the event


def test_nothing_lies_between_the_cause_of_a_deadlock_and_its_report() -> None:
    """Folded up to the event before the report nothing can move, and one event earlier something still could."""
    world = legacy.hole_behind_the_window(legacy=True, on_stall="abort").go()
    at = world.records(StallDetected)[0].seq
    for upto, proven in ((at, True), (at - 1, False)):
        view = View()
        for record in world.log[:upto]:
            view.apply(record)
        assert (nothing_moves(view) and not unheard(view)) is proven


def test_a_deadlock_is_reported_at_once_in_real_time() -> None:
    """On asyncio's own loop and clock less than 100 ms lie between the last event and the report."""
    world = legacy.hole_behind_the_window(legacy=True, on_stall="abort", clock=SystemClock(), scale=0.1)
    world.outcome = asyncio.run(world._go())
    assert world.outcome.error == "deadlock"
    detected = world.records(StallDetected)[0]
    assert detected.mono - world.log[detected.seq - 1].mono < 100_000_000


# The other cases


@pytest.mark.parametrize("shipped", [False, True], ids=["legacy", "shipped"])
def test_a_step_that_waits_for_more_than_the_data_has(shipped: bool) -> None:
    """S4: ten prompts for steps of four; the legacy trainer waits for two more, and the end of the data is named."""
    policy = None if shipped else legacy.WholeStepsOnly()
    world = World(config(run={"steps": 5}, watchdog={"on_stall": "abort"}), items=10, policy=policy).go()
    if shipped:
        assert outcome(world) == "data_exhausted"
        assert [len(event.groups) for event in world.events(BatchTaken)] == [4, 4, 2]
        assert not stalls(world)
        return
    (stall,) = stalls(world, "deadlock")
    assert stall.chain == (
        "trainer waits buffer_ready(2)",
        "target 2 short by 2",
        "collector waits drained",
        "the data has ended after 10 prompts",
    )


@pytest.mark.parametrize(("per_step", "rejected"), [(2, [0]), (3, [])], ids=["rejected", "rounded"])
def test_two_gates_stall_where_one_does_not(per_step: int, rejected: list[int]) -> None:
    """S9: two workers at S = 0, of a step of two the first result rejected, or of a step of three the share rounded."""

    def world(policy: Any) -> World:
        made = World(
            config(
                run={"steps": 3},
                scheduler={"groups_per_step": per_step, "max_staleness": 0, "policy": "capacity"},
                algorithm={"drop_zero_variance": True},
                watchdog={"on_stall": "abort"},
            ),
            engines=2,
            policy=policy,
        )
        made.environment = lambda: SimulatedEnvironment(
            made.clock, score=lambda item, seed: 0.0 if item["number"] in rejected else float(seed % 97)
        )
        return made.go()

    (stall,) = stalls(world(legacy.TwoGates()))
    assert stall.stall_kind == "deadlock"
    assert stall.chain[:2] == ("trainer waits buffer_ready(0)", "target 0 short by 1")
    assert stall.chain[-2:] == ("collector waits version(1)", "trainer")
    assert ("prompt 0 filtered: zero variance" in stall.chain) is bool(rejected)
    assert sound(world(None))


def test_a_last_version_that_is_never_published_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """S10: the evaluation after the last step waits for weights that the trainer keeps; the report says which."""

    def world() -> World:
        return World(config(eval={"every_steps": 3, "prompts": 4}))

    assert sound(world().go())
    monkeypatch.setattr("eventrain.core.trainer.decide", legacy.without_last_publish)
    stopped = world()
    stopped.stop_after = lambda record: isinstance(record.event, StallDetected)
    (stall,) = stalls(stopped.go())
    assert stall.stall_kind == "overdue"
    assert stall.chain[1].startswith("publish of weights 6 at learner for 450 s")


def test_an_evaluation_that_needs_the_permits_of_training_is_named() -> None:
    """S11: groups keep their permits until a step that the evaluation holds up; its own calls are what is overdue."""

    def world(permits: int) -> World:
        made = World(config(eval={"every_steps": 2, "prompts": 8}), engines=2)
        made.pool = [legacy.SharedPermits(engine, made, permits) for engine in made.pool]  # type: ignore[misc]
        return made

    stopped = world(permits=4)
    stopped.stop_after = lambda record: isinstance(record.event, StallDetected)
    stall, *_ = stalls(stopped.go())
    assert stall.stall_kind == "overdue"
    assert stall.chain[0] == "trainer in eval"
    assert stall.chain[1].startswith("llm call of eval")
    unbounded = world(permits=10**9).go()
    assert sound(unbounded)
    assert {event.outcome for event in unbounded.events(EvalCompleted)} == {"completed"}


def test_a_pause_without_a_lease_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """S12: the reply of one of four engines is lost. With the lease it is lost and the run goes on; without, named."""

    def world() -> World:
        made = World(config(engine={"count": 4, "sync_mode": "pause"}), engines=4)

        async def stuck(version: int) -> None:
            if version == 3:
                await asyncio.Event().wait()

        made.pool[3].on_load = stuck
        return made

    shipped = world().go()
    assert outcome(shipped) == "completed"
    assert [event.engine for event in shipped.events(EngineLost)] == ["engine-3"]
    monkeypatch.setattr("eventrain.core.waits.Waiter.bounded", legacy.without_lease)
    stopped = world()

    async def stop_a_day_later() -> None:
        await stopped.clock.sleep(86_400)
        stopped.run.bus.publish("run", StopRequested(reason="interrupted"))

    days: list[asyncio.Task[None]] = []
    stopped.on_bus = lambda bus: days.append(asyncio.get_running_loop().create_task(stop_a_day_later()))
    stopped.go()
    (stall,) = stalls(stopped)
    assert stall.stall_kind == "overdue"
    assert stall.chain[-1].startswith("weight sync of version 3 at engine-3 for 450 s")
    assert stopped.events(EngineLost) == []
    assert outcome(stopped) == "interrupted"


def failing(world: World, *, error: Callable[[], Exception]) -> World:
    """Let the first call of trajectories 1 and 2 of group 2 fail, as soon as it is made."""

    async def fail(request: GenerateRequest) -> None:
        if request.request in ("2/1/0", "2/2/0"):
            raise error()

    for engine in world.pool:
        engine.on_generate = fail
    return world


def test_an_error_that_becomes_a_row_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """S15: two of four calls fail; as rows with reward 0 they are a silent loss, which names the call that failed."""

    def world() -> World:
        made = World(config(watchdog={"on_stall": "abort"}))
        return failing(made, error=lambda: EngineError("connection reset")).go()

    assert sound(world())
    monkeypatch.setattr("eventrain.core.rollout.Rollouts.run", legacy.errors_are_rows)
    broken = world()
    (stall,) = stalls(broken, "silent_loss")
    assert "law 'trajectory' broken by seq" in stall.chain[-1]
    assert "2/1: llm call failed: connection reset" in stall.chain[-1]
    assert broken.outcome is not None
    assert broken.outcome.error == "silent_loss"


def test_a_worker_whose_exception_nobody_awaits_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """S16: its trajectory neither runs nor waits. Legacy: proven within a second of rest; shipped: the run's end."""

    def world() -> World:
        made = World(config(watchdog={"on_stall": "abort"}))
        return failing(made, error=lambda: ZeroDivisionError("a defect")).go()

    shipped = world()
    assert shipped.outcome is not None
    assert shipped.outcome.error == "ZeroDivisionError"
    assert shipped.log[-1].mono - shipped.log[-2].mono < 10**9
    monkeypatch.setattr("eventrain.core.rollout.Rollouts.run", legacy.swallows)
    broken = world()
    (stall,) = stalls(broken)
    assert stall.stall_kind == "deadlock"
    assert "group 2 in flight" in stall.chain
    assert stall.chain[-1] == "2/1, and 1 more neither runs nor waits: its task has ended without a word"
    detected = broken.records(StallDetected)[0]
    assert detected.mono - broken.log[detected.seq - 1].mono == 10**9


def test_an_attempt_that_is_not_fenced_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """S17: the first attempt expired, and its result comes after the second one's: named, and not trained."""

    def world() -> World:
        made = World(config(watchdog={"on_stall": "abort"}, deadlines={"llm_call_s": 10}))

        async def slow(request: GenerateRequest) -> None:
            if request.request == "2/1/0":
                await made.clock.sleep(14)

        made.pool[0].on_generate = slow
        return made.go()

    assert sound(world())
    monkeypatch.setattr("eventrain.core.rollout.Rollouts.run", legacy.not_fenced)
    (stall,) = stalls(world(), "silent_loss")
    assert "law 'trajectory' broken" in stall.chain[-1]
    assert "('2/1', 0, 2) ended and was not open" in stall.chain[-1]


def test_a_window_behind_the_version_stalls_a_resumed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """S5: with the step that is due whole and the next one short at the kill, the legacy policy never fills it."""
    scenario = load_scenario(SCENARIOS / "s05_resume_with_a_warm_buffer.toml")
    assert judge(simulate(scenario, Tape(0))) is None
    monkeypatch.setattr("eventrain.core.run.policy_for", lambda config: legacy.WindowBehind())
    broken = [judge(simulate(scenario, Tape(seed))) for seed in range(24)]
    assert "never stalls" in {one.law for one in broken if one is not None}
