"""Each rule by which a trajectory is traced although its group was not drawn, and its neighbour that is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trace_logs import Told, attributes, spans_of, traced

from eventrain.adapters.telemetry.traces.sampling import Sampling
from eventrain.events.identity import traced as drawn
from eventrain.events.types import (
    GroupDiscarded,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    RetryScheduled,
    StallDetected,
    TrajectoryDropped,
)

NONE = Sampling(0.0, 0)


def kept(tell: Callable[[Told], None], sampling: Sampling = NONE) -> set[str]:
    """Return the trajectories that are traced of what `tell` tells."""
    told = Told()
    tell(told)
    return traced(spans_of(told.records, sampling))


def test_a_plain_group_is_not_traced_at_share_zero() -> None:
    """Nothing went wrong, nothing was slow enough: nothing is kept but the step, whose links say so."""
    told = Told()
    told.group(1, 0.1, 0.2)
    told.step(0, 1)
    spans = spans_of(told.records, NONE)
    assert traced(spans) == set()
    (step,) = [span for span in spans if span.name == "rl.step" and span.links]
    assert [dict(link.attributes)["rl.sampled"] for link in step.links] == [False, False]


def test_a_failed_attempt_is_traced_with_the_retry_that_follows() -> None:
    """The trajectory is kept, both attempts of it; its sibling is not."""

    def tell(told: Told) -> None:
        told.dispatch(1)
        told.start("1/0")
        told.fail("1/0")
        told.publish(RetryScheduled(trajectory="1/0", group=1, attempt=1, delay_s=0.5))
        told.publish(GroupDiscarded(group=7, reason="surplus"), 0.5)
        told.trajectory("1/0", attempt=1)
        told.trajectory("1/1")
        told.buffer(1)
        told.step(0, 1)

    assert kept(tell) == {"1/0"}
    told = Told()
    tell(told)
    roots = [s for s in spans_of(told.records, NONE) if s.name.startswith("invoke_agent")]
    first, second = (attributes(span) for span in roots)
    assert (first["rl.rollout.attempt"], first["rl.failure"]) == (0, "env_error")
    assert [event.name for event in roots[0].events] == ["exception", "rl.retry_scheduled"]
    assert second["rl.outcome"] == "completed"


@pytest.mark.parametrize(("failure", "expected"), [("env_expired", {"1/0"}), ("cancelled", set())])
def test_an_attempt_that_was_called_off_did_not_fail(failure: str, expected: set[str]) -> None:
    """An expired attempt is kept; a cancelled one is nobody's failure."""

    def tell(told: Told) -> None:
        told.dispatch(1)
        told.start("1/0")
        told.publish(GroupDiscarded(group=1, reason="surplus"))
        told.fail("1/0", failure)

    assert kept(tell) == expected


def test_a_dropped_trajectory_is_traced() -> None:
    """A trajectory that its group goes on without is kept, and says that it was dropped."""

    def tell(told: Told) -> None:
        told.dispatch(1)
        told.start("1/0")
        told.fail("1/0")
        told.publish(
            TrajectoryDropped(trajectory="1/0", group=1, failure="env_error", blame="prompt", message="m")
        )
        told.trajectory("1/1")
        told.buffer(1, 1)
        told.step(0, 1)

    assert kept(tell) == {"1/0"}


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        (GroupEvicted(group=1, lag=3), {"1/0", "1/1"}),
        (
            GroupFailed(group=1, failure="env_error", retryable=False, blame="prompt", message="m"),
            {"1/0", "1/1"},
        ),
        (GroupFiltered(group=1, reason="zero_variance", reward_mean=1.0), set()),
        (GroupDiscarded(group=1, reason="run_ended"), set()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_groups_that_failed_or_were_evicted_are_traced(fate, expected: set[str]) -> None:
    """Of the ways in which a group is not trained, these two are somebody's concern."""

    def tell(told: Told) -> None:
        told.dispatch(1)
        told.trajectory("1/0")
        told.trajectory("1/1")
        told.publish(fate)

    assert kept(tell) == expected


@pytest.mark.parametrize(("count", "expected"), [(0, set()), (1, {"2/1"}), (2, {"2/1", "1/1"})])
def test_the_slowest_of_a_step_are_traced(count: int, expected: set[str]) -> None:
    """As many as asked for, the slowest first, whichever groups they are in."""

    def tell(told: Told) -> None:
        told.group(1, 0.9, 0.1)
        told.group(2, 0.1, 2.0)
        told.step(0, 1, 2)

    def timed(told: Told) -> None:
        tell(told)
        told.group(3, 0.1, 0.1)  # of no step

    assert kept(timed, Sampling(0.0, count)) >= expected
    assert len(kept(timed, Sampling(0.0, count))) == count


def test_the_group_that_a_step_waited_for_last_is_traced() -> None:
    """The one that was buffered last before the wait ended; not one from before the wait, nor one from behind it."""
    told = Told()
    told.group(1, 0.1, 0.1)
    waits = told.wait()
    told.group(2, 0.1, 0.1)
    told.group(3, 0.1, 0.1)
    told.waited(waits)
    told.group(4, 0.1, 0.1)
    told.step(0, 1, 2, 3, 4)
    spans = spans_of(told.records, NONE)
    assert traced(spans) == {"3/0", "3/1"}
    (wait,) = [span for span in spans if span.name == "rl.wait_for_buffer"]
    (link,) = wait.links
    assert dict(link.attributes)["rl.trajectory.id"] == "3/1"
    assert link.span_id in {span.span_id for span in spans}


def test_a_wait_that_no_group_ended_keeps_none() -> None:
    """Where something else ended the wait, no group is on the critical path."""
    told = Told()
    told.group(1, 0.1, 0.1)
    told.waited(told.wait())
    told.step(0, 1)
    spans = spans_of(told.records, NONE)
    assert traced(spans) == set()
    assert [span.links for span in spans if span.name == "rl.wait_for_buffer"] == [()]


def test_what_is_open_at_a_stall_is_traced() -> None:
    """What stands still is kept as a copy; what had ended before, of a group not drawn, is not."""
    told = Told()
    told.dispatch(1)
    told.trajectory("1/0")
    told.start("1/1")
    told.call("1/1")
    told.publish(StallDetected(stall=0, stall_kind="deadlock", chain=("a",), sentence="s"), 9)
    spans = [span for span in spans_of(told.records, NONE) if "rl.trajectory.id" in attributes(span)]
    assert {attributes(span)["rl.trajectory.id"] for span in spans} == {"1/1"}


def test_groups_are_drawn_whole_and_as_the_engines_were_told() -> None:
    """A share of one half keeps the groups that `events.identity.traced` names, whole."""
    told = Told()
    for group in range(40):
        told.group(group, 0.1, 0.1)
    told.step(0, *range(40))
    names = {
        f"{group}/{index}" for group in range(40) for index in (0, 1) if drawn("told-20260101-120000", group, 0.5)
    }
    assert 10 < len(names) < 70
    assert traced(spans_of(told.records, Sampling(0.5, 0))) == names


def test_the_configuration_of_the_run_decides_unless_asked_otherwise() -> None:
    """Without a sampling of its own an export keeps what the log's configuration says."""
    config = {**Told.__init__.__defaults__[0], "telemetry": {"trace_share": 0.0, "trace_slowest": 0}}
    told = Told(config)
    told.group(1, 0.1, 0.1)
    told.step(0, 1)
    assert traced(spans_of(told.records)) == set()
    assert traced(spans_of(told.records, Sampling(1.0, 0))) == {"1/0", "1/1"}
