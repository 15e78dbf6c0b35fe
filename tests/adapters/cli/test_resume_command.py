"""`eventrain run --resume` on folders that are not as a run left them, in real processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_program import PROGRAM, eventrain, write_settings

from eventrain.events.folder import RunFolder
from eventrain.events.reader import LogReader
from eventrain.events.segment import FrameWriter, Header, marker_line, segment_name, segment_numbers
from eventrain.events.types import GroupDiscarded, GroupRestored, LogTailCut, RunResumed, StepCompleted

STEPS = 9

@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run that was killed after its fifth step, ``run``, that no test changes."""
    folder = tmp_path_factory.mktemp("killed")
    write_settings(folder, steps=STEPS, size=60, seconds=0.002, every=3)
    command = [sys.executable, str(PROGRAM), "run", "sim.toml", "--run-dir", "run"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        for record in LogReader(folder / "run" / "events").follow(poll_s=0.001):
            if isinstance(record.event, StepCompleted) and record.event.step == 4:
                process.kill()
                break
    return folder


@pytest.fixture
def folder(killed: Path, tmp_path: Path) -> Path:
    """Return a copy of the killed run's folder."""
    shutil.copytree(killed / "run", tmp_path / "run")
    return tmp_path


def segments(folder: Path) -> list[Path]:
    events = folder / "run" / "events"
    return [events / segment_name(number) for number in segment_numbers(events)]


def flip_a_byte(folder: Path) -> str:
    path = segments(folder)[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    return "log damaged in segment 000002.jsonl.zst at byte "


def swap_two_segments(folder: Path) -> str:
    _, second, third, *_ = segments(folder)
    aside = second.with_name("aside")
    second.rename(aside)
    third.rename(second)
    aside.rename(third)
    return "log damaged in segment 000002.jsonl.zst at byte 0: it begins with seq "


def cut_a_segment_short(folder: Path) -> str:
    path = segments(folder)[1]
    path.write_bytes(path.read_bytes()[:-30])
    return "log damaged in segment 000002.jsonl.zst at byte "


def put_a_foreign_one_in(folder: Path) -> str:
    header = FrameWriter(1).frame(marker_line(Header(1, "other", 1, 0, "0")))
    segments(folder)[0].write_bytes(header)
    return "log damaged in segment 000002.jsonl.zst at byte 0: it begins with seq "


def put_text_in(folder: Path) -> str:
    segments(folder)[0].write_text("this is no log, whatever its name says")
    return "log damaged in segment 000001.jsonl.zst at byte 0: no zstd frame; the last good event is seq -1"


def lose_a_segment(folder: Path) -> str:
    segments(folder)[1].unlink()
    return "000002.jsonl.zst is missing; the last good event is seq "


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        swap_two_segments,
        cut_a_segment_short,
        put_a_foreign_one_in,
        put_text_in,
        lose_a_segment,
    ],
)
def test_a_damaged_log_is_not_gone_on_with(folder: Path, damage: Callable[[Path], str]) -> None:
    """One line says where, why and up to which seq it can be read; nothing is written, and the lock is free again."""
    said = damage(folder)
    before = {path: path.read_bytes() for path in (folder / "run" / "events").iterdir()}
    done = eventrain(folder, "run", "--resume", "run")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert said in line
    assert "the last good event is seq " in line
    assert line.endswith("; `eventrain log verify run` says what can be read")
    assert {path: path.read_bytes() for path in (folder / "run" / "events").iterdir()} == before
    assert not RunFolder.open(folder / "run").lock_file.exists()


def test_a_torn_tail_is_cut_and_kept(folder: Path) -> None:
    """A run that was killed in a write goes on, says what was cut, and keeps the bytes."""
    last = segments(folder)[-1]
    torn = FrameWriter(1).frame(b"x" * 400)[:-3]
    size = last.stat().st_size
    last.write_bytes(last.read_bytes() + torn)
    done = eventrain(folder, "run", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert f"the log ended in a torn write: {len(torn)} bytes after seq " in done.stderr
    assert (last.parent / f"{last.name}.torn-{size}").read_bytes() == torn
    (cut,) = [r.event for r in LogReader(last.parent).records() if isinstance(r.event, LogTailCut)]
    assert cut.cut_bytes == len(torn)


def test_groups_whose_payloads_are_gone_are_given_up(folder: Path) -> None:
    """A missing payload file costs the groups that need it, and no step."""
    for pack in (folder / "run" / "payloads").iterdir():
        pack.unlink()
    done = eventrain(folder, "run", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert "given up, as their payloads cannot be read" in done.stderr
    events = [record.event for record in LogReader(folder / "run" / "events").records()]
    restored = {event.group for event in events if isinstance(event, GroupRestored)}
    unreadable = {e.group for e in events if isinstance(e, GroupDiscarded) and e.reason == "unreadable"}
    assert restored
    assert restored <= unreadable
    assert events[-1].outcome == "completed"  # type: ignore[attr-defined]


def test_a_checkpoint_without_its_commit_is_ignored(folder: Path) -> None:
    """Only an event makes a checkpoint: a folder that looks newer is not what the run goes on from."""
    (folder / "run" / "checkpoints" / "step-000005").mkdir()
    done = eventrain(folder, "run", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert "sim: resumed at step 3, from checkpoints/step-000003\n" in done.stderr.replace("run: ", "sim: ")


def test_a_lock_of_a_dead_process_is_no_obstacle_and_one_of_another_host_is(folder: Path) -> None:
    """The kill left its lock behind, which is replaced; another host's cannot be judged, and the line says so."""
    lock = folder / "run" / "lock"
    held = lock.read_text()
    lock.write_text('{"host": "elsewhere", "pid": 1, "started": "0", "epoch": 9}')
    refused = eventrain(folder, "run", "--resume", "run")
    assert refused.returncode == 2
    assert refused.stderr == (
        "run is being written by process 1 on elsewhere; if that process is gone, delete run/lock\n"
    )
    lock.write_text(held)
    assert eventrain(folder, "run", "--resume", "run").returncode == 0
    assert any(isinstance(r.event, RunResumed) for r in LogReader(folder / "run" / "events").records())
    assert not lock.exists()
