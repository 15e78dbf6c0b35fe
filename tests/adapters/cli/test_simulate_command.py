"""`eventrain simulate`: what it prints, what it writes, and how it says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from eventrain.core.policies.targeted import Targeted

Command = Callable[..., Result]

SMALL = """
[config.run]
steps = 2
[config.scheduler]
groups_per_step = 2

[[fault]]
where = "engine.generate"
what = "refuse"
prompt = 1

[expect]
quarantined = [1]
"""


@pytest.fixture(name="scenario")
def _scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_a_line_for_each_seed_and_a_summary(command: Command, scenario: Path) -> None:
    """Every seed has its digest, events, virtual time and outcome; the same seeds print the same lines."""
    result = command("simulate", scenario, "--seeds", 3, "--seed", 5)
    assert result.exit_code == 0, result.output
    *lines, summary = result.output.splitlines()
    assert [line.split()[:2] for line in lines] == [["seed", "5"], ["seed", "6"], ["seed", "7"]]
    assert all(re.search(r"[0-9a-f]{12} +\d+ events +[\d.]+ s  completed$", line) for line in lines)
    assert summary.startswith("3 seeds in ")
    assert ": 0 broke a law; 3 completed; " in summary
    assert command("simulate", scenario, "--seeds", 3, "--seed", 5).output.splitlines()[:3] == lines


def test_the_log_is_a_run(command: Command, scenario: Path, tmp_path: Path) -> None:
    """What --log writes is read by the commands that look at a run."""
    assert command("simulate", scenario, "--eval", "--log", tmp_path / "one").exit_code == 0
    assert "simulated  completed" in command("status", tmp_path / "one").output
    assert "prompt_quarantined" in command("events", tmp_path / "one").output
    assert "eval_completed" in command("events", tmp_path / "one").output
    assert command("simulate", "--chaos", "--eval", "--seeds", 2, "--log", tmp_path / "many").exit_code == 0
    assert {path.name for path in (tmp_path / "many").iterdir()} == {"chaos-0", "chaos-1"}
    assert "eval_started" in command("events", tmp_path / "many" / "chaos-0").output


def test_a_broken_law_is_told_shrunk_and_played_back(
    command: Command, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted stall ends with exit code 1, the law, a command that shows it again, and a shorter tape that does."""

    def window(self: Targeted, view, config) -> range:
        version = view.engines.generation_version
        return range(0) if version is None else range(version, min(version + 2, config.run.steps))

    monkeypatch.setattr(Targeted, "window", window)
    monkeypatch.chdir(tmp_path)
    scenario.write_text(
        SMALL.replace("steps = 2", "steps = 8").replace('"refuse"', '"refuse"\nseconds = 9.0')
    )
    result = command("simulate", scenario, "--seed", 1)
    assert result.exit_code == 1
    assert "  BROKE 'never stalls': only a deadline ended the run: " in result.output
    assert f"  again: eventrain simulate {scenario} --seed 1\n" in result.output
    found = re.search(r"shrunk from ([\d,]+) choices to (\d+): eventrain (.*)", result.output)
    assert found is not None
    assert int(found[2]) < int(found[1].replace(",", ""))
    again = command(*found[3].split())
    assert again.exit_code == 1
    assert "BROKE 'never stalls'" in again.output


TINY = """
[config.run]
steps = 2
[config.scheduler]
groups_per_step = 1
max_staleness = 0
[config.rollout]
group_size = 2
[config.data]
size = 4

[[fault]]
where = "engine.generate"
what = "refuse"
times = 1
"""


def test_every_order_of_a_tiny_scenario(command: Command, scenario: Path) -> None:
    """One line says how many states and moves there are, that none breaks a law, and how the run ends."""
    scenario.write_text(TINY)
    result = command("simulate", scenario, "--exhaustive")
    assert result.exit_code == 0, result.output
    line = r"small: \d+ states, \d+ moves: no deadlock, no broken law; ends as completed in \d, in [\d.]+ s\n"
    assert re.fullmatch(line, result.output)


