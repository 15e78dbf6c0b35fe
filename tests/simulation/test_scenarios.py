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


@pytest.mark.parametrize("killing", [False, True], ids=["fresh", "resumed"])
@pytest.mark.parametrize("evaluating", [False, True], ids=["plain", "eval"])
@pytest.mark.parametrize("path", [path for path in FILES if path.stem != REFUSED], ids=lambda path: path.stem)
def test_a_scenario_ends_as_it_says(path: Path, evaluating: bool, killing: bool) -> None:
    """Under every schedule tried, killed and resumed or not, every law holds and the run ends as expected."""
    scenario = load_scenario(path)
    for tape in map(Tape, range(3)):
        assert judge(simulate(scenario, tape, evaluating=evaluating, killing=killing)) is None
    assert path.read_text().startswith("#"), "a scenario says what it is about"


def test_what_cannot_last_is_refused() -> None:
    """Settings that are certain to end early never start."""
    scenario = load_scenario(FOLDER / f"{REFUSED}.toml")
    with pytest.raises(ValueError, match=scenario.expect.refused):
        scenario.run_config()
