"""The model says what the projections and the records say, at every point of a log, however it was reached."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventrain.adapters.cli.run_facts import RunFacts
from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.top import recent as recent_module
from eventrain.adapters.top.model import Shown, life_of, shown
from eventrain.adapters.top.recent import RATE_S, TRAJECTORIES, Recent
from eventrain.events.record import Record
from eventrain.events.types import TRAJECTORY_PARTS, DeviceSampled, StepCompleted, TrajectoryCompleted


def fold(records: list[Record], window: int | None = None) -> tuple[RunFacts, Recent]:
    facts, recent = RunFacts(), Recent()
    for record in records:
        facts.apply(record)
    for record in records[-window:] if window else records:
        recent.apply(record)
    return facts, recent


def state(records: list[Record]) -> Shown:
    return shown(*fold(records))


SMALL = simulate(Scenario(config={"run": {"steps": 3}, "data": {"size": 40}}), Tape(1)).records


@settings(max_examples=60, deadline=None)
@given(seq=st.integers(0, len(SMALL) - 1))
def test_its_numbers_are_those_of_the_projections_at_any_seq(seq: int) -> None:
    """Counts, phases, rewards and groups are the projections' own, whatever event was the last."""
    facts, recent = fold(SMALL[: seq + 1])
    now, view = shown(facts, recent), facts.view
    assert (now.seq, now.step, now.steps_total) == (seq, view.trainer.version, view.trainer.steps_total)
    assert now.phase == view.trainer.phase
    assert (now.buffered, now.in_flight, now.training) == (
        view.groups.buffered,
        view.groups.in_flight,
        view.groups.training,
    )
    assert now.in_flight == len(now.groups)
    assert sum(target.in_flight for target in now.targets) == now.in_flight
    assert sum(target.buffered for target in now.targets) == now.buffered
    assert now.rewards == tuple(row.reward_mean for row in view.progress.steps)
    assert [engine.name for engine in now.engines] == sorted(view.engines.by_name)
    assert [group.age_s for group in now.groups] == sorted(
        (group.age_s for group in now.groups), reverse=True
    )
    assert sum(now.phases.values()) == pytest.approx((view.last_mono - SMALL[0].mono) / 1e9)


@settings(max_examples=60, deadline=None)
@given(seq=st.integers(0, len(SMALL) - 1))
def test_recent_figures_are_those_of_the_records_themselves(seq: int) -> None:
    """Parts of the last trajectories and events a second equal a count over the records, made another way."""
    records = SMALL[: seq + 1]
    now = state(records)
    done = [
        r.event for r in records if isinstance(r.event, TrajectoryCompleted) and r.event.group is not None
    ]
    last = done[-TRAJECTORIES:]
    assert [one.trajectory for one in now.done] == [event.trajectory for event in reversed(last)]
    for part in TRAJECTORY_PARTS:
        assert now.parts.get(part, 0.0) == pytest.approx(sum(getattr(event, f"{part}_s") for event in last))
        assert now.parts_all.get(part, 0.0) == pytest.approx(
            sum(getattr(event, f"{part}_s") for event in done)
        )
    since = records[-1].mono - RATE_S * 1e9
    if records[0].mono <= since:
        assert now.rate == sum(record.mono > since for record in records) / RATE_S


def test_the_state_is_the_same_from_the_beginning_and_from_the_last_events_alone(busy, monkeypatch) -> None:
    """What counts as recent does not depend on where the reading began."""
    monkeypatch.setattr(recent_module, "EVENTS", 200)
    for seq in range(0, len(busy), 37):
        whole, short = Recent(), Recent()
        whole._times = type(whole._times)(maxlen=200)
        short._times = type(short._times)(maxlen=200)
        for record in busy[: seq + 1]:
            whole.apply(record)
        for record in busy[max(0, seq - 199) : seq + 1]:
            short.apply(record)
        now = busy[seq].mono
        assert (whole.seconds(), whole.rate(now)) == (short.seconds(), short.rate(now))


