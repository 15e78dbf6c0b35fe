"""Whole runs: they end, they account for everything, and they never train what is too old."""

from __future__ import annotations

import pytest
from worlds import World, config

from eventrain.core.projections import View
from eventrain.core.projections.accounting import Ledger
from eventrain.events.types import (
    BatchTaken,
    Blocked,
    CheckpointCommitted,
    EvalCompleted,
    GroupDispatched,
    LlmCallFinished,
    PhaseEntered,
    RunFinished,
    RunStarted,
    StepCompleted,
    SyncAcknowledged,
    TrajectoryCompleted,
    Unblocked,
    WeightsPublished,
)


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
@pytest.mark.parametrize("engines", [1, 3])
def test_a_run_trains_every_step_and_ends(staleness: int, engines: int) -> None:
    """Every step is trained once, in order, with whole batches, for any staleness and any number of engines."""
    world = World(config(scheduler={"groups_per_step": 4, "max_staleness": staleness}), engines=engines).go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert [event.step for event in world.events(BatchTaken)] == list(range(6))
    assert all(len(event.groups) == 4 for event in world.events(BatchTaken))
    assert [event.version for event in world.events(WeightsPublished)] == list(range(7))
    assert world.log[-1].event.kind == "run_finished"  # type: ignore[attr-defined]
    assert world.ledger.breaches == []


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_group_is_trained_that_lags_more_than_max_staleness(staleness: int) -> None:
    """The lag of every trained group is at most max_staleness, also when training is the slow part."""
    world = World(config(scheduler={"groups_per_step": 2, "max_staleness": staleness}, run={"steps": 10}))
    world.learner.seconds = 20.0
    world.go()
    version = {event.group: event.version for event in world.events(GroupDispatched)}
    lags = [taken.step - version[group] for taken in world.events(BatchTaken) for group in taken.groups]
    assert max(lags) == staleness
    assert max(event.lag_max for event in world.events(StepCompleted)) == staleness


def test_generation_overlaps_training_only_when_staleness_allows_it() -> None:
    """With max_staleness 0 a step lasts generation plus training; with 1 it lasts the longer of the two."""

    def step_seconds(staleness: int) -> float:
        world = World(config(run={"steps": 12}, scheduler={"groups_per_step": 2, "max_staleness": staleness}))
        world.learner.seconds = 1.5
        world.pool[0].seconds = lambda request: 1.4
        world.go()
        ends = [record.mono for record in world.records(StepCompleted)]
        return (ends[-1] - ends[2]) / 1e9 / (len(ends) - 3)

    assert step_seconds(0) == pytest.approx(1.5 + 1.4 + 0.1, rel=0.05)
    assert step_seconds(1) == pytest.approx(1.5, rel=0.05)


def test_the_state_of_a_run_is_the_fold_of_its_log() -> None:
    """Folding the finished log anew gives exactly the state that the run had."""
    world = World(
        config(eval={"every_steps": 2, "prompts": 3}, checkpoint={"every_steps": 2}), engines=2
    ).go()
    view, ledger = View(), Ledger()
    for record in world.log:
        view.apply(record)
        ledger.apply(record)
    assert view == world.view
    assert ledger == world.ledger


def test_phases_sum_to_the_runs_wall_time() -> None:
    """Exactly one phase holds at any time: their seconds add up to the run's, to the nanosecond."""
    world = World(config(eval={"every_steps": 2, "prompts": 3}, checkpoint={"every_steps": 3})).go()
    (finished,) = world.events(RunFinished)
    (started,) = world.records(RunStarted)
    assert sum(world.view.trainer.phase_ns.values()) == world.log[-1].mono - started.mono
    assert finished.seconds == pytest.approx(sum(world.view.trainer.phase_seconds().values()))
    assert set(world.view.trainer.phase_ns) >= {"training", "eval", "checkpoint", "weight_sync", "starting"}


