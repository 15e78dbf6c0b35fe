"""The history: what it says is what the projections say, on a time axis without downtimes."""

from __future__ import annotations

from collections import defaultdict

import pytest
from trace_logs import chaos

from eventrain.adapters.report.curves import totals_s
from eventrain.adapters.report.history import History, read_history
from eventrain.adapters.report.rollouts import SLOWEST, TURNS
from eventrain.events.reader import LogReader
from eventrain.events.types import (
    TRAJECTORY_PARTS,
    BatchTaken,
    CheckpointCommitted,
    DeviceSampled,
    EngineUp,
    EnvStepFinished,
    LlmCallFinished,
    LlmCallStarted,
    PhaseEntered,
    RunResumed,
    RunStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
    part_seconds,
)

SCENARIOS = (
    "s03_floor_and_quarantine",
    "s05_resume_with_a_warm_buffer",
    "s07_one_engine_dies",
    "s11_evaluation_beside_training",
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_phases_are_those_of_the_trainer(simulated, scenario: str) -> None:
    """The intervals follow each other without a gap, and sum to what the trainer's projection counts."""
    history = read_history(LogReader(simulated(scenario).events).records())
    counted = history.view.trainer.phase_seconds()
    del counted["finished"]
    assert totals_s(history.phases) == pytest.approx(counted)
    for before, after in zip(history.phases, history.phases[1:], strict=False):
        assert before.to_ns == after.from_ns
    assert sum(one.seconds for one in history.pool) == pytest.approx(history.end_ns / 1e9)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_groups_and_slots_end_as_the_projections_say(simulated, scenario: str) -> None:
    """The last value of each curve is that of the state at the end, and no value is below zero."""
    history = read_history(LogReader(simulated(scenario).events).records())
    assert history.in_flight.values[-1] == history.view.groups.in_flight
    assert history.buffered.values[-1] == history.view.groups.buffered
    for curve in (history.in_flight, history.buffered, history.calls, history.slots):
        assert min(curve.values) >= 0
        assert curve.at_ns == sorted(curve.at_ns)


def test_components_of_all_steps_sum_to_those_of_all_trajectories(simulated) -> None:
    """Where every completed trajectory was trained, nothing of its time is missing from the steps."""
    history = read_history(LogReader(simulated("s10_slow_trainer").events).records())
    groups = history.view.groups
    assert groups.ended["trained"] == groups.dispatched  # or the test says nothing
    for place, name in enumerate(TRAJECTORY_PARTS):
        of_steps = sum(sums[place] for sums in history.rollouts.by_step.values())
        assert of_steps == pytest.approx(history.view.progress.seconds[name])
    assert sum(history.rollouts.trained.values()) == groups.trajectories_completed


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("killing", [False, True], ids=["fresh", "resumed"])
def test_components_of_a_step_are_those_of_its_groups(seed: int, killing: bool) -> None:
    """However often it was rolled back; and what no resume can roll back any more is not kept."""
    spent: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    batches: dict[int, tuple[int, ...]] = {}
    records = chaos(seed, killing).records
    oldest, checkpoints = 0, list[int]()
    for record in records:
        match record.event:
            case RunStarted(config=config):
                kept = config["checkpoint"]["keep"]
            case TrajectoryCompleted(group=int(group)) as event:
                spent[group].append(part_seconds(event))
            case BatchTaken(step=step, groups=groups):
                batches[step] = groups
            case RunResumed(step=step, version=version):
                batches = {at: groups for at, groups in batches.items() if at < step}
                checkpoints = [at for at in checkpoints if at <= version]
            case CheckpointCommitted(version=version):
                checkpoints = [*checkpoints, version][-kept:]
                oldest = checkpoints[0]
    rollouts = read_history(records).rollouts
    assert rollouts.by_step.keys() == batches.keys()
    for step, groups in batches.items():
        rows = [seconds for group in groups for seconds in spent[group]]
        assert rollouts.trained[step] == len(rows)
        assert rollouts.by_step[step] == pytest.approx([sum(column) for column in zip(*rows, strict=True)])
    trained = {group for step, groups in batches.items() if step < oldest for group in groups}
    assert not trained & rollouts._by_group.keys()


def test_an_open_phase_counts_up_to_now(told) -> None:
    """The phase in which the log ends is an interval too, and says that it is not over."""
    log = told()
    log.tell(PhaseEntered(phase="training", step=0), 2)
    history = read_history(log.records)
    *_, last = history.phases_until(history.end_ns + 5_000_000_000)
    assert (last.name, last.seconds, last.open) == ("training", 5.0, True)
    assert all(not one.open for one in history.phases)


def test_intervals_of_a_long_run_are_gathered_unless_all_are_asked_for(told) -> None:
    """A bounded history keeps the sums of phases; one without a bound keeps every interval."""
    log = told()
    for step in range(3_000):
        log.tell(PhaseEntered(phase="training", step=step), 0.001)
        log.tell(PhaseEntered(phase="generating", step=step), 0.002)
    whole, bounded = History(intervals_max=None), History(intervals_max=2_000)
    for history in (whole, bounded):
        for record in log.records:
            history.view.apply(record)
            history.apply(record)
    assert len(whole.phases) == 6_000
    assert len(bounded.phases) <= 2_000
    assert totals_s(bounded.phases) == pytest.approx(totals_s(whole.phases))


def test_downtime_is_not_on_the_axis(told) -> None:
    """A run that was stopped for an hour goes on where it stopped; the hour is told with the restart."""
    log = told()
    log.tell(PhaseEntered(phase="training", step=0), 10)
    stopped = log.records[-1].mono
    log.tell(RunResumed(step=0, version=0, last_mono=stopped), 3600)
    log.tell(PhaseEntered(phase="generating", step=0), 5)
    history = read_history(log.records)
    assert history.end_ns == 15_000_000_000
    (restart,) = history.restarts
    assert (restart.at_ns, restart.down_s) == (10_000_000_000, 3600.0)


def test_what_a_killed_run_was_doing_lasted_until_it_was_last_heard_of(told) -> None:
    """A resume says when the process before was last alive; its phase and its engines' state count up to then."""
    log = told()
    log.tell(PhaseEntered(phase="training", step=0), 10)
    heard = log.records[-1].mono + 3_000_000_000
    log.tell(RunResumed(step=0, version=0, last_mono=heard), 3600)
    log.tell(PhaseEntered(phase="generating", step=0), 5)
    history = read_history(log.records)
    counted = history.meter.snapshot(0).values
    assert totals_s(history.phases) == {"starting": 15.0, "training": 3.0}
    assert counted["rl_trainer_phase_seconds_total"]["training",] == 3.0
    (down,) = totals_s(history.pool_until(history.end_ns)).values()
    assert down == counted["rl_pool_state_seconds_total"]["engine", "down"] == 18.0
    assert history.restarts[0].at_ns == 13_000_000_000


def test_slowest_trajectories_are_few_and_include_what_still_runs(told) -> None:
    """Of a hundred attempts the slowest are kept, slowest first; the one in flight has taken its time until now."""
    log = told()
    log.tell(TrajectoryStarted(trajectory="99/0", group=99))
    for number in range(100):
        log.tell(TrajectoryStarted(trajectory=f"{number}/0", group=number), 0)
        failed = TrajectoryFailed(
            trajectory=f"{number}/0", group=number, attempt=0, failure="env_error", retryable=False,
            blame="environment", message="no",
        )  # fmt: skip
        if number != 99:
            log.tell(failed, 0.001 * (1 + number * 37 % 100))
    history = read_history(log.records)
    slowest = history.rollouts.slowest(log.records[-1].mono + 10_000_000_000)
    assert len(slowest) == SLOWEST
    assert slowest[0].trajectory == "99/0"
    assert slowest[0].outcome == "in flight"
    assert [one.seconds for one in slowest] == sorted((one.seconds for one in slowest), reverse=True)
    assert slowest[1].seconds == pytest.approx(0.1)


def test_turns_join_the_answer_and_the_step_that_it_led_to(told) -> None:
    """A turn is one line with both times; a trajectory of very many turns keeps the first ones and counts the rest."""
    log = told()
    log.tell(EngineUp(engine="e0", version=0, context_tokens=96, slots=8))
    log.tell(TrajectoryStarted(trajectory="0/0", group=0))
    for turn in range(TURNS + 5):
        call = {"trajectory": "0/0", "turn": turn, "engine": "e0"}
        log.tell(LlmCallStarted(**call, prompt_tokens=1, max_tokens=8))
        log.tell(
            LlmCallFinished(
                **call, outcome="completed", tokens=3, seconds=0.5, queue_s=0.25, finish_reason="stop"
            )
        )
        log.tell(EnvStepFinished(trajectory="0/0", turn=turn, outcome="completed", seconds=0.125))
    (slow,) = read_history(log.records).rollouts.slowest(log.records[-1].mono)
    assert slow.turns[1] == ("1", 0.5, 0.25, 0.125, 3, "stop")
    assert len(slow.turns) == TURNS
    assert slow.turns_more == 5


def test_looks_at_all_devices_of_a_pool_are_drawn_as_their_mean(told) -> None:
    """Samples that are taken together make one point; the controller's processor is no idle GPU."""
    log = told()
    log.tell(PhaseEntered(phase="training", step=0), 1)
    for device, pool, use in (
        ("cuda:0", "learner", 0.25),
        ("cuda:1", "learner", 0.75),
        ("cpu", "controller", 0.0),
    ):
        sample = DeviceSampled(
            device=device, pool=pool, utilization=use, memory_bytes=0, window_s=4, source="nvml"
        )
        log.tell(sample, 4 if device == "cuda:0" else 0.001)
    devices = read_history(log.records).devices
    devices.finish()
    assert devices.use["learner"].values == [0.5]
    assert devices.names == {"learner": {"cuda:0", "cuda:1"}, "controller": {"cpu"}}
    assert devices.idle_s(1_000_000_000, 6_000_000_000) == pytest.approx(4.0)
    assert devices.sources == {"nvml"}
