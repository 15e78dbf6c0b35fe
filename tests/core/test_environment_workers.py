"""Environments that live in workers: where they go, and what becomes of a run whose workers die."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from worlds import World, config

from eventrain.adapters.simulated.reproduce import reproduce
from eventrain.adapters.simulated.world import NumberedPrompts, SimulatedEnvironment
from eventrain.core import environment_pool
from eventrain.core.chain import flying_links
from eventrain.core.failures import RunFailure
from eventrain.core.policies import policy_for
from eventrain.core.ports import Action, EnvironmentWorkerGone, GenerateRequest, StepOutcome
from eventrain.core.projections import View
from eventrain.core.projections.worker_life import WorkerLife
from eventrain.core.replay.check import check
from eventrain.core.replay.verdict import Agreement, Divergence
from eventrain.core.stalls import nothing_moves
from eventrain.core.watchdog import due_actors
from eventrain.events.record import Record
from eventrain.events.types import (
    Blocked,
    DeadlineExpired,
    EngineLost,
    EnvironmentWorkerLost,
    EnvironmentWorkerRestarted,
    EnvironmentWorkerUp,
    EnvStepFinished,
    EnvStepStarted,
    Event,
    PromptQuarantined,
    RunFailed,
    RunResumed,
    RunStarted,
    StallDetected,
    TrajectoryFailed,
    Unblocked,
)


def two_workers(**sections: dict[str, Any]) -> World:
    """Return a run whose environments live in two workers and take half a second a turn."""
    sections["environment"] = {"workers": 2, **sections.get("environment", {})}
    world = World(config(**sections))
    world.environment = lambda: SimulatedEnvironment(world.clock, seconds=0.5)
    return world


def die_at_trajectory(world: World, trajectory: str, *workers: int) -> None:
    """Let workers die when an engine is asked for `trajectory`."""

    async def die_once(request: GenerateRequest) -> None:
        if request.request.startswith(f"{trajectory}/") and not world.records(EnvironmentWorkerLost):
            for number in workers:
                world.workers[number].die()

    world.pool[0].on_generate = die_once


def outcome(world: World) -> str:
    """Return how the run ended, its books being in order and no environment left behind."""
    assert world.ledger.breaches == []
    assert all(worker.held == set() and not worker.alive for worker in world.workers)
    assert world.view.environment_workers.held == {}
    assert world.outcome is not None
    return world.outcome.outcome


def view_of(*events: Event) -> View:
    """Return the state after `events`."""
    view = View()
    for seq, event in enumerate(events):
        view.apply(Record(seq, seq, seq, "test", None, "", event))
    return view


def up(*numbers: int) -> list[Event]:
    """Return the events by which workers come up."""
    return [EnvironmentWorkerUp(worker=f"environment-{number}") for number in numbers]


def lost(number: int, message: str = "gone") -> Event:
    """Return the event by which a worker is lost."""
    return EnvironmentWorkerLost(worker=f"environment-{number}", message=message)


def started(workers: int) -> Event:
    """Return the beginning of a run."""
    return RunStarted(
        run="test",
        config=config(environment={"workers": workers}).model_dump(mode="json"),
        code_version="",
        seed=0,
        host="",
        pid=0,
        prompts=10,
    )


def waits(*actors: str) -> list[Event]:
    """Return the events by which actors come to rest."""
    return [Blocked(waiter=actor, edge="work", awaited="", present="") for actor in actors]


def begun(trajectory: str, number: int) -> Event:
    """Return the event by which an environment comes to be in a worker."""
    return EnvStepStarted(trajectory=trajectory, turn=-1, call="reset", worker=f"environment-{number}")


def fell(trajectory: str) -> Event:
    """Return the end of an attempt."""
    return TrajectoryFailed(
        trajectory=trajectory,
        group=0,
        attempt=0,
        failure="env_error",
        retryable=True,
        blame="environment",
        message="",
    )


# Decisions


def test_a_new_environment_goes_to_the_worker_that_holds_the_fewest() -> None:
    """Ends of attempts give room, lost and starting workers take nothing, and equals are taken in order."""
    events = [*up(0, 1, 2), begun("0/0", 0), begun("0/1", 1), begun("0/2", 2), begun("0/3", 0)]
    for more, expected in (
        ([], "environment-1"),
        ([fell("0/0"), fell("0/3")], "environment-0"),
        ([lost(1)], "environment-2"),
    ):
        chosen = environment_pool.route(view_of(*events, *more).environment_workers)
        assert chosen is not None
        assert chosen.name == expected
    assert environment_pool.route(view_of(up(0)[0], lost(0)).environment_workers) is None


def test_a_lost_worker_is_restarted_within_its_budget() -> None:
    """Each loss is answered by one restart until `environment.restarts_max` is used up."""
    once = config(environment={"workers": 2, "restarts_max": 1})
    events = [*up(0, 1), lost(1)]
    (due,) = environment_pool.step(view_of(*events), once, 2)
    assert (due.worker, due.restart) == ("environment-1", 1)
    assert environment_pool.step(view_of(*events, due), once, 2) == []
    assert environment_pool.step(view_of(*events, due, up(1)[0], lost(1)), once, 2) == []


def test_the_run_ends_with_the_first_cause_once_no_worker_is_left_to_hope_for() -> None:
    """One that has not come up yet is one to hope for; when it fails too, the first one's words count."""
    never = config(environment={"workers": 2, "restarts_max": 0})
    events = [*up(1), lost(1, "out of memory")]
    assert environment_pool.step(view_of(*events), never, 2) == []
    with pytest.raises(RunFailure, match="environment-1: out of memory") as caught:
        environment_pool.step(view_of(*events, lost(0, "no such module")), never, 2)
    assert (caught.value.error, caught.value.first_cause) == ("no_environment_worker_left", 1)