def test_synchronous_training_calls_its_wait_generating() -> None:
    """With max_staleness 0 the trainer waits in phase generating, and otherwise in waiting_for_buffer."""
    sync = {
        e.phase
        for e in World(config(scheduler={"groups_per_step": 2, "max_staleness": 0})).go().events(PhaseEntered)
    }
    later = {
        e.phase
        for e in World(config(scheduler={"groups_per_step": 2, "max_staleness": 1})).go().events(PhaseEntered)
    }
    assert "generating" in sync
    assert "waiting_for_buffer" not in sync
    assert "waiting_for_buffer" in later


@pytest.mark.parametrize("mode", ["in_flight", "pause", "drain", "abort"])
def test_every_engine_acknowledges_every_version_in_every_sync_mode(mode: str) -> None:
    """Each engine takes versions 1 to 6 once and in order, however it takes them."""
    world = World(config(engine={"sync_mode": mode}), engines=2).go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    for name in ("engine-0", "engine-1"):
        versions = [e.version for e in world.events(SyncAcknowledged) if e.engine == name]
        assert versions == list(range(1, 7))
    assert world.ledger.breaches == []


def test_in_flight_sync_gives_trajectories_of_mixed_versions() -> None:
    """A request that is in flight when weights change has tokens of both versions, and says which."""
    world = World(config(run={"steps": 8}, rollout={"group_size": 2, "max_turns": 1}))
    world.pool[0].seconds = lambda request: 0.5 + request.seed % 7
    world.learner.seconds = 1.0
    world.go()
    mixed = [event for event in world.events(TrajectoryCompleted) if len(event.version_spans) > 1]
    assert mixed
    for event in world.events(TrajectoryCompleted):
        assert sum(count for _, count in event.version_spans) == event.completion_tokens
    calls = world.events(LlmCallFinished)
    assert all(sum(count for _, count in call.version_spans) == call.tokens for call in calls)


def test_evaluations_are_answered_by_one_version() -> None:
    """Every token of an evaluation is of the version that the evaluation names, from version 0 to the last."""
    world = World(config(eval={"every_steps": 3, "prompts": 5}, run={"steps": 7})).go()
    evals = world.events(EvalCompleted)
    assert [e.version for e in evals] == [0, 3, 6, 7]
    assert all(e.completed == 5 and e.outcome == "completed" for e in evals)
    for event in world.events(TrajectoryCompleted):
        if event.group is None:
            number = int(event.trajectory.split("/")[0].removeprefix("eval"))
            assert {version for version, _ in event.version_spans} == {evals[number].version}


def test_checkpoints_are_committed_and_old_ones_dropped() -> None:
    """Checkpoints are written when due and at the end; only the newest are kept."""
    world = World(config(checkpoint={"every_steps": 2, "keep": 2}, run={"steps": 7})).go()
    committed = [event.path for event in world.events(CheckpointCommitted)]
    assert committed == [f"checkpoints/{step}" for step in (2, 4, 6, 7)]
    assert [path for path in world.artifacts.dropped if path.startswith("check")][-1] == "checkpoints/4"
    assert "checkpoints/6" not in world.artifacts.dropped


def test_every_wait_in_the_log_has_a_name_and_an_end() -> None:
    """Blocked and Unblocked come in pairs, and each says who waited for what."""
    world = World(engines=2).go()
    blocked = {record.seq for record in world.records(Blocked)}
    assert blocked == {event.blocked for event in world.events(Unblocked)}
    assert {event.edge for event in world.events(Blocked)} >= {"buffer_ready", "version", "work"}


def test_every_event_but_the_roots_names_its_cause() -> None:
    """What an actor does because of something carries the seq of that something, which lies before it."""
    world = World(turns=2).go()
    for record in world.log:
        assert record.cause is None or record.cause < record.seq
    dispatched = world.records(GroupDispatched)
    completed = world.records(TrajectoryCompleted)
    assert all(record.cause is not None for record in [*dispatched[1:], *completed])
    assert {record.corr for record in completed} == {record.event.trajectory for record in completed}  # type: ignore[attr-defined]
