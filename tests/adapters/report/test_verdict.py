"""The verdict: how a run ended and what bounds it, with the figures that say so."""

from __future__ import annotations

import pytest

from eventrain.adapters.report.reading import read_run
from eventrain.adapters.report.verdict import judge
from eventrain.events.types import (
    EngineUp,
    GroupDispatched,
    LearnerUp,
    PhaseEntered,
    PromptDrawn,
    RunFailed,
    StepCompleted,
)


@pytest.mark.parametrize(
    ("scenario", "bound"),
    [
        ("s10_slow_trainer", "trainer"),
        (
            "s10_slow_environment",
            "engine",
        ),  # its trajectories are longer at the engine than in the environment
        ("s03_floor_and_quarantine", "environment"),  # its environment hangs
        ("s11_evaluation_beside_training", "evaluation"),
        ("s12_engine_left_paused", "sync"),
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


def test_an_idle_pool_with_groups_in_flight_means_the_environment(told, tmp_path) -> None:
    """Where no call is at an engine while the trainer waits for groups, the wait is for the environment."""
    log = told()
    log.tell(EngineUp(engine="e0", version=0, context_tokens=96, slots=8), 1)
    log.tell(LearnerUp(version=0, parameters=1, device="cpu"))
    log.tell(PromptDrawn(prompt=0, epoch=0, index=0))
    log.tell(GroupDispatched(group=0, prompt=0, target=0, version=0, size=2))
    log.tell(PhaseEntered(phase="waiting_for_buffer", step=0))
    log.tell(PhaseEntered(phase="training", step=0), 30)
    log.tell(StepCompleted(step=0, version=1, loss=0.0, reward_mean=0.5, lag_mean=0.0, lag_max=0), 10)
    verdict = judge(read_run(log.write(tmp_path / "run")))
    assert verdict.bound == "environment"
    assert (
        "waited for groups for 75 % of the time after the start, 100 % of that without a call"
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
    assert stalled.startswith(f"It stalled {len(read.stalls.intervals)} times; the longest took ")
    assert "environment is overdue" in stalled
