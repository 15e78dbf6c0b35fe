"""What the meter counts adds up: on simulated runs full of faults, killed and resumed, and on told ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_runs import eventful_run
from told_runs import ToldRun, phased_run

from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.telemetry.metrics.catalog import BY_NAME, METRICS, RUN, Metric
from eventrain.adapters.telemetry.metrics.meter import Meter
from eventrain.adapters.telemetry.metrics.snapshot import Snapshot
from eventrain.core.projections import View
from eventrain.events.record import Record
from eventrain.events.types import (
    BY_KIND,
    DeviceSampled,
    LlmCallFinished,
    LlmCallStarted,
    PhaseEntered,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    TrajectoryCompleted,
)

STATE_SETS = ("rl_trainer_phase", "rl_pool_state", "rl_collector_state", "rl_run_outcome")
SAMPLED_EVERY = 7


def chaos(seed: int, *, killing: bool) -> list[Record]:
    """Return the log of a random world, with samples of devices put between its events."""
    tape = Tape(seed)
    return list(sampled(simulate(draw_scenario(tape), tape, killing=killing).records))


def sampled(records: list[Record]) -> Iterator[Record]:
    since = records[0].mono
    for place, record in enumerate(records):
        yield record
        if isinstance(record.event, RunResumed):
            since = record.mono
        if place % SAMPLED_EVERY == 0 and not isinstance(record.event, RunFinished | RunFailed):
            for pool in ("learner", "engine", "shared", "controller"):
                sample = DeviceSampled(
                    device=f"{pool}0", pool=pool, utilization=place % 5 / 4, memory_bytes=1,
                    window_s=(record.mono - since) / 1e9,
                )  # fmt: skip
                yield record._replace(event=sample)
            since = record.mono


def total(snapshot: Snapshot, name: str, *labels: str) -> float:
    """Return the sum of a metric's series that have `labels` among theirs."""
    series = snapshot.values.get(name, {})
    return sum(value for key, value in series.items() if set(labels) <= set(key))


def folded(records: list[Record]) -> Meter:
    meter = Meter()
    for record in records:
        meter.apply(record)
    return meter


@pytest.mark.parametrize("killing", [False, True], ids=["whole", "killed"])
@pytest.mark.parametrize("seed", range(6))
def test_the_laws_hold_at_every_event(seed: int, killing: bool) -> None:
    """State sets sum to 1, times to the wall, groups to those dispatched, and no counter ever goes back."""
    meter, view = Meter(), View()
    ran_ns, since = 0, None
    before: dict[tuple[str, tuple[str, ...]], float] = {}
    for record in chaos(seed, killing=killing):
        if isinstance(record.event, RunResumed) and since is not None:
            ran_ns += meter.last_mono - since
        meter.apply(record)
        if not isinstance(record.event, DeviceSampled):
            view.apply(record)
        if isinstance(record.event, RunStarted | RunResumed):
            since = record.mono
        wall_s = (ran_ns + record.mono - (since or 0)) / 1e9
        if isinstance(record.event, RunFinished | RunFailed):
            ran_ns, since = ran_ns + record.mono - (since or 0), None
        now = meter.snapshot(record.mono)
        for states in STATE_SETS:
            assert total(now, states) == 1, (states, record)
        assert total(now, "rl_trainer_phase_seconds_total") == pytest.approx(wall_s, abs=1e-6)
        assert total(now, "rl_pool_state_seconds_total") == pytest.approx(wall_s, abs=1e-6)
        ended = total(now, "rl_groups_total") + total(now, "rl_groups_inflight")
        assert total(now, "rl_groups_dispatched_total") == ended, record
        assert total(now, "rl_groups_inflight") == view.groups.in_flight, record
        assert total(now, "rl_buffer_groups") == view.groups.buffered, record
        components = total(now, "rl_trajectory_component_seconds_total")
        durations = now.histograms.get("rl_trajectory_duration_seconds", {})
        assert components == pytest.approx(sum(found.sum for found in durations.values()))
        assert total(now, "rl_llm_wall_seconds_total") <= total(now, "rl_llm_call_seconds_total") + 1e-9
        for pool in ("learner", "engine", "shared", "controller"):
            allocated = total(now, "rl_gpu_allocated_seconds_total", pool)
            busy = total(now, "rl_gpu_busy_seconds_total", pool)
            idle = total(now, "rl_gpu_idle_seconds_total", pool)
            assert busy + idle == pytest.approx(allocated, abs=1e-6), record
        counters = {
            (name, labels): value
            for name, series in now.values.items()
            if BY_NAME[name].kind == "counter"
            for labels, value in series.items()
        }
        for key, value in before.items():
            assert counters[key] >= value - 1e-9, (key, record)
        before = counters