def test_the_oldest_trajectory_of_a_group_and_its_stage_are_named(busy) -> None:
    """A hanging environment, a call and a retry are told apart, with the age of each."""
    seen = Counter()
    facts, recent = RunFacts(), Recent()
    for record in busy:
        facts.apply(record)
        recent.apply(record)
        now = shown(facts, recent)
        for group in now.groups:
            if group.trajectory:
                assert group.trajectory.startswith(f"{group.group}/")
                assert 0 <= group.stage_s <= now.at_ns / 1e9
                seen[group.stage.partition(" ")[0]] += 1
        assert sum(now.stages.values()) >= sum(1 for group in now.groups if group.trajectory)
    assert {"llm", "env", "retry"} <= set(seen)


def test_a_stall_is_shown_with_its_chain_and_first_cause(stalled) -> None:
    """Between its telling and its end the deadlock stands, and not before or after."""
    assert state(stalled[:982]).stalls == ()
    found = state(stalled[:983]).stalls
    assert [(stall.kind, stall.seq, stall.first_cause) for stall in found] == [("deadlock", 982, 979)]
    assert found[0].chain[0] == "trainer waits buffer_ready(3)"
    assert (state(stalled[:982]).eta_s is None, state(stalled[:983]).eta_s) == (False, None)  # no end is near
    assert state(stalled).stalls == ()


def test_a_short_target_shows_what_nobody_generates(stalled) -> None:
    """The hole of the run that stalled is one missing group of step 3."""
    assert [(t.step, t.buffered, t.in_flight, t.missing) for t in state(stalled[:983]).targets] == [
        (3, 3, 0, 1),
        (4, 4, 0, 0),
    ]


def test_ages_go_on_while_nothing_happens(stalled) -> None:
    """Seen later than its last event, the state is older by that much, and events a second fall to none."""
    facts, recent = fold(stalled[:983])
    before = shown(facts, recent)
    facts.later_ns = 60_000_000_000
    after = shown(facts, recent)
    assert after.phase_for_s == pytest.approx(before.phase_for_s + 60)
    assert (after.silent_s, after.rate) == (60, 0)
    assert after.at_ns == before.at_ns + 60_000_000_000


def test_life_is_judged_as_status_judges_it(busy, stalled) -> None:
    """An end in the log counts more than the lock; without one, the lock decides."""
    ended, failed, going = fold(busy)[0], fold(stalled)[0], fold(busy[:100])[0]
    assert life_of(ended, alive=False) == "completed"
    assert life_of(failed, alive=True) == "failed"
    assert (life_of(going, alive=True), life_of(going, alive=False)) == ("running", "gone")
    assert shown(*fold(stalled)).reason.startswith("trainer: ")


def test_the_mean_reward_is_over_the_last_ten_steps(busy) -> None:
    """It is the mean of what the last ten steps report."""
    rewards = [r.event.reward_mean for r in busy if isinstance(r.event, StepCompleted)]
    assert state(busy).reward_mean == pytest.approx(fmean(rewards[-10:]))


def test_devices_show_their_last_sample(busy) -> None:
    """Of two samples of a device the later counts, and one that is too long ago is not shown."""
    facts, recent = fold(busy[:200])
    last = busy[199]
    for after, use in ((1, 0.25), (2, 0.75)):
        event = DeviceSampled(
            device="cuda:0",
            pool="engine",
            utilization=use,
            memory_bytes=10,
            window_s=1.0,
            memory_total_bytes=40,
        )
        record = last._replace(seq=last.seq + after, mono=last.mono + after * 10**9, event=event)
        facts.apply(record)
        recent.apply(record)
    assert [(d.name, d.pool, d.utilization, d.age_s) for d in shown(facts, recent).devices] == [
        ("cuda:0", "engine", 0.75, 0)
    ]
