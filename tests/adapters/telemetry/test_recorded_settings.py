"""Settings of a log that another version wrote: every fold of telemetry reads on, with what it can use of them."""

from __future__ import annotations

from typing import Any

import pytest
from perfetto_laws import exported
from told_runs import phased_run

from eventrain.adapters.report.history import read_history
from eventrain.adapters.telemetry.metrics.meter import Meter
from eventrain.adapters.telemetry.trackers.figures import StepFigures
from eventrain.core.config import recorded_scheduler
from eventrain.events.record import Record
from eventrain.events.types import RunStarted

SCHEDULER = {"groups_per_step": 3, "max_staleness": 2, "oversample_groups": 1}
UNUSABLE = {"of_the_next_version": 1, "policy": "of_the_next_version", "permits": None}


def of_the_next_version(scheduler: Any) -> list[Record]:
    """Return a whole run in whose settings stands `scheduler`."""
    first, *rest = phased_run(2).records
    assert isinstance(first.event, RunStarted)
    config = {**first.event.config, "scheduler": scheduler, "section_of_the_next_version": {"a": 1}}
    return [first._replace(event=first.event.model_copy(update={"config": config})), *rest]


def test_settings_that_are_not_known_change_nothing() -> None:
    """The metrics, the figures of steps, the history and the trace are those of the same run without them."""
    records, plain = of_the_next_version({**SCHEDULER, **UNUSABLE}), of_the_next_version(SCHEDULER)

    def told(records: list[Record]) -> list[Any]:
        meter, figures = Meter(), StepFigures()
        for record in records:
            meter.apply(record)
            figures.apply(record)
        history = read_history(records)
        buffer = meter.snapshot(0).values["rl_buffer_capacity_groups"]
        return [buffer, figures.take(), history.capacity.values, exported(records)]

    assert told(records) == told(plain)
    buffer, rows, capacity, _ = told(records)
    assert list(buffer.values()) == list(capacity) == [12]
    assert {row.figures["async/gen_buffer_maxsize"] for row in rows} == {12.0}


@pytest.mark.parametrize("scheduler", [None, [], {}, {"groups_per_step": "many", "max_staleness": "old"}])
def test_settings_that_are_not_usable_count_as_their_defaults(scheduler: Any) -> None:
    """Where there is no section at all, or none of its values is of its kind, a step has one group."""
    found = recorded_scheduler({"scheduler": scheduler})
    assert (found.policy, found.groups_per_step, found.max_staleness) == ("targeted", 1, 1)
    assert recorded_scheduler({}) == found


def test_a_value_that_is_not_usable_takes_no_other_with_it() -> None:
    """What this version can read of the section counts."""
    found = recorded_scheduler({"scheduler": {**SCHEDULER, "max_staleness": -1, "buffer_groups": 7}})
    assert (found.groups_per_step, found.max_staleness, found.buffer_or_default) == (3, 1, 7)