def test_a_lost_worker_that_makes_an_environment_breaks_a_law() -> None:
    """What was there may still be asked, to learn of the loss; a new one may not come to be."""
    life = WorkerLife()
    step = EnvStepStarted(trajectory="0/0", turn=0, worker="environment-0")
    for event in (*up(0), begun("0/0", 0), lost(0), step):
        assert life.breach(event) is None
    assert life.breach(begun("0/1", 0)) is not None
    assert WorkerLife().breach(EnvironmentWorkerRestarted(worker="environment-0", restart=1)) is not None
    assert WorkerLife().breach(EnvStepStarted(trajectory="0/0", turn=-1, call="reset")) is None


def test_a_resumed_run_begins_with_no_worker_and_nothing_held() -> None:
    """The workers died with the process before; as many are to come up as the configuration says now."""
    resumed = RunResumed(step=0, version=0, config=config(environment={"workers": 3}).model_dump(mode="json"))
    workers = view_of(started(2), *up(0, 1), begun("0/0", 0), resumed).environment_workers
    assert (workers.by_name, workers.held, workers.count) == ({}, {}, 3)
    assert view_of(started(2), RunResumed(step=0, version=0)).environment_workers.count == 2


def test_starts_of_workers_are_outstanding_until_they_end() -> None:
    """From the beginning of the run, and again from a restart; how long the completed ones took is known."""

    def starting(*events: Event) -> list[str]:
        effects = view_of(started(2), *events).outstanding.open.values()
        return [effect.place for effect in effects if effect.kind == "environment_worker_start"]

    again = EnvironmentWorkerRestarted(worker="environment-1", restart=1)
    assert starting() == ["environment-0", "environment-1"]
    assert starting(*up(1)) == ["environment-0"]
    assert starting(*up(0), lost(1)) == []
    assert starting(*up(0), lost(1), again) == ["environment-1"]
    assert starting(RunResumed(step=0, version=0)) == ["environment-0", "environment-1"]
    done = view_of(started(2), *up(0), lost(1)).outstanding.finished
    assert done["environment_worker_start"].count == 1


