"""The three incidents: their worlds are what their logs say, and the logs show what the docs walk through."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventrain.adapters.cli.scenario_file import load_scenario
from eventrain.adapters.simulated.judge import judge
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.telemetry.metrics.meter import Meter
from eventrain.core.config import RunConfig
from eventrain.events.reader import LogReader
from eventrain.events.types import Event, RunStarted, StallDetected

INCIDENTS = Path(__file__).resolve().parents[2] / "examples" / "incidents"
NAMES = ("env_bound", "stall", "weight_sync")


def measured(name: str) -> Meter:
    """Fold the stored log of an incident into metrics."""
    meter = Meter()
    for record in LogReader(INCIDENTS / name / "events").records():
        meter.apply(record)
    return meter


def idle_shares(name: str, pool: str) -> dict[str, float]:
    """Return the share of a pool's idle device seconds in all that it had, by cause."""
    snapshot = measured(name).snapshot(measured(name).last_mono)
    idle = {
        labels[1]: seconds
        for labels, seconds in snapshot.values["rl_gpu_idle_seconds_total"].items()
        if labels[0] == pool
    }
    all_s = sum(
        seconds
        for labels, seconds in snapshot.values["rl_gpu_allocated_seconds_total"].items()
        if labels[0] == pool
    )
    return {cause: seconds / all_s for cause, seconds in idle.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_log_is_what_its_world_gives(name: str) -> None:
    """Seed 0 of the world makes the stored events, in their order, and the run ends as the world expects."""
    simulated = simulate(load_scenario(INCIDENTS / f"{name}.toml"), Tape(0))
    assert judge(simulated) is None
    stored, made = LogReader(INCIDENTS / name / "events").records(), simulated.records
    assert [completed(record.event) for record in stored] == [completed(record.event) for record in made]


def completed(event: Event) -> Event:
    """Return the first event with its settings as this version has them: those that are new are at their defaults."""
    if not isinstance(event, RunStarted):
        return event
    return event.model_copy(update={"config": RunConfig.model_validate(event.config).model_dump(mode="json")})


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_a_collector_that_has_not_run_yet_is_not_asleep(seed: int) -> None:
    """When the hang ends, the collector's decision is due before it runs: only the hang is told, as one stall."""
    records = simulate(load_scenario(INCIDENTS / "stall.toml"), Tape(seed)).records
    kinds = [record.event.stall_kind for record in records if isinstance(record.event, StallDetected)]
    assert kinds == ["overdue"]


def test_there_are_no_others() -> None:
    """Each world has its log."""
    assert {path.stem for path in INCIDENTS.glob("*.toml")} == set(NAMES)
    assert {path.parent.name for path in INCIDENTS.glob("*/events")} == set(NAMES)


def test_the_stall_leaves_the_learner_waiting_for_one_group() -> None:
    """More than half of the learner's time is idle for a straggler or a stall, and hardly any for weight syncs."""
    idle = idle_shares("stall", "learner")
    assert idle["straggler"] + idle["fault"] > 0.5
    assert idle["weight_sync"] < 0.05


def test_engines_of_the_slow_environment_wait_for_it() -> None:
    """What the engines are idle for most is the environment."""
    idle = idle_shares("env_bound", "engine")
    assert max(idle, key=idle.__getitem__) == "environment"
    assert idle["environment"] > 0.3


def test_engines_of_the_slow_load_wait_for_weights() -> None:
    """What the engines are idle for most is the weight sync, for a third of their time and more."""
    idle = idle_shares("weight_sync", "engine")
    assert max(idle, key=idle.__getitem__) == "weight_sync"
    assert idle["weight_sync"] > 0.33
