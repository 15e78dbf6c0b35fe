"""What the traces of a small log look like: names, places, attributes, times."""

from __future__ import annotations

import pytest
from trace_logs import START_TS, Told, attributes, spans_of

from eventrain.adapters.telemetry.traces.origin import model_name
from eventrain.adapters.telemetry.traces.sampling import Sampling
from eventrain.adapters.telemetry.traces.spans import Kind, Span, Status
from eventrain.events.identity import chat_span_id, trace_id
from eventrain.events.types import (
    BatchTaken,
    EvalCompleted,
    EvalStarted,
    GroupDiscarded,
    GroupRestored,
    LlmCallFinished,
    PhaseEntered,
    RunFailed,
    RunResumed,
    StallDetected,
    StepCompleted,
    SyncAcknowledged,
    SyncRetried,
    SyncStarted,
    SyncVerified,
)

ALL = Sampling(1.0, 0)
RUN = "told-20260101-120000"


def below(spans: list[Span], parent: Span) -> list[Span]:
    """Return the children of `parent`, by their start."""
    return sorted((span for span in spans if span.parent == parent.span_id), key=lambda span: span.start_ns)


def named(spans: list[Span], name: str) -> list[Span]:
    """Return the spans called `name`."""
    return [span for span in spans if span.name == name]


def test_a_trajectory_is_a_tree_from_its_dispatch_to_its_batch() -> None:
    """The parts lie below the root in the order in which they happened, the calls below their turn."""
    told = Told()
    told.group(5, 0.1, 0.2)
    told.step(0, 5)
    spans = [span for span in spans_of(told.records, ALL) if span.trace_id == trace_id(RUN, "5/1")]
    (root,) = [span for span in spans if not span.parent]
    assert root.name == "invoke_agent number_hunt"
    assert [s.name for s in below(spans, root)] == [
        "rl.queue", "rl.env.setup", "rl.turn", "rl.reward", "rl.buffer",
    ]  # fmt: skip
    (turn,) = named(spans, "rl.turn")
    assert [s.name for s in below(spans, turn)] == ["chat tiny", "execute_tool env.step"]
    (chat,) = named(spans, "chat tiny")
    assert (chat.kind, chat.span_id) == (Kind.CLIENT, chat_span_id(RUN, "5/1", 0, 0))
    assert attributes(chat) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "torch",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.usage.input_tokens": 8,
        "gen_ai.usage.output_tokens": 5,
        "rl.engine": "e0",
        "rl.llm.queue_seconds": 0.05,
        "gen_ai.response.finish_reasons": ("stop",),
        "rl.weight_version.start": 0,
        "rl.weight_version.end": 1,
        "rl.weight_version.spans": ("0:3", "1:2"),
    }
    said = attributes(root)
    assert said["gen_ai.agent.name"] == "number_hunt"
    assert said["gen_ai.conversation.id"] == said["rl.trajectory.id"] == "5/1"
    assert (said["rl.group.id"], said["rl.staleness"], said["rl.reward"]) == (5, 0, 1.0)
    (buffer,) = named(spans, "rl.buffer")
    assert attributes(buffer)["rl.consumed_by.step"] == 0
    assert attributes(buffer)["rl.outcome"] == "trained"
    assert buffer.end_ns == root.end_ns


def test_no_name_holds_an_id() -> None:
    """However many groups and steps there are, the names of spans are the same few."""
    told = Told()
    for step in range(12):
        told.group(step, 0.1, 0.1)
        told.step(step, step)
    assert len({span.name for span in spans_of(told.records, ALL)}) == 12


def test_a_step_of_512_trajectories_links_to_all_of_them() -> None:
    """Not one link is left out, and each says how stale its trajectory was."""
    told = Told()
    for group in range(64):
        told.group(group, *[0.01] * 8)
    told.step(0, *range(64))
    spans = spans_of(told.records, ALL)
    step = next(span for span in named(spans, "rl.step") if span.links)
    ids = {span.span_id for span in spans}
    assert len(step.links) == len({link.span_id for link in step.links}) == 512
    for link in step.links:
        assert link.span_id in ids
        assert {"rl.weight_version", "rl.staleness"} <= {key for key, _ in link.attributes}