@pytest.mark.parametrize("seed", range(6))
def test_stages_are_those_of_the_trajectories_in_flight(seed: int) -> None:
    """Every trajectory that runs is in one stage, and at the end of a run none is left."""
    meter, view = Meter(), View()
    records = chaos(seed, killing=True)
    for record in records:
        meter.apply(record)
        if isinstance(record.event, DeviceSampled):
            continue
        view.apply(record)
        stages = meter.snapshot(record.mono).values["rl_rollouts_inflight"]
        assert all(count >= 0 for count in stages.values())
        assert stages["llm",] == len(view.engines.calls), record
        assert sum(stages.values()) >= len(view.groups.running), record
    assert sum(meter.snapshot(records[-1].mono).values["rl_rollouts_inflight"].values()) == 0


@pytest.mark.parametrize("seed", range(4))
def test_components_are_the_time_between_a_trajectorys_events(seed: int) -> None:
    """The six components of the complete trajectories sum to the time from their start to their end."""
    tape = Tape(seed)
    records = simulate(draw_scenario(tape), tape).records
    began, wall_ns, count = {}, 0, 0
    for record in records:
        if record.event.kind == "trajectory_started":
            began[record.event.trajectory] = record.mono
        elif isinstance(record.event, TrajectoryCompleted) and record.event.group is not None:
            wall_ns += record.mono - began[record.event.trajectory]
            count += 1
    now = folded(records).snapshot(records[-1].mono)
    measured = total(now, "rl_trajectory_component_seconds_total")
    assert measured == pytest.approx(wall_ns / 1e9, abs=0.03 * count + 1e-6)


@pytest.mark.parametrize("killing", [False, True], ids=["whole", "killed"])
@pytest.mark.parametrize("seed", range(6))
def test_the_wall_of_calls_is_the_union_of_their_intervals(seed: int, killing: bool) -> None:
    """Time with two calls counts once for the wall, and twice for the sum; a call ends with its process."""
    records = chaos(seed, killing=killing)
    began: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for record in records:
        event = record.event
        if isinstance(event, LlmCallStarted):
            began[event.trajectory] = record.mono
        elif isinstance(event, LlmCallFinished):
            spans.append((began.pop(event.trajectory), record.mono))
        elif isinstance(event, RunResumed):
            spans += [(since, event.last_mono) for since in began.values()]
            began.clear()
    union, until = 0, 0
    for begin, end in sorted(spans):
        union += max(0, end - max(begin, until))
        until = max(until, end)
    now = folded(records).snapshot(records[-1].mono)
    assert total(now, "rl_llm_wall_seconds_total") == pytest.approx(union / 1e9)
    assert total(now, "rl_llm_call_seconds_total") == pytest.approx(sum(e - b for b, e in spans) / 1e9)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_a_snapshot_does_not_depend_on_when_others_were_taken(cuts: list[int]) -> None:
    """Two meters of the same records have the same values, whatever was asked of them in between."""
    records = eventful_run().records
    one, other = folded(records), Meter()
    place = 0
    for cut in [*cuts, len(records)]:
        for record in records[place : place + cut]:
            other.apply(record)
        place += cut
        other.snapshot(other.last_mono + 10**9)
    assert other.snapshot(records[-1].mono + 5) == one.snapshot(records[-1].mono + 5)


def test_device_seconds_by_phase_are_the_truth() -> None:
    """Busy and allocated seconds of each phase are as told, also those of a phase of a tenth of a second."""
    now = folded(phased_run(20).records).snapshot(0)
    for phase, seconds, learner, engine in (
        ("waiting_for_buffer", 80, 0.05, 0.80), ("converting", 2, 0.10, 0.90), ("training", 180, 0.92, 0.85),
        ("weight_sync", 40, 0.30, 0.02),
    ):  # fmt: skip
        for pool, busy in (("learner", learner), ("engine", engine)):
            allocated = total(now, "rl_gpu_allocated_seconds_total", pool, phase)
            assert allocated == pytest.approx(seconds)
            assert total(now, "rl_gpu_busy_seconds_total", pool, phase) == pytest.approx(busy * seconds)