def test_the_shortest_way_to_a_deadlock(
    command: Command, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted deadlock is told with its chain and every move, its log can be read, and the exit code is 1."""

    def window(self: Targeted, view, config) -> range:
        version = view.engines.generation_version
        return range(0) if version is None else range(version + 1 if version else 0, version + 1)

    monkeypatch.setattr(Targeted, "window", window)
    scenario.write_text(TINY)
    result = command("simulate", scenario, "--exhaustive", "--log", tmp_path / "stalled")
    assert result.exit_code == 1
    first, why, way, *moves = result.output.splitlines()
    assert "BROKE 'never stalls'" in first
    assert why == (
        "  nothing can move: trainer waits buffer_ready(1) <- target 1 short by 1 <- collector waits version(2) "
        "<- trainer"
    )
    assert way == f"  shortest way there, {len(moves)} moves:"
    assert moves[0].split() == ["1", "trainer", "looks"]
    assert "batch_taken" in command("events", tmp_path / "stalled").output


def test_a_fault_that_messages_do_not_know_is_refused(command: Command, scenario: Path) -> None:
    """A rule about the disk is not silently left out of an exhaustive search."""
    scenario.write_text(TINY + '[[fault]]\nwhere = "disk"\nwhat = "slow"\nseconds = 1.0\n')
    result = command("simulate", scenario, "--exhaustive")
    assert result.exit_code == 2
    assert "small: fault[1]: at the level of messages disk is not part of it" in result.output


def test_settings_that_must_be_refused(command: Command, scenario: Path) -> None:
    """A scenario may expect that its settings never start; another reason than the expected one is a failure."""
    text = '[config.run]\nsteps = 9\n[config.data]\nsize = 2\n[expect]\nrefused = "need 36 prompts"\n'
    scenario.write_text(text)
    result = command("simulate", scenario)
    assert (result.exit_code, result.output) == (0, "small: refused before it starts, as it should be\n")
    scenario.write_text(text.replace("36", "40"))
    assert command("simulate", scenario).exit_code == 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("steps = 2", "steps = 0"), "small.toml: [config]: run.steps = 0: must be an integer >= 1"),
        (("steps", "stepz"), "small.toml: [config]: run.stepz = 2: unknown key; did you mean run.steps?"),
        (("refuse", "nonsense"), "small.toml: fault[0].what = 'nonsense': should be 'hang', 'delay'"),
        (
            ("refuse", "full"),
            "small.toml: fault[0]: what = 'full' cannot happen to engine.generate; it can: hang",
        ),
        (("prompt = 1", "promt = 1"), "small.toml: fault[0].promt: unknown key"),
        (("prompt = 1", 'prompt = "1"'), "small.toml: fault[0].prompt = '1': should be a valid integer"),
        (
            ("prompt = 1", 'engine = "e9"'),
            'small.toml: fault[0].engine = "e9": there are engine-0 to engine-0',
        ),
        (("quarantined = [1]", 'some = ["run_finishd"]'), "did you mean run_finished?"),
        (("[expect]", "[expcet]"), "small.toml: expcet: unknown key"),
    ],
)
def test_a_bad_scenario_is_one_clear_line(
    command: Command, scenario: Path, change: tuple[str, str], line: str
) -> None:
    """File, key and what is allowed; nothing is run."""
    scenario.write_text(SMALL.replace(*change))
    result = command("simulate", scenario)
    assert result.exit_code == 2
    assert line in result.output
    assert "seed " not in result.output


def test_options_that_contradict_each_other(command: Command, scenario: Path, tmp_path: Path) -> None:
    """Scenario and --chaos exclude each other, and a tape is one run."""
    (tmp_path / "tape.json").write_text("[]")
    for arguments, words in (
        ((), "give a scenario file or --chaos, one of the two"),
        ((scenario, "--chaos"), "give a scenario file or --chaos, one of the two"),
        ((scenario, "--seeds", 2, "--tape", tmp_path / "tape.json"), "--seeds does not go with it"),
        (("--chaos", "--exhaustive"), "no --chaos, no seeds, no tape"),
        ((scenario, "--seeds", 2, "--exhaustive"), "no --chaos, no seeds, no tape"),
        ((scenario, "--tape", tmp_path / "tape.json"), "tape.json: is no tape"),
        ((scenario, "--tape", tmp_path / "none.json"), "none.json: no such file"),
    ):
        result = command("simulate", *arguments)
        assert result.exit_code != 0
        assert words in result.output
