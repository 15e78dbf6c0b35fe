"""stalls, as its users see it: on the run of the over-long prompt, on older logs, and on logs without an end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from legacy import hole_behind_the_window
from worlds import World, config

from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.record import Record
from eventrain.events.types import RunStarted, StallCleared, StallDetected

GOLDEN = Path(__file__).parent / "golden"
README = Path(__file__).parents[3] / "README.md"


def golden(name: str, text: str) -> None:
    """Compare with golden/<name>; EVENTRAIN_GOLDEN=write writes it anew, to be looked at."""
    path = GOLDEN / name
    if os.environ.get("EVENTRAIN_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def write_log(path: Path, records: list[Record]) -> RunFolder:
    """Write `records` as the log of a new run folder."""
    folder = RunFolder.create(path)
    writer = LogWriter(folder.events, run="run", epoch=1, first_seq=0, segment_bytes=1 << 26)
    writer.start(lambda _seq: None, lambda _error: None)
    for record in records:
        writer.append(record)
    writer.close()
    return folder


def older(records: list[Record]) -> list[Record]:
    """Return the log as it was before there was a watchdog: without its events and its settings."""
    kept = [record for record in records if not isinstance(record.event, StallDetected | StallCleared)]
    started = kept[0].event
    assert isinstance(started, RunStarted)
    settings = {name: section for name, section in started.config.items() if name != "watchdog"}
    kept[0] = kept[0]._replace(event=started.model_copy(update={"config": settings, "engines": None}))
    return [record._replace(seq=seq, cause=None) for seq, record in enumerate(kept)]


@pytest.fixture(scope="module", name="stalled")
def _stalled() -> World:
    """Return the legacy run of the over-long prompt, which the deadline of the trainer's wait ends."""
    return hole_behind_the_window(legacy=True).go()


def test_the_report_of_a_deadlock(tmp_path: Path, stalled: World, command, monkeypatch) -> None:
    """From, to, what it cost, the chain, and the event that ended it, one link a line; the README shows the same."""
    monkeypatch.chdir(tmp_path)
    write_log(Path("runs/long-prompt"), stalled.log)
    result = command("stalls", "runs/long-prompt")
    assert result.exit_code == 0
    golden("stalls_deadlock.txt", result.output)
    shown = "".join(f"    {line}\n" if line else "\n" for line in result.output.splitlines())
    assert shown in README.read_text(encoding="utf-8")


def test_the_report_as_json(tmp_path: Path, stalled: World, command) -> None:
    """--json has the same facts with plain names."""
    write_log(tmp_path / "run", stalled.log)
    table = json.loads(command("stalls", tmp_path / "run", "--json").output)
    (stall,) = table["stalls"]
    assert stall["kind"] == "deadlock"
    assert stall["chain"][0] == "trainer waits buffer_ready(3)"
    assert stall["ended_kind"] == "deadline_expired"
    assert stall["to_s"] - stall["from_s"] == pytest.approx(7197, abs=10)
    assert stall["device_seconds_lost"] == pytest.approx(2 * (stall["to_s"] - stall["from_s"]), rel=1e-6)
    assert table["ended"] == "run_failed"
    assert table["device_seconds_lost"] == stall["device_seconds_lost"]


def test_a_log_of_before_the_watchdog_is_judged_by_the_same_verdict(
    tmp_path: Path, stalled: World, command
) -> None:
    """Without any StallDetected the fold finds the same deadlock, from the same instant, with the same chain."""
    write_log(tmp_path / "new", stalled.log)
    write_log(tmp_path / "old", older(stalled.log))
    (new,) = json.loads(command("stalls", tmp_path / "new", "--json").output)["stalls"]
    (old,) = json.loads(command("stalls", tmp_path / "old", "--json").output)["stalls"]
    assert old["seq"] is None
    for key in ("kind", "from_s", "chain", "ended_kind"):
        assert old[key] == new[key], key


def test_a_dead_run_says_what_it_was_waiting_for(tmp_path: Path, stalled: World, command) -> None:
    """A log that ends in the deadlock, because somebody killed the run, is explained as well."""
    at = stalled.records(StallDetected)[0].seq
    write_log(tmp_path / "killed", stalled.log[: at + 1])
    output = command("stalls", tmp_path / "killed").output
    assert "not over when the log ends" in output
    assert output.splitlines()[-5:] == [
        "       trainer waits buffer_ready(3)",
        "       <- target 3 short by 1",
        "       <- prompt 13 failed, permanent: prompt too long",
        "       <- collector waits version(4)",
        "       <- trainer",
    ]


def test_a_run_that_was_killed_at_work_says_what_was_outstanding(tmp_path: Path, command) -> None:
    """Where nothing stalled, the last lines name the trainer's wait and the calls without an answer."""
    world = World(config(run={"steps": 3})).go()
    cut = next(r.seq for r in world.log if type(r.event).__name__ == "LlmCallStarted")
    write_log(tmp_path / "killed", world.log[: cut + 2])
    output = command("stalls", tmp_path / "killed").output
    assert output.startswith("no stall\n")
    assert "llm call of" in output


def test_a_healthy_run_has_none(tmp_path: Path, command) -> None:
    """A finished run without a stall is two short lines."""
    world = World(config(run={"steps": 3})).go()
    write_log(tmp_path / "run", world.log)
    lines = command("stalls", tmp_path / "run").output.splitlines()
    assert (lines[0], lines[2][:31]) == ("no stall", "the run ended with run_finished")


def test_an_old_healthy_log_has_none(tmp_path: Path, command) -> None:
    """Judging afterwards calls no healthy log stalled."""
    world = World(config(run={"steps": 4}), engines=2).go()
    write_log(tmp_path / "run", older(world.log))
    assert json.loads(command("stalls", tmp_path / "run", "--json").output)["stalls"] == []


def test_status_shows_a_current_stall_in_one_line(tmp_path: Path, stalled: World, command) -> None:
    """While a stall stands, status has its kind and its sentence."""
    at = stalled.records(StallDetected)[0].seq
    write_log(tmp_path / "run", stalled.log[: at + 1])
    (line,) = [line for line in command("status", tmp_path / "run").output.splitlines() if "stall" in line]
    assert "deadlock: nothing can move: trainer waits buffer_ready(3) <- target 3 short by 1" in line


def test_an_empty_log_is_bad_input(tmp_path: Path, command) -> None:
    """A run that has not begun is said to be one."""
    RunFolder.create(tmp_path / "run")
    result = command("stalls", tmp_path / "run")
    assert result.exit_code == 2
    assert "the log is empty" in result.stderr