def test_what_an_environment_is_asked_is_outstanding_at_its_worker() -> None:
    """Its place is the worker, and the controller is `environment`."""
    step = EnvStepStarted(trajectory="0/1", turn=0)
    effects = view_of(*up(0), begun("0/0", 0), step).outstanding.open.values()
    assert [(effect.kind, effect.place) for effect in effects] == [
        ("env_reset", "environment-0"),
        ("env_step", "environment"),
    ]


def test_nothing_moves_only_once_the_environment_pool_waits_too() -> None:
    """Where there are workers, the pool is one of those who may move."""
    others = ("trainer", "collector", "engine_pool")
    for workers, actors, expected in (
        (0, others, True),
        (2, others, False),
        (2, (*others, "environment_pool"), True),
    ):
        view = view_of(started(workers), *waits(*actors))
        view.outstanding.open.clear()
        assert nothing_moves(view) == expected


def test_a_restart_that_is_due_is_known_to_the_watchdog() -> None:
    """So is a trajectory whose worker is there by now; waiting for one that is not is no decision that is due."""
    here = config(environment={"workers": 1})
    waiting = Blocked(waiter="0/0", edge="environment_available", awaited="", present="")

    def due(*events: Event) -> list[str]:
        return due_actors(view_of(started(1), *events), here, policy_for(here), NumberedPrompts(10), -1)

    assert "environment_pool" in due(*up(0), lost(0))
    assert "environment_pool" not in due(*up(0))
    assert "0/0" in due(waiting, *up(0))
    assert "0/0" not in due(waiting, *up(0), lost(0))


# Runs


def test_environments_are_spread_over_the_workers_and_all_are_let_go() -> None:
    """A run without trouble: every call names its worker, both have their half, and nothing is left at the end."""
    world = two_workers(eval={"every_steps": 2, "prompts": 3}).go()
    assert outcome(world) == "completed"
    homes = [event.worker for event in world.events(EnvStepStarted) if event.call == "reset"]
    share = homes.count("environment-0") / len(homes)
    assert set(homes) == {"environment-0", "environment-1"}
    assert 0.45 < share < 0.55
    assert all(event.worker for event in world.events(EnvStepStarted))


def test_without_workers_there_is_no_pool() -> None:
    """Environments are made in the controller, and no event speaks of workers."""
    world = World(config()).go()
    assert outcome(world) == "completed"
    assert not any(event.worker for event in world.events(EnvStepStarted))
    assert not any(record.actor == "environment_pool" for record in world.log)


def test_what_a_dead_worker_held_is_made_again_elsewhere_and_held_against_nobody() -> None:
    """The run completes although not one failed trajectory in a hundred is allowed, and quarantines nothing."""
    world = two_workers(failures={"share_max": 0.001, "window": 8, "attempts_max": 1, "strikes_max": 1})
    die_at_trajectory(world, "7/2", 1)
    world.go()
    assert outcome(world) == "completed"
    failed = [event for event in world.events(TrajectoryFailed) if event.failure != "cancelled"]
    assert {(event.failure, event.blame, event.retryable) for event in failed} == {("env_lost", "infrastructure", True)}
    assert len(failed) > 2
    assert {event.message for event in failed} <= {"environment-1 died", "environment-1 is not running"}
    assert "lost" in {event.outcome for event in world.events(EnvStepFinished)}
    assert world.events(PromptQuarantined) == []
    assert [event.worker for event in world.events(EnvironmentWorkerLost)] == ["environment-1"]
    assert world.view.environment_workers.by_name["environment-1"].restarts == 1
    assert world.view.environment_workers.by_name["environment-1"].state == "up"


