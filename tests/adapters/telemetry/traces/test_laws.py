"""What holds of the spans of any log, tried on the logs of random worlds, with faults, kills and resumes."""

from __future__ import annotations

from collections import defaultdict

import pytest
from trace_logs import attributes, chaos, spans_of, traced

from eventrain.adapters.telemetry.traces.builder import TraceBuilder
from eventrain.adapters.telemetry.traces.otlp import encoded
from eventrain.adapters.telemetry.traces.sampling import Sampling
from eventrain.adapters.telemetry.trackers.figures import StepFigures
from eventrain.adapters.telemetry.utc import UtcClock
from eventrain.events.types import RunResumed, TrajectoryCompleted, TrajectoryFailed

ALL = Sampling(1.0, 2)
WORLDS = pytest.mark.parametrize("seed", range(14))
LIVES = pytest.mark.parametrize("killing", [False, True], ids=["fresh", "resumed"])


@WORLDS
@LIVES
def test_spans_form_trees(seed: int, killing: bool) -> None:
    """Ids are unique, every parent is exported, in the same trace, and no child is outside its parent."""
    spans = spans_of(chaos(seed, killing).records, ALL)
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        assert 0 < span.start_ns <= span.end_ns
        if span.parent:
            parent = by_id[span.parent]
            assert parent.trace_id == span.trace_id
            assert parent.start_ns <= span.start_ns
            assert span.end_ns <= parent.end_ns, (span, parent)


@WORLDS
@LIVES
def test_links_resolve(seed: int, killing: bool) -> None:
    """Every link leads to an exported span, or to a trace of which only a copy is there because it never ended."""
    spans = spans_of(chaos(seed, killing).records, ALL)
    ids = {span.span_id for span in spans}
    cut = {span.trace_id for span in spans if "rl.span.snapshot_seq" in attributes(span)}
    for span in spans:
        for link in span.links:
            assert link.span_id in ids or link.trace_id in cut
            assert ("rl.sampled", False) not in link.attributes


@WORLDS
@LIVES
def test_every_trajectory_that_ended_has_its_trace(seed: int, killing: bool) -> None:
    """With a share of 1 none is missing; those that wait in the buffer when the log ends are there as copies."""
    records = chaos(seed, killing).records
    ended = {
        record.event.trajectory
        for record in records
        if isinstance(record.event, TrajectoryCompleted | TrajectoryFailed)
    }
    spans = spans_of(records, ALL)
    cut = {
        attributes(span)["rl.trajectory.id"] for span in spans if span.name.startswith("invoke_agent")
    } - traced(spans)
    assert ended <= traced(spans) | cut
    assert traced(spans) <= ended


@WORLDS
@LIVES
def test_durations_of_children_are_the_components(seed: int, killing: bool) -> None:
    """What a trajectory's calls took is what its log says it spent on engine, environment, setup and reward."""
    records = chaos(seed, killing).records
    spans = spans_of(records, ALL)
    took: dict[tuple[bytes, str], float] = defaultdict(float)
    tops = {span.span_id: span.parent for span in spans}
    for span in spans:
        top = span.parent
        while tops.get(top):
            top = tops[top]
        took[top, span.name] += (span.end_ns - span.start_ns) / 1e9
    completed = {
        (record.event.trajectory, record.event.attempt): record.event
        for record in records
        if isinstance(record.event, TrajectoryCompleted)
    }
    for span in spans:
        said = attributes(span)
        event = completed.get((said.get("rl.trajectory.id"), said.get("rl.rollout.attempt")))
        if event is None or not span.name.startswith("invoke_agent") or "rl.span.snapshot_seq" in said:
            continue
        for name, seconds in (
            ("chat simulated", event.llm_s + event.queue_s),
            ("execute_tool env.step", event.env_s),
            ("rl.env.setup", event.env_setup_s),
            ("rl.reward", event.reward_s),
        ):
            assert took[span.span_id, name] == pytest.approx(seconds, abs=1e-6), (event.trajectory, name)


@pytest.mark.parametrize("seed", range(6))
def test_two_exports_are_the_same_bytes(seed: int) -> None:
    """A fold that starts over gives the same spans, in the same order."""
    records = chaos(seed, killing=True).records
    assert encoded(spans_of(records, ALL)) == encoded(spans_of(records, ALL))


@WORLDS
def test_a_smaller_share_gives_a_part_of_the_same_spans(seed: int) -> None:
    """What is kept at 30 % has the ids it has at 100 %, groups that were drawn are whole, and links say what is not."""
    records = chaos(seed, killing=True).records
    whole, part = spans_of(records, ALL), spans_of(records, Sampling(0.3, 1))
    assert {span.span_id for span in part} <= {span.span_id for span in whole}
    there = {span.span_id for span in part}
    cut = {span.trace_id for span in part if "rl.span.snapshot_seq" in attributes(span)}
    for span in part:
        assert not span.parent or span.parent in there
        for link in span.links:
            left_out = ("rl.sampled", False) in link.attributes
            assert left_out != (link.span_id in there) or link.trace_id in cut


@pytest.mark.parametrize("limit", [1, 20, 100])
def test_what_is_held_is_bounded_and_counted(limit: int) -> None:
    """With little room the oldest groups are let go: fewer spans, counted, in trees, with links that say so."""
    for seed in range(12):
        records = chaos(seed).records
        builder = TraceBuilder(ALL, held_max=limit)
        spans = []
        for record in records:
            spans += builder.apply(record)
            assert 0 <= builder.held <= limit + 8  # one group may just have added an attempt
        ids = {span.span_id for span in spans}
        assert all(not span.parent or span.parent in ids for span in spans)
        links = [link for span in spans if span.name == "rl.step" for link in span.links]
        for link in links:
            assert (("rl.sampled", False) in link.attributes) == (link.span_id not in ids)


def test_nothing_is_held_after_a_run() -> None:
    """When a run has completed, nothing waits any more."""
    for seed in range(24):
        run = chaos(seed)
        builder = TraceBuilder(Sampling(0.5, 1))
        for record in run.records:
            builder.apply(record)
        if run.outcome == "completed":
            assert builder.held == 0


@pytest.mark.parametrize("seed", range(12))
def test_what_was_sent_of_a_killed_run_is_part_of_what_is_sent_after_its_resume(seed: int) -> None:
    """Whoever exports between the kill and the resume, or followed the log until then, has no span too many.

    Copies of what was open then end with the last that was heard of that life, not with the resume.
    """
    records = chaos(seed, killing=True).records
    places = [place for place, record in enumerate(records) if isinstance(record.event, RunResumed)]
    after = set(spans_of(records, ALL))
    for place in places:
        before = spans_of(records[:place], ALL)
        assert set(before) <= after
        clock = UtcClock()
        assert max(span.end_ns for span in before) <= [clock.advance(record) for record in records[:place]][-1]


def test_a_step_ends_where_its_figures_do() -> None:
    """The trace of a step that was trained ends at the record with which the row of its figures does."""
    compared = 0
    for seed in range(14):
        records = chaos(seed, killing=False).records
        figures = StepFigures()
        for record in records:
            figures.apply(record)
        rows = {row.step: records[row.seq].ts for row in figures.take()}
        ends = {
            attributes(span)["rl.iteration"]: span.end_ns
            for span in spans_of(records, ALL)
            if span.name == "rl.step" and "rl.span.snapshot_seq" not in attributes(span)
        }
        assert {step: ends.get(step) for step in rows} == rows
        compared += len(rows)
    assert compared
