"""The simulated devices: what their samples say is what the engines and the learner did."""

from __future__ import annotations

import itertools

import pytest

from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.events.types import DeviceSampled, RunFinished, StepCompleted, StepStarted

WORLD = {
    "config": {"run": {"steps": 4}},
    "world": {"engines": 2, "turns": 2, "environment_s": 3.0, "device_s": 1.0},
}


def simulated(seed=0, **world):
    """Run the world and return its records."""
    table = {**WORLD, "world": {**WORLD["world"], **world}}
    return simulate(Scenario.model_validate(table), Tape(seed)).records


def test_the_learner_is_busy_for_as_long_as_it_trains():
    """The busy seconds of the learner's samples are the seconds between the start and the end of its steps."""
    records = simulated()
    started, trained = 0, 0
    for record in records:
        if isinstance(record.event, StepStarted):
            started = record.mono
        elif isinstance(record.event, StepCompleted):
            trained += record.mono - started
    busy = sum(
        sample.utilization * sample.window_s
        for sample in (record.event for record in records)
        if isinstance(sample, DeviceSampled) and sample.pool == "learner"
    )
    assert busy == pytest.approx(trained / 1e9, rel=0.03)  # an intent is on disk before it begins


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "cuda:2"])
def test_windows_cover_the_run_without_a_gap(device):
    """Each window of a device begins where the one before ended."""
    records = simulated()
    ends = [
        (record.mono, record.event.window_s)
        for record in records
        if isinstance(record.event, DeviceSampled) and record.event.device == device
    ]
    assert len(ends) > 10
    for (before, _), (mono, window_s) in itertools.pairwise(ends):
        assert mono - before == pytest.approx(window_s * 1e9, abs=10)


def test_an_idle_engine_is_not_busy():
    """While all trajectories are in the environment no engine works: slow tools halve the engines' use."""

    def use(records):
        samples = [r.event for r in records if isinstance(r.event, DeviceSampled) and r.event.pool == "engine"]
        return sum(s.utilization * s.window_s for s in samples) / sum(s.window_s for s in samples)

    assert use(simulated(environment_s=20.0)) < use(simulated(environment_s=0.1)) / 2


def test_without_an_interval_nothing_is_sampled():
    """A world that says nothing of its devices has no samples in its log, and ends as ever."""
    records = simulated(device_s=0.0)
    assert not any(isinstance(record.event, DeviceSampled) for record in records)
    assert isinstance(records[-1].event, RunFinished)


def test_the_run_still_ends_with_its_last_event():
    """Samples never follow the end of the run."""
    assert isinstance(simulated()[-1].event, RunFinished)


def test_samples_are_part_of_the_seeded_log():
    """The same seed gives the same samples."""
    assert simulated(3, spread=3.0) == simulated(3, spread=3.0)