def test_a_window_is_split_where_the_phase_changed() -> None:
    """A sample over the end of one phase and the beginning of the next counts for both, by overlap."""
    told = ToldRun()
    told.begin()
    told.publish("trainer", PhaseEntered(phase="training", step=0))
    told.after(3.0).publish("trainer", PhaseEntered(phase="checkpoint", step=0))
    told.after(1.0).publish(
        "telemetry",
        DeviceSampled(device="cuda:0", pool="learner", utilization=0.5, memory_bytes=1, window_s=2.0),
    )
    now = folded(told.records).snapshot(0)
    for phase in ("training", "checkpoint"):
        assert total(now, "rl_gpu_allocated_seconds_total", phase) == pytest.approx(1.0)
        assert total(now, "rl_gpu_busy_seconds_total", phase) == pytest.approx(0.5)
    assert total(now, "rl_gpu_idle_seconds_total", "learner", "checkpoint") == pytest.approx(0.5)
    assert total(now, "rl_gpu_idle_seconds_total", "learner", "low_use") == pytest.approx(0.5)


def test_open_intervals_grow_until_now() -> None:
    """While nothing happens, the open phase, the open call and the wall of calls go on counting."""
    records = eventful_run().records
    meter = folded(records)
    early, late = (meter.snapshot(records[-1].mono + after * 10**9) for after in (0, 60))
    for name, labels in (
        ("rl_trainer_phase_seconds_total", ("waiting_for_buffer",)),
        ("rl_llm_wall_seconds_total", ()),
        ("rl_llm_call_seconds_total", ()),
        ("rl_pool_state_seconds_total", ("engine", "serving")),
    ):
        assert late.values[name][labels] - early.values[name][labels] == pytest.approx(60.0), name
    assert early.values["rl_stall_verdict"]["overdue",] == 1


def test_time_stops_with_the_run() -> None:
    """Once a run has ended, no value changes any more."""
    records = phased_run(2).records
    meter = folded(records)
    assert meter.snapshot(records[-1].mono) == meter.snapshot(records[-1].mono + 10**12)


def test_a_fork_has_its_own_name_and_its_parents_counts() -> None:
    """The label is the fork's id from the event of the fork on; the counters go on."""
    told = phased_run(2, finish=False)
    meter = folded(told.records)
    parent, steps = meter.run, meter.snapshot(0).values["rl_steps_total"][()]
    config = {**told.records[0].event.config, "run": {"name": "branch", "steps": 4}}
    fork = RunResumed(step=1, version=1, forked_from="/runs/told", config=config)
    meter.apply(told.after(3600).publish("run", fork))
    assert (parent, meter.run) == ("told-20260101-120000", "branch-20260101-130030")
    assert meter.snapshot(0).started_ts == told.records[-1].ts
    assert meter.snapshot(0).values["rl_steps_total"][()] == steps
    assert meter.snapshot(0).values["rl_trainer_phase"]["starting",] == 1


def test_the_number_of_series_does_not_grow_with_the_run() -> None:
    """Ten times as many trajectories make not one series more."""
    few, many = (folded(phased_run(steps).records).snapshot(0) for steps in (3, 30))
    assert [len(s) for s in few.values.values()] == [len(s) for s in many.values.values()]
    assert [len(s) for s in few.histograms.values()] == [len(s) for s in many.histograms.values()]


def test_folding_an_event_takes_about_a_microsecond() -> None:
    """On a simulated log the fold costs at most 2 us of CPU time an event in the mean; asserted with room to spare."""
    runs = [simulate(draw_scenario(tape), tape).records for tape in map(Tape, range(12))]
    best = float("inf")
    for _ in range(5):
        began, events = time.process_time(), 0
        for records in runs:
            folded(records)
            events += len(records)
        best = min(best, (time.process_time() - began) / events * 1e6)
    print(f"{best:.2f} us an event, {events} events")
    assert best < 6


def test_records_of_a_run_are_in_order_of_time() -> None:
    """The told run, on which others rely, never goes back in time."""
    assert all(a.mono <= b.mono for a, b in pairwise(eventful_run().records))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.prometheus)
def test_the_catalog_names_the_events_that_a_metric_is_made_from(metric: Metric) -> None:
    """Without all other events (but those of the run itself) it comes out the same; idle causes read many more."""
    assert set(metric.events) <= set(BY_KIND)
    if metric.prometheus == "rl_gpu_idle_seconds_total" or not metric.events:
        return
    for records in (eventful_run().records, chaos(3, killing=True), chaos(5, killing=False)):
        kinds = {*RUN, *metric.events}
        few = folded([record for record in records if record.event.kind in kinds])
        all_of_them, these = folded(records).snapshot(records[-1].mono), few.snapshot(records[-1].mono)
        name = metric.prometheus
        assert these.values.get(name) == all_of_them.values.get(name)
        assert these.histograms.get(name) == all_of_them.histograms.get(name)
