"""Trace context: engines hear the ids that the log's own traces have, where traces are sent at all."""

from __future__ import annotations

import pytest

from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.simulation import Simulated, simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.telemetry.traces.builder import TraceBuilder
from eventrain.adapters.telemetry.traces.sampling import Sampling
from eventrain.core.projections import View
from eventrain.core.projections.identity import Identity
from eventrain.events.identity import run_id, traced
from eventrain.events.record import Record
from eventrain.events.types import LlmCallStarted, RunResumed, RunStarted, TrajectoryStarted

SENT = {"otlp_endpoint": "http://localhost:4318", "trace_share": 0.5}


def run(telemetry: dict[str, object], *, killing: bool = False) -> Simulated:
    """Return a run with evaluations."""
    config = {"run": {"steps": 4}, "telemetry": telemetry}
    return simulate(Scenario.model_validate({"config": config}), Tape(2), evaluating=True, killing=killing)


def calls(made: Simulated) -> list[LlmCallStarted]:
    """Return the calls to engines."""
    return [record.event for record in made.records if isinstance(record.event, LlmCallStarted)]


def test_without_a_receiver_no_context_is_made() -> None:
    """It would cost time and lead nowhere."""
    assert {call.trace_parent for call in calls(run({}))} == {""}


@pytest.mark.parametrize("killing", [False, True], ids=["fresh", "resumed"])
def test_the_context_of_a_call_is_its_span(killing: bool) -> None:
    """Every call's header names the trace and the span that the log's own traces have for it."""
    made = run(SENT, killing=killing)
    builder = TraceBuilder(Sampling(1.0, 0))
    spans = [span for record in made.records for span in builder.apply(record)]
    ended = [s for s in spans if s.name.startswith("chat ") and ("rl.span.truncated", True) not in s.attributes]
    ours = {(span.trace_id.hex(), span.span_id.hex()) for span in ended}
    said = {tuple(call.trace_parent.split("-")[1:3]) for call in calls(made)}
    assert ours <= said
    assert len(ours) > 50
    assert len(said) == len(calls(made))


def test_the_sampled_flag_follows_the_group_and_evaluations_are_always_sampled() -> None:
    """All calls of a group have the same flag, that of the run's share."""
    made = run(SENT)
    name = run_id("simulated", made.records[0].ts)
    groups = {
        record.event.trajectory: record.event.group
        for record in made.records
        if isinstance(record.event, TrajectoryStarted)
    }
    flags = {}
    for call in calls(made):
        group = groups[call.trajectory]
        flag = call.trace_parent.rpartition("-")[2]
        expected = group is None or traced(name, group, 0.5)
        assert flag == f"{int(expected):02x}"
        flags[group] = flag
    assert flags[None] == "01"
    assert set(flags.values()) == {"00", "01"}


def test_decisions_do_not_depend_on_it() -> None:
    """With and without, the same seed gives the same log, but for the headers and the configuration."""
    plain, sent = run({}), run(SENT)
    assert len(plain.records) == len(sent.records)
    for one, other in zip(plain.records[1:], sent.records[1:], strict=True):
        event = other.event
        if isinstance(event, LlmCallStarted):
            event = event.model_copy(update={"trace_parent": ""})
        assert one.event == event


def test_a_fork_has_an_id_of_its_own_and_a_resume_has_not() -> None:
    """The id is that of the run's name and start, or of the fork's."""
    hour = 3_600_000_000_000
    start = RunStarted(
        run="demo", config={"run": {"steps": 1}}, code_version="", seed=0, host="", pid=0, prompts=1
    )
    view, identity = View(), Identity()
    records = [
        Record(0, 0, 0, "run", None, "", start),
        Record(1, hour, 1, "run", None, "", RunResumed(step=0, version=0)),
        Record(2, 2 * hour, 2, "run", None, "", RunResumed(step=0, version=0, forked_from="runs/demo")),
    ]
    seen = []
    for record in records:
        identity.apply(record)
        view.apply(record)
        seen.append(identity.run)
    assert seen == ["demo-19700101-000000", "demo-19700101-000000", "demo-19700101-020000"]
    assert view.identity == identity
