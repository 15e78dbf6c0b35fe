"""What every Perfetto trace must say of its log, whatever the log."""

from __future__ import annotations

import io
import itertools
from collections import defaultdict
from collections.abc import Sequence

from perfetto_traces import ReadTrace

from eventrain.adapters.telemetry.perfetto import SLOTS_MAX
from eventrain.adapters.telemetry.perfetto.export import TraceExport
from eventrain.adapters.telemetry.utc import UtcClock
from eventrain.core.projections import View
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    GroupDiscarded,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    RunResumed,
    StepStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
)


def exported(records: Sequence[Record], slots_max: int = SLOTS_MAX) -> bytes:
    """Return the trace of a log."""
    file = io.BytesIO()
    TraceExport(file, records[0], slots_max).write(records)
    return file.getvalue()


def check_laws(records: Sequence[Record]) -> ReadTrace:
    """Check a log's trace against the log."""
    trace = ReadTrace(exported(records))
    check_counters(records, trace)
    check_phases(records, trace)
    check_flows(records, trace)
    check_attempts(records, trace)
    return trace


def check_counters(records: Sequence[Record], trace: ReadTrace) -> None:
    """Check that at every moment each counter is what the projections say after the last event of that moment."""
    view, clock = View(), UtcClock()
    for place, record in enumerate(records):
        view.apply(record)
        clock.advance(record)
        if place + 1 < len(records):
            ahead = UtcClock()
            ahead.__dict__.update(clock.__dict__)
            ahead.advance(records[place + 1])
            if ahead.now == clock.now:
                continue
        now = clock.now
        assert trace.at("buffer/buffer depth", now) == view.groups.buffered, record
        assert trace.at("buffer/groups in flight", now) == view.groups.in_flight, record
        if view.trainer.learner_up:
            assert trace.at("weights/weight version", now) == view.trainer.version, record
        for engine in view.engines.by_name.values():
            assert trace.at(f"engines/{engine.name} calls in flight", now) == engine.in_flight, record
            assert trace.at(f"weights/{engine.name} serves version", now) == engine.version, record
        for lane in trace.counters:
            if lane.endswith("calls in flight") and lane[8:-16] not in view.engines.by_name:
                assert trace.at(lane, now) in (None, 0), f"{lane} at seq {record.seq}"


def check_phases(records: Sequence[Record], trace: ReadTrace) -> None:
    """Check that the slices of each phase add up to the trainer's seconds, the open one included."""
    view = View()
    for record in records:
        view.apply(record)
    drawn: dict[str, int] = defaultdict(int)
    for one in trace.on("trainer/phases"):
        assert one.depth == 0
        drawn[one.name] += one.end - one.begin
    expected = dict(view.trainer.phase_ns)
    if not view.trainer.finished:
        now = records[-1].mono - view.trainer.phase_since_ns
        expected[view.trainer.phase] = expected.get(view.trainer.phase, 0) + now
    assert {name: ns for name, ns in drawn.items() if ns} == {name: ns for name, ns in expected.items() if ns}


def check_flows(records: Sequence[Record], trace: ReadTrace) -> None:
    """Check that an arrow leads to each step from every trajectory that it trained, and from nothing else."""
    complete: dict[int, set[str]] = defaultdict(set)
    taken: tuple[int, ...] = ()
    expected: list[set[str]] = []
    for record in records:
        match record.event:
            case TrajectoryCompleted(group=int(group)) as event:
                complete[group].add(event.trajectory)
            case GroupRestored(group=group) if not complete[group]:
                complete[group].add(f"restored {group}")
            case GroupFailed() | GroupEvicted() | GroupDiscarded() | GroupFiltered() as event:
                complete.pop(event.group, None)
            case BatchTaken() as event:
                taken = event.groups
            case StepStarted():
                expected.append({name for group in taken for name in complete.pop(group)})
            case RunResumed():
                taken = ()
    sources = {
        flow: str(one.told.get("trajectory", f"restored {one.told.get('group')}"))
        for one in (*trace.slices, *trace.instants)
        for flow in one.leaves
    }
    found = [sorted(sources[flow] for flow in one.arrives) for one in trace.on("trainer/steps")]
    assert found == [sorted(names) for names in expected]


def check_attempts(records: Sequence[Record], trace: ReadTrace) -> None:
    """Check that every attempt is one slice with its end, and that no other slice of its lane reaches into it."""
    started = [one.event for one in records if isinstance(one.event, TrajectoryStarted)]
    drawn = [one for one in trace.below("rollouts") if one.depth == 0]
    assert [(one.told["trajectory"], one.told["attempt"]) for one in drawn] == [
        (event.trajectory, event.attempt) for event in started
    ]
    outcomes = [one.told.get("outcome") for one in drawn]
    assert outcomes.count("completed") == sum(isinstance(one.event, TrajectoryCompleted) for one in records)
    failed = [one.event for one in records if isinstance(one.event, TrajectoryFailed)]
    assert outcomes.count("failed") == len(failed)
    marks = [one.name for one in trace.instants if one.lane.startswith("rollouts/")]
    assert marks == [f"failed: {event.failure}" for event in failed]
    by_lane = defaultdict(list)
    for one in drawn:
        by_lane[one.lane].append(one)
    for line in by_lane.values():
        assert all(one.end <= later.begin for one, later in itertools.pairwise(line))
    assert {one.name for one in trace.below("rollouts")} <= {
        "trajectory", "eval trajectory", "env reset", "turn", "chat", "env step", "reward",
    }  # fmt: skip
