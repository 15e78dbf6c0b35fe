"""Times are UTC, never go back, and have true differences."""

from __future__ import annotations

import pytest
from perfetto_laws import check_laws, exported
from perfetto_traces import ReadTrace
from told_runs import ToldRun

from eventrain.events.types import (
    DeviceSampled,
    PhaseEntered,
    RunResumed,
)


def test_a_clock_that_is_set_back_changes_no_duration() -> None:
    """Durations are those of the monotonic clock."""
    told = ToldRun()
    told.begin()
    told.after(1.0).publish("trainer", PhaseEntered(phase="training", step=0))
    told.after(2.0).publish("trainer", PhaseEntered(phase="eval", step=0))
    records = [*told.records[:-1], told.records[-1]._replace(ts=told.start_ts - 10**12)]
    trace = ReadTrace(exported(records))
    assert [one.seconds for one in trace.on("trainer/phases")] == [1.0, 2.0, 0.0]


@pytest.mark.parametrize(("down_s", "gap_s"), [(600.0, 600.0), (-50.0, 0.0)])
def test_the_time_between_two_lives_is_a_gap(down_s: float, gap_s: float) -> None:
    """What the killed process had open ends with it; where UTC went back there is no gap."""
    told = ToldRun()
    told.begin()
    told.publish("trainer", PhaseEntered(phase="training", step=0))
    last = told.after(5.0).publish("trainer", PhaseEntered(phase="eval", step=0))
    event = RunResumed(step=0, version=0, last_mono=last.mono)
    resumed = told.publish("run", event)
    records = [*told.records[:-1], resumed._replace(ts=last.ts + round(down_s * 1e9))]
    later = told.after(1.0).publish("trainer", PhaseEntered(phase="generating", step=0))
    records.append(later._replace(ts=0))
    trace = check_laws(records)
    before, again = trace.on("trainer/phases")[-3:-1]
    assert before.name == "eval"
    assert before.told["interrupted"] is True
    assert (again.begin - before.end) / 1e9 == gap_s
    assert again.seconds == 1.0


def test_events_of_other_machines_do_not_turn_it_back() -> None:
    """An event with an earlier monotonic time stands at the time of the one before it."""
    told = ToldRun()
    told.begin()
    told.after(1.0).publish("trainer", PhaseEntered(phase="training", step=0))
    sample = DeviceSampled(device="cuda:0", pool="learner", utilization=1.0, memory_bytes=0, window_s=9.0)
    late = told.publish("telemetry", sample)
    records = [*told.records[:-1], late._replace(mono=late.mono - 10**8)]
    trace = ReadTrace(exported(records))
    assert trace.counters["devices/cuda:0 (learner)"] == [(told.start_ts, 100.0)]
