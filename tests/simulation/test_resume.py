"""Killed at any event and resumed: nothing is lost, nothing is trained twice, and what was kept is kept."""

from __future__ import annotations

from typing import Any

import pytest

from eventrain.adapters.simulated.faults import Fault
from eventrain.adapters.simulated.judge import judge
from eventrain.adapters.simulated.scenario import Scenario, Surroundings
from eventrain.adapters.simulated.simulation import Simulated, simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.core.projections import View
from eventrain.core.projections.accounting import Ledger
from eventrain.core.resume import NotResumable, Past, resumption
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    GroupDiscarded,
    GroupDispatched,
    GroupRestored,
    PromptQuarantined,
    PromptReturned,
    RunResumed,
    StepCompleted,
    TrajectoryCompleted,
)


def small(policy: str = "targeted", *faults: Fault, **sections: dict[str, Any]) -> Scenario:
    """Return a run of a few hundred events with rollouts that take unequally long."""
    settings: dict[str, dict[str, Any]] = {
        "run": {"steps": 4},
        "data": {"size": 12},
        "scheduler": {"groups_per_step": 2, "max_staleness": 1, "policy": policy},
        "rollout": {"group_size": 2, "max_turns": 1},
        "checkpoint": {"every_steps": 2},
    }
    settings = {name: {**settings.get(name, {}), **sections.get(name, {})} for name in {*settings, *sections}}
    return Scenario(config=settings, world=Surroundings(engines=2, spread=4.0), fault=faults)


def killed(at_event: int, scenario: Scenario, seed: int = 0) -> Simulated:
    kill = Fault(where="run", what="kill", at_event=at_event)
    return simulate(scenario.model_copy(update={"fault": (*scenario.fault, kill)}), Tape(seed))


def killed_at_every(stride: int, scenario: Scenario) -> int:
    """Kill the scenario's run at every `stride`-th event; return how many of the runs were resumed."""
    whole = simulate(scenario, Tape(0))
    assert judge(whole) is None
    resumed = 0
    for at_event in range(0, len(whole.records), stride):
        run = killed(at_event, scenario, seed=at_event)
        assert judge(run) is None, f"killed at event {at_event}"
        assert run.outcome == "completed"
        resumed += any(isinstance(record.event, RunResumed) for record in run.records)
    return resumed


@pytest.mark.parametrize("policy", ["targeted", "capacity", "windowed"])
def test_a_run_survives_a_kill_at_any_event(policy: str) -> None:
    """Whatever event the kill comes at, the resumed run trains every step, and no prompt is lost or trained twice."""
    assert killed_at_every(11, small(policy)) > 20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("policy", ["targeted", "capacity", "windowed"])
def test_a_run_survives_a_kill_at_every_event(policy: str, staleness: int) -> None:
    """The same at every single event, synchronous and far ahead, with evaluations."""
    scenario = small(policy, scheduler={"groups_per_step": 2, "max_staleness": staleness, "policy": policy})
    scenario = scenario.model_copy(update={"config": {**scenario.config, "eval": {"every_steps": 2, "prompts": 2}}})
    assert killed_at_every(1, scenario) > 250


@pytest.mark.parametrize("policy", ["targeted", "capacity"])
def test_a_resume_survives_a_kill_at_any_of_its_own_events(policy: str) -> None:
    """Killed while it says what is restored, or in the steps that follow, the next one restores the rest in order."""
    scenario = small(policy, checkpoint={"every_steps": 0}, run={"steps": 5}, data={"size": 20})
    whole = simulate(scenario, Tape(4))
    first = Fault(where="run", what="kill", at_event=at_the_end_of_step(3, whole.records) + 6)
    once = scenario.model_copy(update={"fault": (first,)})
    resumed = next(r.seq for r in simulate(once, Tape(4)).records if isinstance(r.event, RunResumed))
    cut_short = 0
    for at_event in [*range(resumed, resumed + 14), *range(resumed + 14, resumed + 120, 7)]:
        run = killed(at_event, once, seed=4)
        assert judge(run) is None, f"killed again at event {at_event}"
        assert run.outcome == "completed"
        taken = [groups for _, groups in batches(run.records)]
        assert taken[-5:-1] == taken[:4], f"killed again at event {at_event}"
        resumes = [r.event for r in run.records if isinstance(r.event, RunResumed)]
        cut_short += len(resumes) > 1 and 0 < resumes[1].restored < 8
    assert cut_short > 3


def test_a_resumed_log_folds_to_what_the_run_saw() -> None:
    """A fresh fold of the whole log, kills and resumes included, finds the books closed and the last step trained."""
    run = killed(300, small())
    view, ledger = View(), Ledger()
    for record in run.records:
        view.apply(record)
        ledger.apply(record)
    assert ledger.breaches == []
    assert ledger.groups["trained"] == view.groups.ended["trained"] == 8
    assert ledger.phase_ns == ledger.wall_ns == sum(view.trainer.phase_ns.values())
    assert [row.step for row in view.progress.steps] == [0, 1, 2, 3]


def batches(records: list[Record]) -> list[tuple[int, tuple[int, ...]]]:
    return [(r.event.step, r.event.groups) for r in records if isinstance(r.event, BatchTaken)]


def at_the_end_of_step(step: int, records: list[Record]) -> int:
    return next(r.seq for r in records if isinstance(r.event, StepCompleted) and r.event.step == step)


