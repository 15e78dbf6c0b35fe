"""The stall cases of tests/scenarios, fresh and resumed, with and without evaluations, under several schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventrain.adapters.cli.scenario_file import load_scenario
from eventrain.adapters.simulated.judge import judge
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape

FOLDER = Path(__file__).parent.parent / "scenarios"
FILES = sorted(FOLDER.glob("*.toml"))
REFUSED = "s04_too_little_data"


CASES = [
    pytest.param(path, evaluating, killing, id=f"{path.stem}-{'eval' if evaluating else 'plain'}-{life}")
    for path in FILES
    if path.stem != REFUSED
    for evaluating in (False, True)
    for killing, life in ((False, "fresh"), (True, "resumed"))
]


def ends_as_it_says(path: Path, evaluating: bool, killing: bool, seeds: range) -> None:
    """Demand that every law holds and the run ends as expected, under the schedule of each seed."""
    scenario = load_scenario(path)
    for seed in seeds:
        broken = judge(simulate(scenario, Tape(seed), evaluating=evaluating, killing=killing))
        assert broken is None, f"seed {seed}: {broken}"


@pytest.mark.parametrize(("path", "evaluating", "killing"), CASES)
def test_a_scenario_ends_as_it_says(path: Path, evaluating: bool, killing: bool) -> None:
    """Killed and resumed or not, every law holds and the run ends as expected."""
    ends_as_it_says(path, evaluating, killing, range(1))
    assert path.read_text().startswith("#"), "a scenario says what it is about"


@pytest.mark.slow
@pytest.mark.parametrize(("path", "evaluating", "killing"), CASES)
def test_a_scenario_ends_as_it_says_under_other_schedules(
    path: Path, evaluating: bool, killing: bool
) -> None:
    """The same under four more schedules."""
    ends_as_it_says(path, evaluating, killing, range(1, 5))


def test_what_cannot_last_is_refused() -> None:
    """Settings that are certain to end early never start."""
    scenario = load_scenario(FOLDER / f"{REFUSED}.toml")
    with pytest.raises(ValueError, match=scenario.expect.refused):
        scenario.run_config()
