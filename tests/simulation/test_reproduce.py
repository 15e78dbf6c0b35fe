"""A run is the same again from its log: every decision, and a stall at the same event."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from legacy import WindowBehind, hole_behind_the_window
from worlds import World, config

from eventrain.adapters.simulated.decisions import decision_of
from eventrain.adapters.simulated.reproduce import NotReproducible, Reproduction, reproduce
from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.core.ports import EngineGone, GenerateRequest
from eventrain.events.record import Record
from eventrain.events.types import (
    EngineRestarted,
    GroupDispatched,
    RunResumed,
    StallDetected,
    StepCompleted,
    TrajectoryCompleted,
)

POLICIES = ("targeted", "capacity", "windowed", "token_windowed")


def again(log: list[Record], **options: Any) -> Reproduction:
    """Return the run of `log` again."""
    return reproduce(lambda: log, keep=True, **options)


def varied(policy: str, **sections: dict[str, Any]) -> World:
    """Return a run in which answers take 0.2 to 3 s, two turns each, and the lag matters."""
    world = World(
        config(
            run={"steps": 10},
            scheduler={"policy": policy, "groups_per_step": 4, "max_staleness": 1},
            eval={"every_steps": 4, "prompts": 3},
            checkpoint={"every_steps": 5},
            **sections,
        ),
        engines=2,
        turns=2,
    )
    for engine in world.pool:
        engine.seconds = lambda request: 0.2 + 2.8 * (request.seed % 97 / 97) ** 3
        engine.length = lambda request: 1 + request.seed % 5
    world.learner.seconds = 0.7
    return world


# Stalls


def test_a_stall_appears_again_at_the_same_event_with_the_same_chain() -> None:
    """The policy that left the hole leaves it again: all decisions, the proof, and the end by the deadline."""
    log = hole_behind_the_window(legacy=True).go().log
    found = again(log, policy=WindowBehind())
    assert found.difference is None
    (recorded,), (now,) = found.stalls
    assert now == recorded
    assert isinstance(log[recorded.seq].event, StallDetected)
    assert found.answers.modelled == 0
    assert found.outcome is not None
    assert (found.outcome.outcome, found.outcome.error) == ("failed", "buffer_wait_expired")


def test_the_shipped_policy_takes_another_way_there_and_does_not_stall() -> None:
    """It refills the hole at the event at which the recorded run stood still, and goes on with modelled answers."""
    log = hole_behind_the_window(legacy=True).go().log
    found = again(log)
    difference = found.difference
    assert difference is not None
    assert difference.recorded is None
    assert difference.now is not None
    assert difference.now.text == "prompt_drawn prompt=20 epoch=0 index=20"
    stood_still = next(record for record in log if isinstance(record.event, StallDetected))
    assert difference.at_ns == stood_still.mono
    assert found.stalls[1] == []
    assert found.answers.modelled > 0
    assert found.outcome is not None
    assert (found.outcome.outcome, found.outcome.steps) == ("completed", 8)


def test_another_policy_than_the_recorded_one_is_told_by_its_first_decision() -> None:
    """A log of the shipped policy under the legacy one: what was recorded, what is decided now, and where."""
    log = hole_behind_the_window(legacy=False).go().log
    difference = again(log, policy=WindowBehind()).difference
    assert difference is not None
    assert difference.now is not None
    assert difference.now.text.startswith("stall_detected deadlock: trainer waits buffer_ready(3)")


# Runs


@pytest.mark.parametrize("policy", POLICIES)
def test_runs_of_every_policy_are_the_same_again(policy: str) -> None:
    """Groups that are whole, given up or masked, evaluations and checkpoints: nothing is modelled, nothing differs."""
    log = varied(policy).go().log
    found = again(log)
    assert found.difference is None
    assert found.comparison.same == len([record for record in log if decision_of(record)]) > 90
    assert found.answers.modelled == 0

    def facts(records: list[Record], kind: type) -> list[Any]:
        return [record.event.model_dump(exclude={"payload", "other_s"}) for record in records
                if isinstance(record.event, kind)]  # fmt: skip

    exact = {"queue_s", "llm_s", "env_s", "reward_s", "env_setup_s"}
    for before, now in zip(facts(log, TrajectoryCompleted), facts(found.records, TrajectoryCompleted), strict=True):
        assert {k: v for k, v in now.items() if k not in exact} == {k: v for k, v in before.items() if k not in exact}
    lags = [(event["lag_mean"], event["masked_tokens"]) for event in facts(log, StepCompleted)]
    assert [(event["lag_mean"], event["masked_tokens"]) for event in facts(found.records, StepCompleted)] == lags


def test_what_is_reproduced_is_the_same_again_itself() -> None:
    """The log that comes out of it is one that can be reproduced, with the times of the first."""
    log = varied("targeted").go().log
    once = again(log).records
    twice = again(once)
    assert twice.difference is None
    ends = [[record.mono for record in records if isinstance(record.event, StepCompleted)] for records in (log, once)]
    assert ends[0] == pytest.approx(ends[1], abs=1000)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_shuffles_the_schedule_around_the_recorded_outcomes(seed: int) -> None:
    """The stall does not hang on the order in which tasks of one instant run: it is there under other schedules."""
    log = hole_behind_the_window(legacy=True).go().log
    found = again(log, policy=WindowBehind(), seed=seed)
    assert [stall.stall for stall in found.stalls[1]] == [stall.stall for stall in found.stalls[0]]


def test_engines_that_die_are_lost_and_restarted_again() -> None:
    """A call that took its engine with it takes it again; its siblings' failures and the restart follow."""
    world = varied("targeted")

    async def die(request: GenerateRequest) -> None:
        if request.request == "9/1/0":
            await world.clock.sleep(0.5)
            raise EngineGone("out of memory")

    for engine in world.pool:
        engine.on_generate = die
    found = again(world.go().log)
    assert world.events(EngineRestarted)
    assert found.difference is None


