"""The demo ends with what was learned, where the time went, and what to look at next."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eventrain.adapters.cli.demo_command import closing_lines, last_trajectory
from eventrain.adapters.cli.opening import reader_of
from eventrain.adapters.cli.status_report import RunStatus


def test_the_end_of_the_demo(tmp_path: Path, write_run, monkeypatch) -> None:
    """Reward at start and end, its share of the optimum, phases, the folder, and commands that work are printed."""
    monkeypatch.chdir(tmp_path)
    folder = write_run(Path("run"))
    status = RunStatus.of(Path("run"), reader_of(folder).records(), being_written=False)
    lines = [
        re.sub(r"\x1b\[[0-9;]*m", "", line) for line in closing_lines(status, 0.9, last_trajectory(folder))
    ]
    text = "\n".join(lines)
    assert "reward      0.812 -> 0.812   (mean of the first and of the last 2 steps)" in lines
    assert "of optimal  90 % -> 90 %   (the best possible policy scores 0.9)" in lines
    assert "run folder  run" in lines
    assert "training" in text
    assert "eventrain show run 2/0" in text


def test_the_commands_that_the_demo_names_work(tmp_path: Path, write_run, monkeypatch, command) -> None:
    """Every command under `next` that looks at the run ends well."""
    monkeypatch.chdir(tmp_path)
    folder = write_run(Path("run"))
    status = RunStatus.of(Path("run"), reader_of(folder).records(), being_written=False)
    named = re.findall(
        r"eventrain ((?:report|show|events) run\S*(?: [\w/-]+)*)",
        "\n".join(closing_lines(status, None, last_trajectory(folder))),
    )
    assert len(named) == 4
    for line in named:
        assert command(*line.split("  ")[0].split()).exit_code == 0


def test_a_demo_that_never_trained_still_says_where_it_lies(tmp_path: Path, write_run, monkeypatch) -> None:
    """Without a single step there is no reward to tell, and no trajectory to show."""
    monkeypatch.chdir(tmp_path)
    folder = write_run(Path("run"), upto=5)
    status = RunStatus.of(Path("run"), reader_of(folder).records(), being_written=False)
    text = "\n".join(closing_lines(status, 0.9, last_trajectory(folder)))
    assert "run folder  run" in text
    assert "reward" not in text


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.path=nowhere", 'nowhere": no such folder'),
        ("environment.options.n=abc", "environment.options.n is 'abc'"),
        ("environment.options.n=-3", "n is -3"),
        ("environment.options.n=[1, 2]", "environment.options.n is [1, 2]"),
        ("environment.kind=nowhere", "environment.kind is 'nowhere'"),
    ],
)
def test_a_demo_that_is_refused_leaves_nothing_behind(
    tmp_path: Path, monkeypatch, command, setting: str, said: str
) -> None:
    """What --set spoils is said in one line that is no defect, and the model built for the run goes with its folder."""
    monkeypatch.chdir(tmp_path)
    result = command("demo", "--set", setting)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr
    assert list(Path("runs").iterdir()) == []
    Path("mine/model").mkdir(parents=True)
    assert command("demo", "--set", setting, "--run-dir", "mine").exit_code == 2
    assert Path("mine/model").is_dir()


@pytest.mark.slow
def test_the_demo_runs_with_all_its_real_parts(tmp_path: Path, command) -> None:
    """Three steps of the real demo, engine and learner processes included, end well and can be looked at."""
    done = subprocess.run(
        [sys.executable, "-m", "eventrain.adapters.cli", "demo", "--run-dir", "run", "--set", "run.steps=3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "of optimal" in done.stdout
    assert "run folder  run" in done.stdout
    shown = command("show", tmp_path / "run", "0/0").output
    assert "guess 1 to 12" in shown
    assert "ids v0: " in shown
    table = json.loads(command("status", tmp_path / "run", "--json").output)
    assert (table["state"], table["step"], table["groups_ended"]["trained"]) == ("completed", 3, 36)
