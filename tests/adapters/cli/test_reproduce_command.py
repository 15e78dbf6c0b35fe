"""reproduce, as its users see it: a run that is the same again, one that takes another way, and no run at all."""

from __future__ import annotations

import json
from pathlib import Path

from legacy import hole_behind_the_window
from worlds import World

from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.types import RunFinished


def write_log(path: Path, records: list[Record]) -> None:
    """Write `records` as the log of a new run folder."""
    folder = RunFolder.create(path)
    writer = LogWriter(folder.events, run="run", epoch=1, first_seq=0, segment_bytes=1 << 26)
    writer.start(lambda _seq: None, lambda _error: None)
    for record in records:
        writer.append(record)
    writer.close()


def ran(legacy: bool) -> World:
    """Return the run of the over-long prompt."""
    return hole_behind_the_window(legacy=legacy).go()


def test_a_run_that_is_the_same_again(tmp_path: Path, command) -> None:
    """One line says so, exit code 0; the new log is a run like any other."""
    write_log(tmp_path / "run", ran(legacy=False).log)
    result = command("reproduce", tmp_path / "run", "--log", tmp_path / "again")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "same: 110 decisions, no stall; completed after 8 steps"
    assert lines[2].startswith("0 of 548 answers modelled")
    *_, last = LogReader(tmp_path / "again" / "events").records()
    assert isinstance(last.event, RunFinished)
    assert command("reproduce", tmp_path / "again").output.startswith("same: 110 decisions")


def test_a_stall_that_the_shipped_scheduling_does_not_have(tmp_path: Path, command) -> None:
    """Where it takes another way, what was recorded and what is decided now, and that the stall does not appear."""
    write_log(tmp_path / "run", ran(legacy=True).log)
    result = command("reproduce", tmp_path / "run")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "another way at 0:00:18.100, after 64 decisions that are the recorded ones"
    assert lines[1] == "  recorded  collector: nothing more"
    assert lines[2].startswith("  now       collector: prompt_drawn prompt=20 epoch=0 index=20 (seq ")
    assert lines[3] == "now: completed after 8 steps"
    assert lines[4].startswith('the recorded stall "nothing can move: trainer waits buffer_ready(3) <- ')
    assert lines[4].endswith("does not appear")
    assert "answers modelled" in lines[6]
    table = json.loads(command("reproduce", tmp_path / "run", "--json").output)
    assert table["difference"]["recorded"] is None
    assert len(table["stalls_recorded"]) == 1
    assert table["stalls_now"] == []
    assert 0 < table["answers_modelled"] < table["answers"]


def test_another_schedule_of_the_tasks(tmp_path: Path, command) -> None:
    """With --seed the recorded outcomes come at the recorded times, and it still ends as it did."""
    write_log(tmp_path / "run", ran(legacy=False).log)
    table = json.loads(command("reproduce", tmp_path / "run", "--seed", 5, "--json").output)
    assert table["outcome"] == "completed"


def test_what_is_no_run_is_refused(tmp_path: Path, command) -> None:
    """One line and exit code 2."""
    result = command("reproduce", tmp_path / "nothing")
    assert result.exit_code == 2
    assert "no such folder" in result.output
    write_log(tmp_path / "empty", [])
    result = command("reproduce", tmp_path / "empty")
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].endswith("nothing says what to run")
