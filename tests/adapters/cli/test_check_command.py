"""replay --check, as its users see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from legacy import hole_behind_the_window
from worlds import World, config

from eventrain.core.ports import EngineError
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.record import Record
from eventrain.events.types import RetryScheduled, StepCompleted


def write_log(path: Path, records: list[Record]) -> None:
    """Write `records` as the log of a new run folder."""
    folder = RunFolder.create(path)
    writer = LogWriter(folder.events, run="run", epoch=1, first_seq=0, segment_bytes=1 << 26)
    writer.start(lambda _seq: None, lambda _error: None)
    for record in records:
        writer.append(record)
    writer.close()


@pytest.fixture(name="healthy")
def _healthy(tmp_path: Path) -> Path:
    """Return the folder of a run with the shipped policies."""
    write_log(tmp_path / "healthy", World(config(run={"steps": 3})).go().log)
    return tmp_path / "healthy"


@pytest.fixture(name="stalled")
def _stalled(tmp_path: Path) -> Path:
    """Return the folder of the run that stood still because of the hole behind its window."""
    write_log(tmp_path / "stalled", hole_behind_the_window(legacy=True).go().log)
    return tmp_path / "stalled"


def test_a_run_that_agrees(healthy: Path, command) -> None:
    """The counts of what was compared, in one line, and exit code 0."""
    result = command("replay", healthy, "--check")
    assert result.exit_code == 0, result.output
    first, rate = result.output.splitlines()
    assert " decisions agree: " in first
    assert "12 group_dispatched" in first
    assert "3 batch_taken" in first
    assert "events/s" in rate


def test_a_divergence_for_a_person(stalled: Path, command) -> None:
    """Seq, time, what the log holds, what would be decided now and the state; exit code 1."""
    result = command("replay", stalled, "--check")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith("stalled: seq ")
    assert "0:00:1" in lines[0]
    assert lines[0].endswith("the collector decides otherwise")
    recorded = lines.index("  recorded")
    assert lines[recorded + 1] == "    to wait for version"
    produced = lines.index("  would be decided now")
    assert lines[produced + 1] == "    prompt_drawn prompt=20 epoch=0 index=unknown"
    assert lines[produced + 2].startswith("    group_dispatched group=20 prompt=20 target=3 ")
    assert any(line.split()[:3] == ["targets", "3:", "3"] for line in lines)
    assert lines[-2].startswith("  before it ")


def test_another_setting_says_what_would_have_been_different(healthy: Path, command) -> None:
    """--set is checked like a configuration, and the first decision that differs is shown without what is the same."""
    result = command("replay", healthy, "--check", "--set", "scheduler.max_staleness=2")
    assert result.exit_code == 1
    assert "decides otherwise with scheduler.max_staleness=2" in result.output
    assert "  16 decisions of this moment are the same, and then" in result.output
    assert "group_dispatched group=8 prompt=8 target=2" in result.output
    refused = command("replay", healthy, "--check", "--set", "scheduler.max_stalenes=2")
    assert refused.exit_code == 2
    assert "scheduler.max_stalenes" in refused.output


def test_a_setting_that_decides_nothing_here_agrees(healthy: Path, command) -> None:
    """A run without failures is the same with every delay of a retry, and the line says what was asked."""
    result = command("replay", healthy, "--check", "--set", "failures.backoff_s=9.0")
    assert result.exit_code == 0, result.output
    assert "with failures.backoff_s=9.0" in result.output


def test_ignored_kinds(tmp_path: Path, command) -> None:
    """An intended change is passed over and counted; what is no decision is refused with the nearest that is one."""
    world = World(config(run={"steps": 3}))

    async def once(request) -> None:
        if request.request.startswith("1/0/") and "+" not in request.request:
            raise EngineError("no")

    world.pool[0].on_generate = once
    write_log(tmp_path / "failing", world.go().log)
    assert len(world.events(RetryScheduled)) == 1
    asked = ("replay", tmp_path / "failing", "--check", "--set", "failures.backoff_s=9.0")
    assert command(*asked).exit_code == 1
    result = command(*asked, "--ignore-kind", "retry_scheduled")
    assert result.exit_code == 0, result.output
    assert "  not compared: 1 retry_scheduled" in result.output
    refused = command(*asked, "--ignore-kind", "retry_schedule")
    assert refused.exit_code == 2
    assert "did you mean retry_scheduled?" in refused.output


def test_json(healthy: Path, stalled: Path, command) -> None:
    """One object with the counts, and with the divergence where there is one."""
    agreed = json.loads(command("replay", healthy, "--check", "--json").output)
    assert agreed["agrees"] is True
    assert agreed["divergence"] is None
    assert agreed["decisions"]["batch_taken"] == 3
    result = command("replay", stalled, "--check", "--json")
    assert result.exit_code == 1
    divergence = json.loads(result.output)["divergence"]
    assert divergence["recorded"] == [{"kind": "blocked", "edge": "version"}]
    assert [one["kind"] for one in divergence["produced"]] == ["prompt_drawn", "group_dispatched"]
    assert divergence["state"]["step"].startswith("3 of 8")


def test_a_log_without_its_start(tmp_path: Path, command) -> None:
    """What is no whole log is refused in one line."""
    log = [record for record in World(config(run={"steps": 1})).go().log if isinstance(record.event, StepCompleted)]
    write_log(tmp_path / "rest", [record._replace(seq=seq, cause=None) for seq, record in enumerate(log)])
    for more in ((), ("--set", "run.steps=2")):
        result = command("replay", tmp_path / "rest", "--check", *more)
        assert result.exit_code == 2
        assert "does not begin with run_started" in result.output
