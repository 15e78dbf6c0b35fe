"""The verdict: how a run ended and what bounds it, with the figures that say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from eventrain.adapters.report.bound import idle_seconds, trainer_seconds
from eventrain.adapters.report.bound_words import percent
from eventrain.adapters.report.reading import Reading, read_run
from eventrain.adapters.report.verdict import judge
from eventrain.events.folder import RunFolder
from eventrain.events.types import (
    EngineUp,
    EnvStepStarted,
    GroupDispatched,
    LearnerUp,
    PhaseEntered,
    PromptDrawn,
    RunFailed,
    StepCompleted,
    TrajectoryStarted,
)

INCIDENTS = Path(__file__).parents[3] / "examples" / "incidents"


@pytest.fixture(scope="module", name="incident")
def _incident() -> Callable[[str], Reading]:
    """Return a function that reads the log of an incident."""
    return lambda name: read_run(RunFolder.open(INCIDENTS / name))


@pytest.mark.parametrize(
    ("scenario", "bound"),
    [
        ("s10_slow_trainer", "trainer"),
        (
            "s10_slow_environment",
            "engine",
        ),  # its trajectories are longer at the engine than in the environment
        ("s03_floor_and_quarantine", "stall"),  # its environment hangs
        ("s11_evaluation_beside_training", "evaluation"),
        ("s12_engine_left_paused", "stall"),  # a weight sync that is not answered
        ("s15_too_many_errors", "unknown"),
    ],
)
def test_what_bounds_a_simulated_run(reading, scenario: str, bound: str) -> None:
    """Each scenario slows one part down, and that part is named."""
    assert judge(reading(scenario)).bound == bound


def test_the_figures_of_the_sentence_are_those_of_the_log(reading) -> None:
    """The share of the trainer's time that is told is the one that its phases sum to."""
    read = reading("s10_slow_trainer")
    spent = {name: s for name, s in read.phase_s.items() if name != "starting"}
    share = (spent["training"] + spent["converting"]) / sum(spent.values())
    assert f"computed for {100 * share:.0f} % of the time" in judge(read).bounded


def test_a_wait_for_what_is_in_the_environment_is_one_for_the_environment(told, tmp_path) -> None:
    """Where trajectories are in their environment while the trainer waits for groups, that is what bounds the run."""
    log = told()
    log.tell(EngineUp(engine="e0", version=0, context_tokens=96, slots=8), 1)
    log.tell(LearnerUp(version=0, parameters=1, device="cpu"))
    log.tell(PromptDrawn(prompt=0, epoch=0, index=0))
    log.tell(GroupDispatched(group=0, prompt=0, target=0, version=0, size=2))
    log.tell(TrajectoryStarted(trajectory="0/0", group=0))
    log.tell(EnvStepStarted(trajectory="0/0", turn=0), 0)
    log.tell(PhaseEntered(phase="waiting_for_buffer", step=0))
    log.tell(PhaseEntered(phase="training", step=0), 30)
    log.tell(StepCompleted(step=0, version=1, loss=0.0, reward_mean=0.5, lag_mean=0.0, lag_max=0), 10)
    verdict = judge(read_run(log.write(tmp_path / "run")))
    assert verdict.bound == "environment"
    assert (
        "waited for groups for 75 % of the time after the start, 100 % of that for the environment"
        in verdict.bounded
    )


def test_a_failure_is_told_with_its_first_cause(told, tmp_path) -> None:
    """The sentence names the actor and its message."""
    log = told()
    log.tell(RunFailed(failed_actor="trainer", error="DeadlineExpired", message="no batch came"), 9)
    verdict = judge(read_run(log.write(tmp_path / "run")))
    assert verdict.ended == "It failed after 0 of 3 steps and 9.0 s: trainer: no batch came."


def test_a_log_that_just_ends_is_gone_and_one_that_is_written_is_running(told, tmp_path) -> None:
    """Whether the lock is held tells a run that goes on from one that was killed; the open phase counts up to now."""
    log = told()
    log.tell(PhaseEntered(phase="training", step=0), 4)
    folder = log.write(tmp_path / "run")
    assert judge(read_run(folder)).ended.startswith("It is gone without a last word (killed, or a full disk)")
    with folder.lock():
        read = read_run(folder, now_ts=log.records[-1].ts + 60_000_000_000)
    assert judge(read).ended == "It is running: 0 of 3 steps in 1:04, training for 1:00."
    assert read.phase_s == pytest.approx({"starting": 4.0, "training": 60.0})


def test_stalls_are_told_with_the_longest(reading) -> None:
    """Their number, and the sentence of the longest one."""
    read = reading("s03_floor_and_quarantine")
    stalled = judge(read).stalled
    assert stalled.startswith(
        f"It stalled {len(read.stalls.intervals)} times; the longest time it stood still for "
    )
    assert "because env step of 2/0 hung for 5.0 s: trainer waits buffer_ready(0) <- group 2 " in stalled


def test_a_stall_is_told_with_the_time_before_it_was_noticed(incident) -> None:
    """A quarter of an hour is told with what hung and the GPUs' idle seconds, though noticed after 11 minutes."""
    verdict = judge(incident("stall"))
    assert verdict.bound == "stall"
    stood = "It stood still for 72 % of the time after the start"
    assert verdict.bounded == f"{stood}; devices were idle for 2,926 of 3,651 device-seconds."
    longest = "It stood still for 14:33 in step 5, because env step of 21/2 hung for 15:00"
    assert verdict.stalled.startswith(f"{longest}; 2,582 device-seconds were idle meanwhile: trainer waits ")


@pytest.mark.parametrize(("name", "bound"), [("env_bound", "environment"), ("weight_sync", "sync")])
def test_what_most_idle_device_seconds_waited_for_bounds_a_run(incident, name: str, bound: str) -> None:
    """With samples it is the GPUs' time that counts; the trainer of weight_sync computes longer than it syncs."""
    read = incident(name)
    verdict = judge(read)
    assert verdict.bound == bound
    idle = sum(read.idle_s.values())
    share = idle_seconds(read)[bound] / idle
    assert f"devices were idle for {idle:,.0f} of " in verdict.bounded
    assert f"device-seconds, {percent(share)} of them for " in verdict.bounded


def test_without_samples_the_time_of_the_trainer_counts(incident) -> None:
    """All of its time after the start is put down to one thing or another."""
    read = incident("weight_sync")
    spent = trainer_seconds(read)
    after_start = sum(s for phase, s in read.phase_s.items() if phase not in ("starting", "finished"))
    assert sum(spent.values()) == pytest.approx(after_start)
    assert spent["trainer"] > spent["sync"]  # what the GPUs say is something else
