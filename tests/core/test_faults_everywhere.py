"""One fault at every place of a run: whatever goes wrong wherever, the run ends, and its books are in order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from worlds import World, config

from eventrain.adapters.simulated.world import SimulatedEnvironment
from eventrain.core.ports import EngineGone, LearnerGone, PortError
from eventrain.events.record import Record
from eventrain.events.types import Blocked, EvalCompleted, InvariantBroken, StepCompleted, Unblocked

MODES = ["in_flight", "pause", "drain", "abort"]


class Boom(Exception):
    """A defect of an adapter."""


def small(mode: str = "in_flight", engines: int = 2, **sections: dict[str, Any]) -> World:
    """Return a run with every kind of event in it: evaluations, checkpoints, syncs, several turns."""
    settings: dict[str, dict[str, Any]] = {
        "run": {"steps": 3},
        "data": {"size": 40},
        "scheduler": {"groups_per_step": 2, "max_staleness": 1},
        "rollout": {"group_size": 2, "max_turns": 2},
        "engine": {"sync_mode": mode},
        "eval": {"every_steps": 2, "prompts": 2},
        "checkpoint": {"every_steps": 2},
    }
    world = World(config(**{**settings, **sections}), engines=engines, turns=2)
    for number, engine in enumerate(world.pool):
        engine.seconds = lambda request, n=number: 0.2 + (request.seed % 11) * 0.1 + n * 0.03  # type: ignore[misc]
    world.learner.seconds = 0.7
    return world


def sound(world: World) -> World:
    """Run `world`; fail unless it ended in time, with its books in order and a last event that says how."""
    closed: list[str] = []
    for port in [*world.pool, world.learner]:
        note_close(port, closed)
    world.go()
    assert world.outcome is not None
    assert world.log[-1].event.kind in ("run_finished", "run_failed")  # type: ignore[attr-defined]
    assert world.log[-1].mono < 300e9
    assert world.ledger.breaches == []
    assert not world.events(InvariantBroken)
    assert {*closed} == {*(engine.name for engine in world.pool), "learner"}
    opened = Counter(record.seq for record in world.records(Blocked))
    assert opened == Counter(event.blocked for event in world.events(Unblocked))
    return world


def note_close(port: Any, closed: list[str]) -> None:
    close = port.close

    async def noted() -> None:
        closed.append(getattr(port, "name", "learner"))
        await close()

    port.close = noted


def at(seq: int, act: Callable[[], None]) -> Callable[[Record], bool]:
    """Return a `stop_after` that never stops and does `act` when event `seq` was delivered."""

    def acting(record: Record) -> bool:
        if record.seq == seq:
            act()
        return False

    return acting


def length(mode: str) -> int:
    """Return how many events the run has without a fault."""
    return len(sound(small(mode)).log)


def stop_at(mode: str, seq: int) -> None:
    world = small(mode)
    world.stop_after = lambda record: record.seq >= seq
    sound(world)
    assert world.outcome is not None
    assert world.outcome.outcome in ("interrupted", "completed")
    assert world.ledger.groups["in_flight"] == world.ledger.groups["training"] == 0


def kill_at(mode: str, engine: int, seq: int, engines: int = 2) -> None:
    world = small(mode, engines)
    world.stop_after = at(seq, world.pool[engine].die)
    sound(world)
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert [event.version for event in world.events(StepCompleted)] == [1, 2, 3]
    assert [event.version for event in world.events(EvalCompleted)] == [0, 2, 3]


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_at_any_event_ends_the_run_in_order(mode: str) -> None:
    """A stop is clean wherever it falls; here at every 13th event."""
    for seq in range(0, length(mode), 13):
        stop_at(mode, seq)


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_killed_at_any_event_costs_nothing_but_time(mode: str) -> None:
    """Every step is trained and every evaluation made, one engine or two; here at every 19th event."""
    for seq in range(0, length(mode), 19):
        kill_at(mode, seq % 2, seq)
        kill_at(mode, 0, seq, engines=1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_stop_or_a_kill_at_every_single_event(mode: str) -> None:
    """The two above, at every event."""
    for seq in range(length(mode)):
        stop_at(mode, seq)
        kill_at(mode, seq % 2, seq)
        kill_at(mode, 0, seq, engines=1)


def two_faults(number: int) -> None:
    """Kill two of two engines at two events, or one and then stop."""
    chance = random.Random(number)
    world = small(chance.choice(MODES), engine={"sync_mode": chance.choice(MODES), "restarts_max": 2})
    first, second = chance.randrange(370), chance.choice([0, 1, 2, 5, 20, 100])
    victims, stop = chance.choices([0, 1], k=2), chance.random() < 0.3

    def act(record: Record) -> bool:
        if record.seq == first:
            world.pool[victims[0]].die()
        if record.seq == first + second:
            if stop:
                return True
            world.pool[victims[1]].die()
        return False

    world.stop_after = act
    slow = chance.choice([0.0, 0.3, 3.0])

    async def starting(version: int) -> None:
        await world.clock.sleep(slow)

    for engine in world.pool:
        engine.on_start = starting
    sound(world)
    assert world.outcome is not None
    assert world.outcome.outcome in (("interrupted", "completed") if stop else ("completed",))


def test_two_faults_at_any_two_events_leave_the_books_in_order() -> None:
    """Two engines lost, one engine lost twice, or a stop on top of a loss: 40 seeds."""
    for number in range(40):
        two_faults(number)


@pytest.mark.slow
def test_two_faults_at_many_pairs_of_events() -> None:
    """The same with 600 seeds."""
    for number in range(600):
        two_faults(number)


# What the ports raise

METHODS = {
    "engine": [
        "prepare",
        "start",
        "generate",
        "pause",
        "begin_update",
        "transfer",
        "finish_update",
        "resume",
        "close",
    ],
    "learner": ["start", "train", "publish", "checkpoint", "close"],
    "environment": ["reset", "step", "reward"],
}


class Saboteur:
    """Counts every call of every port, and makes one of them raise, before or after it took effect."""

    def __init__(self, world: World, call: int, error: type[BaseException], *, late: bool) -> None:
        self.call, self.error, self.late = call, error, late
        self.calls: list[str] = []
        for engine in world.pool:
            self.tap(engine, "engine")
        self.tap(world.learner, "learner")

        def environment() -> SimulatedEnvironment:
            made = SimulatedEnvironment(world.clock, turns=2)
            self.tap(made, "environment")
            return made

        world.environment = environment

    def tap(self, port: Any, kind: str) -> None:
        for method in METHODS[kind]:
            setattr(port, method, self.tapped(f"{kind}.{method}", getattr(port, method)))

    def tapped(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def tapped(*args: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            if number == self.call and not self.late:
                raise self.error("sabotage")
            answer = await call(*args)
            if number == self.call:
                raise self.error("sabotage")
            return answer

        return tapped


def sabotage(
    mode: str, error: type[BaseException], call: int, *, late: bool = False
) -> tuple[World, Saboteur]:
    world = small(mode)
    saboteur = Saboteur(world, call, error, late=late)
    return sound(world), saboteur


def check_defect(mode: str, call: int, *, late: bool) -> int:
    """Sabotage one call with a defect; return how many calls there were."""
    world, saboteur = sabotage(mode, Boom, call, late=late)
    assert world.outcome is not None
    if call < 0 or saboteur.calls[call].startswith("environment"):
        assert world.outcome.outcome == "completed"
    else:
        assert (world.outcome.outcome, world.outcome.error) == ("failed", "Boom")
        assert isinstance(world.outcome.exception, Boom)
    return len(saboteur.calls)


@pytest.mark.parametrize("late", [False, True])
def test_a_defect_in_any_port_call_is_the_runs_first_cause(late: bool) -> None:
    """Whichever call raises what no adapter may raise: every intent has its end, and the outcome names it."""
    for call in range(0, check_defect("drain", -1, late=late), 5):
        check_defect("drain", call, late=late)


def check_typed(mode: str, error: type[BaseException], call: int) -> int:
    """Sabotage one call with an error of a port; return how many calls there were."""
    world, saboteur = sabotage(mode, error, call)
    assert world.outcome is not None
    outcome, name = (world.outcome.outcome, world.outcome.error), saboteur.calls[call] if call >= 0 else ""
    if name.endswith("close"):
        assert outcome == ("failed", error.__name__ if error is not asyncio.CancelledError else "PortError")
    elif name.startswith("learner") and (name != "learner.checkpoint" or error is LearnerGone):
        assert outcome == ("failed", "learner_lost")
    else:
        assert outcome == ("completed", "")
    return len(saboteur.calls)


@pytest.mark.parametrize("error", [asyncio.CancelledError, EngineGone, LearnerGone, PortError])
def test_a_typed_error_from_any_port_call_costs_an_attempt_an_engine_or_the_learner(
    error: type[BaseException],
) -> None:
    """Also a CancelledError that nobody asked for: it ends an attempt or an engine, and nobody waits for ever."""
    for call in range(0, check_typed("pause", error, -1), 7):
        check_typed("pause", error, call)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_error_from_every_single_port_call(mode: str) -> None:
    """The two above, for every call."""
    for call in range(check_typed(mode, PortError, -1)):
        check_defect(mode, call, late=False)
        check_defect(mode, call, late=True)
        for error in (asyncio.CancelledError, EngineGone, LearnerGone, PortError):
            check_typed(mode, error, call)