def test_the_parts_of_a_step_lie_in_it_and_steps_do_not_overlap() -> None:
    """Each step begins where the one before ended, with its wait, and has its parts in order."""
    told = Told()
    for step in range(2):
        waits = told.wait()
        told.group(step, 0.1, 0.1)
        told.waited(waits)
        told.step(step, step)
    told.finish()
    spans = spans_of(told.records, ALL)
    first, second, last = sorted(named(spans, "rl.step"), key=lambda span: span.start_ns)
    parts = ["rl.wait_for_buffer", "rl.convert", "rl.train", "rl.weight_sync"]
    assert [span.name for span in below(spans, first)] == parts
    assert [span.name for span in below(spans, second)] == parts
    assert first.end_ns == second.start_ns
    assert attributes(second)["rl.iteration"] == 1
    assert attributes(last)["rl.span.truncated"] is True  # it began to wait, and the run ended


def test_a_failure_has_an_error_and_an_exception() -> None:
    """The call that failed and the attempt that it ended say so, with kind and message."""
    told = Told()
    told.dispatch(1)
    told.start("1/0")
    told.call("1/0")
    told.publish(
        LlmCallFinished(
            trajectory="1/0", turn=0, engine="e0", outcome="lost", seconds=0.3, message="it is gone"
        ),
        0.3,
    )
    told.fail("1/0", "engine_lost")
    told.publish(GroupDiscarded(group=1, reason="surplus"))
    spans = spans_of(told.records, ALL)
    (chat,), (root,) = named(spans, "chat tiny"), named(spans, "invoke_agent number_hunt")
    assert (chat.status, chat.message) == (Status.ERROR, "it is gone")
    assert root.status == Status.ERROR
    (event,) = root.events
    assert dict(event.attributes) == {
        "exception.type": "engine_lost",
        "exception.message": "ZeroDivisionError: division by zero",
    }
    assert named(spans, "rl.turn")[0].end_ns == chat.end_ns


def test_a_stall_shows_what_is_open_and_the_true_spans_come_later() -> None:
    """Copies have ids of their own and are marked; afterwards the whole tree comes, once, under its own."""
    told = Told()
    told.dispatch(1)
    told.start("1/0")
    told.call("1/0")
    told.publish(StallDetected(stall=0, stall_kind="overdue", chain=("a",), sentence="s"), 60)
    at_stall = len(told.records) - 1
    told.publish(
        LlmCallFinished(trajectory="1/0", turn=0, engine="e0", outcome="completed", tokens=3, seconds=61.0), 1
    )
    told.complete("1/0")
    told.buffer(1)
    told.step(0, 1)
    spans = [span for span in spans_of(told.records, ALL) if span.trace_id == trace_id(RUN, "1/0")]
    copies = [span for span in spans if attributes(span).get("rl.span.snapshot_seq") == at_stall]
    marked = {span.name for span in copies if attributes(span).get("rl.span.truncated")}
    assert marked == {"invoke_agent number_hunt", "rl.turn", "chat tiny"}
    assert {span.name for span in copies} - marked == {"rl.queue", "rl.env.setup"}
    chats = named(spans, "chat tiny")
    assert len({span.span_id for span in chats}) == 2
    assert chats[-1].span_id == chat_span_id(RUN, "1/0", 0, 0)
    assert "rl.span.truncated" not in attributes(chats[-1])


@pytest.mark.parametrize("resumed", [False, True])
def test_what_a_stall_leaves_open_is_copied_once_where_nothing_follows_it(resumed: bool) -> None:
    """The run's process goes right after the stall: the log ends there, or a resume is the next that is heard."""
    told = Told()
    told.dispatch(1)
    told.start("1/0")
    told.call("1/0")
    told.publish(StallDetected(stall=0, stall_kind="overdue", chain=("a",), sentence="s"), 60)
    if resumed:
        told.publish(RunResumed(step=0, version=0, last_mono=told.mono), 10)
    spans = spans_of(told.records, ALL)
    assert named(spans, "chat tiny")
    assert len({span.span_id for span in spans}) == len(spans)


