"""Settings that change when a run goes on: which may, and that every fold honours them from there on."""

from __future__ import annotations

from typing import Any

import pytest

from eventrain.core.config import RunConfig
from eventrain.core.projections import View
from eventrain.core.projections.accounting import Ledger
from eventrain.core.reconfiguration import FIXED, Change, changes, refused
from eventrain.events.record import Record
from eventrain.events.types import DataExhausted, Event, RunResumed, RunStarted


def config(**sections: dict[str, Any]) -> RunConfig:
    base: dict[str, dict[str, Any]] = {
        "run": {"steps": 10},
        "model": {"path": "m"},
        "data": {"kind": "generated", "size": 100},
        "environment": {"kind": "simulated"},
        "scheduler": {"groups_per_step": 2},
    }
    return RunConfig.model_validate({k: {**base.get(k, {}), **sections.get(k, {})} for k in {*base, *sections}})


def test_changes_name_key_old_and_new() -> None:
    """Only what differs is a change."""
    after = config(learner={"lr": 0.5}, run={"steps": 20})
    assert changes(config(), after) == [Change("run.steps", 10, 20), Change("learner.lr", 1e-6, 0.5)]
    assert changes(config(), config()) == []


@pytest.mark.parametrize(
    ("sections", "allowed"),
    [
        ({"learner": {"lr": 0.5}}, True),
        ({"scheduler": {"max_staleness": 3}}, True),
        ({"scheduler": {"max_staleness": 0}}, False),
        ({"scheduler": {"groups_per_step": 4}}, False),
        ({"scheduler": {"policy": "capacity"}}, False),
        ({"rollout": {"group_size": 4}}, False),
        ({"data": {"epochs": 2}}, True),
        ({"data": {"size": 99}}, False),
        ({"run": {"steps": 7}}, True),
        ({"run": {"steps": 6}}, False),
        ({"run": {"seed": 1}}, False),
        ({"model": {"path": "other"}}, False),
        ({"engine": {"count": 2}, "environment": {"options": {"a": 1}}}, True),
    ],
)
def test_what_the_log_has_decided_by_cannot_change(sections: dict[str, Any], allowed: bool) -> None:
    """Seed, data, model, sizes of groups and batches stay; bounds that kept groups may break are not tightened."""
    lines = list(refused(config(), config(**sections), step=6))
    assert (lines == []) is allowed


def test_fixed_settings_are_settings() -> None:
    """No key in the list is misspelt."""
    table = config().model_dump()
    for key in FIXED:
        section, name = key.split(".")
        assert name in table[section], key


def test_the_folds_take_the_configuration_of_the_resume() -> None:
    """Bounds, steps, engines and the end of the data are as the resume says, in the books and in the view."""
    view, ledger, seq = View(), Ledger(), 0

    def publish(event: Event) -> None:
        nonlocal seq
        record = Record(seq, seq, seq, "run", None, "", event)
        view.apply(record)
        ledger.apply(record)
        seq += 1

    before, after = config(), config(
        run={"steps": 20},
        scheduler={"max_staleness": 3, "permits": 3},
        engine={"count": 2},
        watchdog={"degraded_share": 0.5},
        rollout={"group_size": 8, "group_floor": 4},
    )  # fmt: skip
    dump = before.model_dump(mode="json")
    publish(RunStarted(run="r", config=dump, code_version="", seed=0, host="", pid=0, prompts=100, engines=1))
    publish(DataExhausted(drawn=0, quarantined=0))
    publish(RunResumed(step=0, version=0))
    assert (view.trainer.steps_total, view.outstanding.engines, view.prompts.exhausted) == (10, 1, True)
    assert ledger._limits["lag"] == 1
    publish(RunResumed(step=0, version=0, config=after.model_dump(mode="json"), engines=2))
    assert (view.trainer.steps_total, view.outstanding.engines, view.prompts.exhausted) == (20, 2, False)
    assert view.engines.low_share == 0.5
    assert ledger._limits == {"lag": 3, "in_flight": 3, "buffered": 8}
    assert ledger._members.floor == 4
    tokens = config(scheduler={"policy": "token_windowed", "max_staleness": 2}).model_dump(mode="json")
    publish(RunResumed(step=0, version=0, config=tokens))
    assert ledger._token_age.staleness == 2
    assert ledger._limits["token"] == 2
