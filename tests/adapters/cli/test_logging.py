"""Log lines say what the events say: readable on a terminal, JSON elsewhere."""

from __future__ import annotations

import io
import json

import pytest
import structlog

from eventrain.adapters.logging import LEVELS, EventLogger, configure
from eventrain.events.types import BY_KIND


@pytest.fixture(autouse=True)
def _restored():
    yield
    structlog.reset_defaults()


def lines_of(records, *, human: bool, debug: bool = False, step_every: int = 1) -> list[str]:
    stream = io.StringIO()
    configure(human=human, debug=debug, stream=stream)
    logger = EventLogger(step_every)
    for record in records:
        logger.apply(record)
    return stream.getvalue().splitlines()


def test_json_lines_carry_the_events_fields(small_run) -> None:
    """Each line is an object with the event's kind, seq, time and fields, and only the kinds that matter have one."""
    lines = [json.loads(line) for line in lines_of(small_run.records, human=False)]
    assert [line["event"] for line in lines] == [
        "run_started",
        "engine_up",
        "learner_up",
        "step_completed",
        "step_completed",
        "group_failed",
        "prompt_quarantined",
    ]
    step = lines[3]
    assert (step["step"], step["reward_mean"], step["loss"], step["level"]) == (0, 0.75, -0.01235, "info")
    assert small_run.records[step["seq"]].event.kind == "step_completed"
    assert step["timestamp"] == "2026-01-01T12:00:03.870Z"
    assert "config" not in lines[0]


def test_human_lines_are_one_line_each_without_colour_codes(small_run) -> None:
    """On a terminal a line begins with the time and names the event; no colours unless they are asked for."""
    lines = lines_of(small_run.records, human=True)
    assert len(lines) == 7
    assert "step_completed" in lines[3]
    assert "step=0" in lines[3]
    assert "\x1b" not in "".join(lines)


def test_debug_adds_the_quieter_kinds(small_run) -> None:
    """With debug, published weights and failed attempts have lines too."""
    kinds = [json.loads(line)["event"] for line in lines_of(small_run.records, human=False, debug=True)]
    assert kinds.count("weights_published") == 2
    assert kinds.count("trajectory_failed") == 2


def test_steps_can_be_thinned_out(small_run) -> None:
    """With step_every 2 only every other step has a line."""
    lines = [json.loads(line) for line in lines_of(small_run.records, human=False, step_every=2)]
    assert [line["step"] for line in lines if line["event"] == "step_completed"] == [0]


def test_every_level_belongs_to_a_kind_that_exists() -> None:
    """No log line waits for an event that is never published."""
    assert set(LEVELS) <= set(BY_KIND)