def test_a_lost_worker_has_ended_before_it_is_started_anew() -> None:
    """Its end takes 7 s; two lives of one worker never overlap."""
    world = two_workers()
    dead = world.workers[1]
    told: list[tuple[str, float]] = []
    close = dead.close

    async def closes_slowly() -> None:
        await world.clock.sleep(7)
        told.append(("closed", world.clock.mono_ns() / 1e9))
        await close()

    async def starts() -> None:
        told.append(("started", world.clock.mono_ns() / 1e9))

    dead.close, dead.on_start = closes_slowly, starts  # type: ignore[method-assign]
    die_at_trajectory(world, "1/2", 1)
    world.go()
    assert outcome(world) == "completed"
    assert [what for what, _ in told[:3]] == ["started", "closed", "started"]
    assert told[2][1] == told[1][1] > 7


def test_the_run_ends_when_all_workers_are_dead() -> None:
    """None may be restarted: the failure names the worker that was lost first, and points to that event."""
    world = two_workers(environment={"restarts_max": 0})
    die_at_trajectory(world, "7/2", 0, 1)
    world.go()
    assert outcome(world) == "failed"
    (failed,) = world.events(RunFailed)
    first = world.records(EnvironmentWorkerLost)[0]
    assert (failed.error, failed.failed_actor) == ("no_environment_worker_left", "environment_pool")
    assert failed.first_cause == first.seq
    assert first.event.message in failed.message  # type: ignore[attr-defined]


def test_a_worker_that_does_not_start_says_why() -> None:
    """The start's own error ends the run when it happens again and again."""
    world = two_workers(environment={"workers": 1, "restarts_max": 1})

    async def fail() -> None:
        raise EnvironmentWorkerGone("there is no module 'word_chain'")

    world.workers[0].on_start = fail
    world.go()
    assert outcome(world) == "failed"
    assert len(world.events(EnvironmentWorkerLost)) == 2
    assert world.events(RunFailed)[0].message.endswith("environment-0: there is no module 'word_chain'")


def test_attempts_wait_for_a_worker_by_name_and_the_chain_leads_to_it() -> None:
    """While the only worker starts anew, attempts wait for `environment_available`, and that is no stall."""
    world = two_workers(environment={"workers": 1})
    starts: list[int] = []

    async def slow_again() -> None:
        starts.append(1)
        await world.clock.sleep(40 if len(starts) > 1 else 0.1)

    world.workers[0].on_start = slow_again
    die_at_trajectory(world, "7/2", 0)
    links: list[list[str]] = []

    def look(record: Record) -> bool:
        if isinstance(record.event, Blocked) and record.event.edge == "environment_available" and starts[1:]:
            links.append(flying_links(world.view, None))
        return False

    world.stop_after = look
    world.go()
    assert outcome(world) == "completed"
    waited_s = [event.seconds for event in world.events(Unblocked) if event.edge == "environment_available"]
    assert len(waited_s) > 3
    assert max(waited_s) > 35
    expected = ["0/0 waits environment_available", "environment-0 restarting: environment-0 is not running"]
    assert expected in [link[1:] for link in links]
    assert world.events(StallDetected) == []


def test_when_no_worker_comes_back_in_time_the_attempts_end_as_lost() -> None:
    """The wait for a worker has its deadline, after which the attempt is made again."""
    world = two_workers(
        environment={"workers": 1}, deadlines={"env_reset_s": 5, "start_s": 20, "close_s": 5}
    )
    starts: list[int] = []

    async def second_start_hangs() -> None:
        starts.append(1)
        if len(starts) == 2:
            await asyncio.Event().wait()
        if len(starts) > 2:
            await world.clock.sleep(15)

    world.workers[0].on_start = second_start_hangs
    die_at_trajectory(world, "7/2", 0)
    world.go()
    assert outcome(world) == "completed"
    messages = {event.message for event in world.events(TrajectoryFailed) if event.failure == "env_lost"}
    assert "no environment worker was up within 25 s" in messages