def test_calls_that_never_ended_hang_until_their_deadlines_in_the_recorded_order() -> None:
    """An engine that answers nobody: the attempts expire one after the other, and their retries come in that order."""
    world = varied("targeted", deadlines={"llm_call_s": 20})

    async def hang(request: GenerateRequest) -> None:
        if request.request.startswith(("8/", "9/")) and "+" not in request.request:
            await asyncio.Event().wait()

    for engine in world.pool:
        engine.on_generate = hang
    found = again(world.go().log)
    assert found.difference is None
    assert found.answers.hung == 8


def test_an_interrupted_run_is_interrupted_again() -> None:
    """The request to stop comes after the same event as it did."""
    world = varied("windowed")
    world.stop_after = lambda record: isinstance(record.event, StepCompleted) and record.event.step == 4
    found = again(world.go().log)
    assert found.difference is None
    assert found.outcome is not None
    assert found.outcome.outcome == "interrupted"


def test_a_log_without_an_end_is_reproduced_as_far_as_it_goes() -> None:
    """Of a killed run nothing is asked that came after; what was decided until then is compared to the last."""
    log = varied("targeted").go().log
    for cut in (len(log) // 3, len(log) // 2):
        found = again(log[:cut])
        assert found.difference is None
        assert found.outcome is None
        assert found.comparison.same == len(found.comparison.recorded)


def test_of_a_resumed_run_the_last_life_is_reproduced() -> None:
    """It begins with the state that the lives before left behind, restored groups and all."""
    scenario = Scenario.model_validate(
        {
            "config": {
                "run": {"steps": 6},
                "scheduler": {"groups_per_step": 4},
                "rollout": {"group_size": 4},
                "checkpoint": {"every_steps": 2},
            },
            "fault": [{"where": "run", "what": "kill", "at_event": 900}],
        }
    )
    run = simulate(scenario, Tape(0, {}))
    resumed = next(record for record in run.records if isinstance(record.event, RunResumed))
    found = again(run.records)
    assert found.recording.lives == 2
    assert found.difference is None
    assert found.records[0].seq == resumed.seq
    assert found.outcome is not None
    assert found.outcome.outcome == "completed"


def test_a_log_of_nothing_is_refused() -> None:
    """Without its configuration nothing says what to run."""
    with pytest.raises(NotReproducible, match="does not begin with run_started"):
        again([])


def test_a_decision_that_was_changed_in_the_log_is_the_first_difference() -> None:
    """One dispatch for another step: told with what was recorded, what is decided now, and its place."""
    log = varied("targeted").go().log
    at = [n for n, record in enumerate(log) if isinstance(record.event, GroupDispatched)][20]
    changed = log[at].event.model_copy(update={"target": 99})
    difference = again([*log[:at], log[at]._replace(event=changed), *log[at + 1 :]]).difference
    assert difference is not None
    assert difference.recorded is not None
    assert difference.recorded.seq == at
    assert "target=99" in difference.recorded.text
    assert difference.now is not None
    assert difference.now.text == difference.recorded.text.replace("target=99", f"target={log[at].event.target}")
