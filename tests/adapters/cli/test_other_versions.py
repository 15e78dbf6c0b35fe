"""Logs of another version of eventrain: they are read as far as this one knows them, and nothing is a defect."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from told_runs import CONFIG, phased_run

from eventrain.adapters.cli.main import commands
from eventrain.core.config import RunConfig, recorded_config


def of_the_next_version(path: Path) -> Path:
    """Write a run whose settings have a key and a section that nobody here knows."""
    told = phased_run(2)
    first = told.records[0]
    config = {
        **first.event.config,
        "scheduler": {**first.event.config["scheduler"], "of_the_next_version": 1},
        "of_the_next_version": {"x": 1},
    }
    told.records[0] = first._replace(event=first.event.model_copy(update={"config": config}))
    return told.write(path)


@pytest.mark.parametrize("command", ["status", "stalls", "report", "top", "replay", "export openmetrics"])
def test_commands_that_read_go_on_without_what_they_do_not_know(tmp_path: Path, command: str) -> None:
    """A key of a newer version is left out; what this one knows is shown."""
    run = of_the_next_version(tmp_path / "run")
    arguments = [*command.split(), str(run)]
    arguments += {"report": ["-o", str(tmp_path / "x.html")], "replay": ["--at", "step:1"]}.get(command, [])
    arguments += [str(tmp_path / "x.om")] if command.startswith("export") else []
    told = CliRunner().invoke(commands, arguments)
    if command == "top":
        assert "needs a terminal" in told.stderr or "terminal" in told.stderr
    else:
        assert told.exit_code == 0, told.output


@pytest.mark.parametrize("command", ["whatif --set scheduler.max_staleness=2", "replay --check"])
def test_commands_that_decide_say_in_one_line_what_they_do_not_know(tmp_path: Path, command: str) -> None:
    """To decide as that version did is impossible: the line names the first key."""
    run = of_the_next_version(tmp_path / "run")
    name, *options = command.split()
    told = CliRunner().invoke(commands, [name, str(run), *options])
    assert told.exit_code == 1
    assert told.stderr.count("\n") == 1
    assert "the configuration in the log is not one of this version: scheduler.of_the_next_version" in told.stderr


def test_what_is_known_is_as_strict_as_ever() -> None:
    """Leaving out what is unknown changes nothing else."""
    assert recorded_config(CONFIG) == RunConfig.model_validate(CONFIG)
    with pytest.raises(ValueError, match="groups_per_step"):
        recorded_config({**CONFIG, "scheduler": {"groups_per_step": -1}})