@pytest.mark.parametrize("policy", ["targeted", "capacity", "windowed"])
def test_steps_after_the_checkpoint_are_trained_again_from_what_was_generated(policy: str) -> None:
    """The batches that are rolled back are taken again, in the same order, and nobody generates them twice."""
    scenario = small(policy, checkpoint={"every_steps": 0}, run={"steps": 5}, data={"size": 20})
    whole = simulate(scenario, Tape(4))
    run = killed(at_the_end_of_step(3, whole.records) + 2, scenario, seed=4)
    assert judge(run) is None
    (resumed,) = [r.event for r in run.records if isinstance(r.event, RunResumed)]
    assert (resumed.step, resumed.restored) == (0, 8)
    assert resumed.rolled_back in (3, 4)  # the end of the last one may not have reached the disk
    taken = batches(run.records)
    assert taken[4:8] == taken[:4]
    restored = {r.event.group for r in run.records if isinstance(r.event, GroupRestored)}
    at = next(r.seq for r in run.records if isinstance(r.event, RunResumed))
    again = {r.event.group for r in run.records[at:] if isinstance(r.event, TrajectoryCompleted)}
    assert not restored & again


def test_quarantine_and_strikes_survive() -> None:
    """An item that was struck once before the kill is quarantined by the first strike after it."""
    failing = Fault(where="environment.step", what="error", prompt=3)
    once_each = {"attempts_max": 1, "strikes_max": 2, "share_max": 1.0}
    scenario = small("targeted", failing, failures=once_each, data={"size": 8})  # so it has to be drawn again
    whole = simulate(scenario, Tape(0))
    first = next(r.seq for r in whole.records if isinstance(r.event, PromptReturned) and r.event.prompt == 3)
    run = killed(first + 40, scenario)
    quarantined = [r.event for r in run.records if isinstance(r.event, PromptQuarantined)]
    assert [event.index for event in quarantined] == [3]
    assert sum(isinstance(r.event, GroupDispatched) and r.event.prompt == 3 for r in run.records) <= 3


# The decision itself


def past_of(at_event: int, scenario: Scenario | None = None) -> Past:
    """Return the past of a run whose log ends right after `at_event`."""
    return Past.of(simulate(scenario or small(), Tape(1)).records[: at_event + 1])


def opening(past: Past, *, missing: tuple[str, ...] = (), unreadable: tuple[int, ...] = ()) -> list[Any]:
    return resumption(
        past,
        present=lambda path: path not in missing,
        readable=lambda ref: ref.offset not in unreadable,
        facts={"host": "here", "pid": 7},
    )


def test_a_complete_run_is_not_resumed() -> None:
    """There is nothing to do, and it says how much was done."""
    with pytest.raises(NotResumable, match="the run is complete: 4 of 4 steps are trained"):
        opening(past_of(10**6))


def test_a_log_without_its_start_is_not_resumed() -> None:
    """A log that does not begin with run_started does not say what to run."""
    for records in ([], simulate(small(), Tape(1)).records[1:]):
        with pytest.raises(NotResumable, match="does not begin with run_started"):
            Past.of(records)


def test_a_checkpoint_that_is_gone_leaves_the_one_before() -> None:
    """The newest checkpoint that is there counts; further back, more steps are trained again."""
    whole = simulate(small(run={"steps": 6}), Tape(1)).records
    past = Past.of(whole[: at_the_end_of_step(4, whole) + 1])
    assert opening(past)[0].version == 4
    back = opening(past, missing=("checkpoints/4",))[0]
    assert (back.version, back.checkpoint, back.rolled_back, back.restored) == (2, "checkpoints/2", 3, 6)


def test_without_any_checkpoint_left_it_says_so() -> None:
    """Steps whose batches are no longer known cannot be trained again."""
    scenario = small(run={"steps": 8}, data={"size": 16}, checkpoint={"every_steps": 2, "keep": 1})
    whole = simulate(scenario, Tape(1)).records
    past = Past.of(whole[: at_the_end_of_step(6, whole) + 1])
    with pytest.raises(NotResumable, match="no checkpoint is left of"):
        opening(past, missing=tuple(past.checkpoints.values()))


def test_a_group_whose_payload_is_gone_is_given_up() -> None:
    """Its prompt goes back instead of a batch without its rows."""
    whole = simulate(small(), Tape(1)).records
    past = Past.of(whole[: at_the_end_of_step(2, whole) + 1])
    events = opening(past, unreadable=(8, 9, 10, 11))
    given_up = [event.group for event in events if isinstance(event, GroupDiscarded) and event.reason == "unreadable"]
    restored = {event.group: event for event in events if isinstance(event, GroupRestored)}
    assert given_up
    assert set(given_up) <= set(restored)
    returned = {event.prompt for event in events if isinstance(event, PromptReturned)}
    assert {restored[group].prompt for group in given_up} <= returned


def test_a_prompt_between_two_events_is_not_lost() -> None:
    """A log that ends after a prompt was drawn, and before its group was dispatched, gives the prompt back."""
    whole = simulate(small(), Tape(1)).records
    drawn = next(r for r in whole if r.event.kind == "prompt_drawn" and r.event.prompt == 5)  # type: ignore[attr-defined]
    events = opening(Past.of(whole[: drawn.seq + 1]))
    assert PromptReturned(prompt=5, reason="discarded") in events