def test_a_log_that_breaks_off_is_cut_where_it_ends() -> None:
    """What was open when the process died is there, cut off at the last event; asked twice, the same."""
    told = Told()
    told.group(1, 0.1, 0.1)
    told.dispatch(2)
    told.start("2/0")
    spans = spans_of(told.records, ALL)
    roots = named(spans, "invoke_agent number_hunt")
    assert {attributes(span)["rl.trajectory.id"] for span in roots} == {"1/0", "1/1", "2/0"}
    assert all(attributes(span)["rl.span.truncated"] for span in roots)
    assert {span.end_ns for span in roots} == {START_TS + told.mono}
    assert spans == spans_of(told.records, ALL)


def test_a_resume_closes_what_the_dead_process_ran() -> None:
    """Its attempts end with the last event of that life, not hours later; a group in the buffer waits on."""
    told = Told()
    told.group(1, 0.1, 0.1)
    told.dispatch(2)
    told.start("2/0")
    resumed = told.publish(RunResumed(step=0, version=0, host="other", pid=8), 5)
    told.publish(GroupDiscarded(group=2, reason="interrupted"))
    told.step(0, 1)
    spans = spans_of(told.records[:], ALL)
    (lost,) = [s for s in named(spans, "invoke_agent number_hunt") if attributes(s)["rl.trajectory.id"] == "2/0"]
    assert attributes(lost)["rl.span.snapshot_seq"] == resumed - 1
    assert lost.end_ns - lost.start_ns < 1e9
    waited = max(named(spans, "rl.buffer"), key=lambda span: span.end_ns)
    assert attributes(waited)["rl.buffer.dwell_seconds"] > 5
    assert {dict(span.resource.attributes)["host.name"] for span in spans} == {"box", "other"}


def test_a_step_that_is_trained_again_has_a_second_span_in_the_same_trace() -> None:
    """Its groups' second time in the buffer stands beside their trees, linked to them."""
    told = Told()
    told.group(1, 0.1, 0.1)
    told.step(0, 1)
    told.publish(RunResumed(step=0, version=0))
    taken = [r.event for r in told.records if type(r.event).__name__ == "TrajectoryCompleted"]
    finished = [
        {"trajectory": e.trajectory, "reward": 1.0, "completion_tokens": 5, "payload": e.payload} for e in taken
    ]
    told.publish(
        GroupRestored.model_validate(
            {
                "group": 1, "prompt": 1, "index": 1, "target": 0, "version": 0, "size": 2, "step": 0,
                "trajectories": finished,
            }
        )
    )  # fmt: skip
    told.step(0, 1)
    spans = spans_of(told.records, ALL)
    twice = [span for span in named(spans, "rl.step") if span.links]
    assert len(twice) == 2
    assert len({span.trace_id for span in twice}) == 1
    assert [link.span_id for link in twice[0].links] == [link.span_id for link in twice[1].links]
    again = [span for span in named(spans, "rl.buffer") if not span.parent]
    roots = {span.span_id for span in named(spans, "invoke_agent number_hunt")}
    assert len(again) == 2
    assert {span.links[0].span_id for span in again} <= roots


def test_a_fork_has_ids_of_its_own_and_links_to_what_it_inherited() -> None:
    """Before the fork the spans are those of the first run, so that a step links to traces that exist."""
    told = Told()
    told.group(1, 0.1, 0.1)
    told.publish(RunResumed(step=0, version=0, forked_from="runs/told"), 3600)
    told.group(2, 0.1, 0.1)
    told.step(0, 1, 2)
    spans = spans_of(told.records, ALL)
    roots = {attributes(s)["rl.trajectory.id"]: s for s in named(spans, "invoke_agent number_hunt")}
    assert roots["1/0"].trace_id == trace_id(RUN, "1/0")
    assert roots["2/0"].trace_id == trace_id("told-20260101-130000", "2/0")
    step = next(span for span in named(spans, "rl.step") if span.links)
    assert {link.span_id for link in step.links} == {span.span_id for span in roots.values()}