@pytest.mark.parametrize("blocked", [True, False])
def test_a_worker_is_replaced_when_a_call_expires_and_it_does_not_answer_any_more(blocked: bool) -> None:
    """One environment hangs for ever: whether its worker goes with it depends on whether that still answers."""
    world = two_workers(deadlines={"env_step_s": 3}, failures={"strikes_max": 4})
    hangs, pings = [5, 11, 17], []

    class Hangs(SimulatedEnvironment):
        async def step(self, action: Action) -> StepOutcome:
            if self._item["number"] in hangs:
                hangs.remove(self._item["number"])
                await asyncio.Event().wait()
            return await SimulatedEnvironment.step(self, action)

    world.environment = lambda: Hangs(world.clock, seconds=0.5)

    async def answer() -> None:
        pings.append(1)
        if blocked:
            await asyncio.Event().wait()

    for worker in world.workers:
        worker.on_ping = answer
    world.go()
    assert outcome(world) == "completed"
    told = {event.message for event in world.events(EnvironmentWorkerLost)}
    expected = {"no answer within 3 s: something in an environment or a reward blocks it"}
    assert told == (expected if blocked else set())
    assert len(pings) == 3
    assert ("environment_worker_ping" in {event.effect for event in world.events(DeadlineExpired)}) == blocked


def test_environments_of_cancelled_attempts_are_let_go() -> None:
    """Groups end while their trajectories are in engines and environments, and a stop ends all others."""
    world = two_workers(scheduler={"policy": "windowed", "max_staleness": 1}, engine={"sync_mode": "in_flight"})
    world.pool[0].seconds = lambda request: 20.0 if request.seed % 17 == 0 else 1.0
    world.stop_after = lambda record: record.seq > 700
    world.go()
    assert outcome(world) == "interrupted"
    assert any(event.failure == "cancelled" for event in world.events(TrajectoryFailed))


# Replay


def trouble(kind: str) -> World:
    """Return a run with some trouble of its workers, at its end."""
    world = two_workers(environment={"restarts_max": 0 if kind == "all die" else 2}, deadlines={"env_step_s": 3})
    if kind == "one dies":
        die_at_trajectory(world, "7/2", 1)
    elif kind == "all die":
        die_at_trajectory(world, "7/2", 0, 1)
    elif kind == "a start hangs":
        world.workers[1].on_start = asyncio.Event().wait  # type: ignore[assignment]
    elif kind == "an engine dies too":
        die_at_trajectory(world, "7/2", 1)

        async def die(item: Mapping[str, Any], seed: int, turn: int) -> None:
            if item["number"] == 9 and not world.records(EngineLost):
                world.pool[0].die()

        world.environment = lambda: SimulatedEnvironment(world.clock, seconds=0.5, on_step=die)
    return world.go()


@pytest.mark.parametrize("kind", ["none", "one dies", "all die", "a start hangs", "an engine dies too"])
def test_the_decisions_of_such_a_run_are_made_again(kind: str) -> None:
    """Replay agrees with every restart, place and end, and the run is the same again from its log."""
    world = trouble(kind)
    assert isinstance(check(world.log), Agreement)
    found = reproduce(lambda: world.log)
    if kind == "all die":  # whether somebody still decides in the turn of the loop that ends the run is chance
        assert found.outcome is not None
        assert found.outcome.error == "no_environment_worker_left"
    else:
        assert found.difference is None
    assert found.answers.modelled == 0


def test_an_environment_in_another_worker_than_decided_is_a_divergence() -> None:
    """A log in which one environment was made where there were more is found out at that event."""
    log = list(trouble("none").log)
    place = next(
        number
        for number, record in enumerate(log)
        if isinstance(record.event, EnvStepStarted) and record.event.call == "reset" and number > 300
    )
    event = log[place].event
    assert isinstance(event, EnvStepStarted)
    other = "environment-1" if event.worker == "environment-0" else "environment-0"
    log[place] = log[place]._replace(event=event.model_copy(update={"worker": other}))
    found = check(log)
    assert isinstance(found, Divergence)
    assert found.seq == place