def test_a_sync_says_what_was_tried_again_and_verified() -> None:
    """Attempts that failed and the proof of what arrived are events of the engine's span, at their times."""
    told = Told()
    told.group(5, 0.1)
    told.publish(BatchTaken(step=0, groups=(5,)))
    told.publish(PhaseEntered(phase="weight_sync", step=1))
    told.publish(SyncStarted(engine="e0", version=1, mode="pause"))
    told.publish(SyncRetried(engine="e0", version=1, attempt=1, message="connection reset"), 0.1)
    told.publish(
        SyncVerified(engine="e0", version=1, tensors=3, digest="d1", size_bytes=48, seconds=0.2), 0.2
    )
    told.publish(SyncAcknowledged(engine="e0", version=1, seconds=0.4), 0.1)
    (sync,) = named(spans_of(told.records, ALL), "rl.weight_sync.engine")
    retried, verified = sync.events
    assert (retried.name, dict(retried.attributes)) == (
        "rl.weight_sync.retried", {"rl.weight_sync.attempt": 1, "exception.message": "connection reset"},
    )  # fmt: skip
    assert (verified.name, dict(verified.attributes)) == (
        "rl.weight_sync.verified", {"rl.weight_sync.tensors": 3, "rl.bytes": 48, "rl.weight_sync.digest": "d1"},
    )  # fmt: skip
    assert sync.start_ns < retried.time_ns < verified.time_ns < sync.end_ns
    assert sync.status is Status.UNSET


def test_a_trained_step_ends_with_a_run_that_fails_in_its_weight_sync() -> None:
    """What was open in it is called off; no copy of it is needed."""
    told = Told()
    told.group(5, 0.1)
    told.publish(BatchTaken(step=0, groups=(5,)))
    told.publish(
        StepCompleted(step=0, version=1, loss=0.0, reward_mean=0.0, lag_mean=0.0, lag_max=0), 0.1
    )
    told.publish(PhaseEntered(phase="weight_sync", step=1))
    told.publish(RunFailed(failed_actor="engine_pool", error="no_engine_left", message="gone"), 0.1)
    spans = spans_of(told.records, ALL)
    (step,), (sync,) = named(spans, "rl.step"), named(spans, "rl.weight_sync")
    assert "rl.span.truncated" not in attributes(step)
    assert attributes(sync)["rl.outcome"] == "cancelled"
    assert step.end_ns == sync.end_ns


def test_an_evaluation_links_to_its_trajectories() -> None:
    """They have traces of their own, however small the share, and the step's evaluation leads to them."""
    told = Told()
    told.publish(EvalStarted(eval=4, step=0, version=0, trajectories=1))
    told.trajectory("eval4/0")
    told.publish(
        EvalCompleted(eval=4, step=0, version=0, reward_mean=1.0, completed=1, failed=0, seconds=0.2)
    )
    told.step(0)
    spans = spans_of(told.records, Sampling(0.0, 0))
    (root,), (span,) = named(spans, "invoke_agent number_hunt"), named(spans, "rl.eval")
    assert [link.span_id for link in span.links] == [root.span_id]
    assert attributes(root)["rl.eval.id"] == "eval4"


def test_a_clock_that_is_set_changes_no_duration() -> None:
    """Back or forward: all times stand as if it had not been set, until the run is resumed; then it is believed."""
    plain, back, forward = Told(), Told(), Told()
    for told, change_ns in ((plain, 0), (back, -3_600_000_000_000), (forward, 3_600_000_000_000)):
        told.dispatch(1)
        told.start("1/0")
        told.set_forward_ns = change_ns
        told.turn("1/0", 0.5)
        told.complete("1/0")
        told.buffer(1)
        told.step(0, 1)
    unchanged = spans_of(plain.records, ALL)
    assert spans_of(back.records, ALL) == spans_of(forward.records, ALL) == unchanged
    forward.publish(RunResumed(step=1, version=1))
    forward.group(2, 0.1)
    assert max(span.end_ns for span in spans_of(forward.records, ALL)) == forward.records[-1].ts


def test_models_are_called_what_people_call_them() -> None:
    """A folder by its last part, a model of a hub by owner and name."""
    assert model_name("/models/tiny") == "tiny"
    assert model_name("../shared/models/tiny") == "tiny"
    assert model_name("owner/model-1B") == "owner/model-1B"
    assert model_name("tiny") == "tiny"
