"""The run folder: one run in it, one writer for it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventrain.events import RunFolder, RunFolderError


def test_a_new_run_has_its_folders(tmp_path: Path) -> None:
    """Create makes every part, and open finds it."""
    folder = RunFolder.create(tmp_path / "runs" / "first")
    for part in (folder.events, folder.payloads, folder.weights, folder.checkpoints, folder.logs):
        assert part.is_dir()
    assert RunFolder.open(folder.path).events == folder.events


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    """A second run in the same folder is refused, in one line that names it."""
    RunFolder.create(tmp_path)
    with pytest.raises(RunFolderError, match=f"{tmp_path} already holds a run"):
        RunFolder.create(tmp_path)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    """Opening says whether the folder is missing or holds something else."""
    with pytest.raises(RunFolderError, match="nowhere does not exist"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match="holds no run"):
        RunFolder.open(tmp_path)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    """A path that is a file cannot become a run folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="file is in the way"):
        RunFolder.create(tmp_path / "file")


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    """While one process holds the lock, another gets its host and pid, and the lock stays."""
    folder = RunFolder.create(tmp_path)
    script = (
        "import sys; from pathlib import Path; from eventrain.events import RunFolder\n"
        "with RunFolder.open(Path(sys.argv[1])).lock():\n"
        "    print('locked', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with (
            pytest.raises(
                RunFolderError, match=f"is being written by process {other.pid} on {socket.gethostname()}$"
            ),
            folder.lock(),
        ):
            pass
        other.kill()  # leaves its lock behind
        other.wait(30)
    assert folder.lock_file.exists()
    with folder.lock() as epoch:  # a dead holder is replaced
        assert epoch == folder.epoch == 2
    assert not folder.lock_file.exists()


def test_the_epoch_grows_with_every_writer(tmp_path: Path, write_log: Callable) -> None:
    """It is above that of every segment, so an older writer can be told from a newer one."""
    folder = RunFolder.create(tmp_path)
    for expected in (1, 2, 3):
        with folder.lock() as epoch:
            assert epoch == expected
            write_log(folder.events, 2, first_seq=2 * (expected - 1), epoch=epoch)


def test_a_reused_pid_is_not_taken_for_the_holder(tmp_path: Path) -> None:
    """A live process that started at another time than the lock's holder is somebody else."""
    folder = RunFolder.create(tmp_path)
    with folder.lock():
        holder = json.loads(folder.lock_file.read_text())
    folder.lock_file.write_text(json.dumps(holder | {"started": "0", "epoch": 5}))
    with folder.lock() as epoch:
        assert epoch == 6


def test_a_holder_on_another_host_is_never_replaced(tmp_path: Path) -> None:
    """Whether it lives cannot be seen from here: the message says what to do if it does not."""
    folder = RunFolder.create(tmp_path)
    folder.lock_file.write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": "0", "epoch": 1}))
    with (
        pytest.raises(RunFolderError, match=f"process 1 on elsewhere; .* delete {folder.lock_file}"),
        folder.lock(),
    ):
        pass


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"host": "h", "pi',
        b"\xff\xfe",
        b"1234\n",
        b"[]",
        b'{"pid": 7}',
        b'{"host": "HERE", "pid": "7", "started": "0", "epoch": 1}',
        b'{"host": "HERE", "pid": 0, "started": "0", "epoch": 1}',
        b'{"host": "HERE", "pid": -1, "started": "0", "epoch": 1}',
        b'{"host": "HERE", "pid": 99999999999999999999, "started": "0", "epoch": 1}',
        b'{"host": "HERE", "pid": 7, "started": "0", "epoch": null}',
        b'{"host": "HERE", "pid": 7, "started": "0", "epoch": 1, "more": 1}',
    ],
)
def test_an_unreadable_lock_is_refused(tmp_path: Path, content: bytes) -> None:
    """A lock file that is empty, cut off or somebody else's might be anyone's: it stays, and the line names it."""
    folder = RunFolder.create(tmp_path)
    content = content.replace(b"HERE", socket.gethostname().encode())
    folder.lock_file.write_bytes(content)
    with pytest.raises(RunFolderError, match=f"{folder.lock_file} names no holder; delete it"), folder.lock():
        pass
    assert folder.lock_file.read_bytes() == content
    assert not folder.is_held()


def test_a_holder_that_is_a_zombie_is_replaced(tmp_path: Path) -> None:
    """A process that has ended, but whose parent has not asked how, writes nothing any more."""
    folder = RunFolder.create(tmp_path)
    script = (
        "import os, sys; from pathlib import Path; from eventrain.events import RunFolder\n"
        "held = RunFolder.open(Path(sys.argv[1])).lock(); held.__enter__(); os._exit(1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) as other:
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # ended, and not reaped
        os.kill(other.pid, 0)  # so it still has its pid
        holder = folder.holder()
        assert holder is not None
        assert holder.pid == other.pid
        assert not folder.is_held()
        with folder.lock() as epoch:
            assert epoch == 2


def test_of_many_that_find_a_dead_holder_one_gets_the_lock(tmp_path: Path) -> None:
    """Processes that replace the same dead holder at the same time: one writes, the others are told who does."""
    folder = RunFolder.create(tmp_path)
    with folder.lock():
        holder = json.loads(folder.lock_file.read_text())
    folder.lock_file.write_text(json.dumps(holder | {"pid": 2**22 + 1}))
    script = (
        "import sys; from pathlib import Path; from eventrain.events import RunFolder, RunFolderError\n"
        "print('up', flush=True); sys.stdin.readline()\n"
        "try:\n"
        "    with RunFolder.open(Path(sys.argv[1])).lock():\n"
        "        print('locked', flush=True); sys.stdin.readline()\n"
        "except RunFolderError as error:\n"
        "    print(error, flush=True)\n"
    )
    others = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        assert [other.stdout.readline() for other in others] == ["up\n"] * 4  # type: ignore[union-attr]
        for other in others:
            other.stdin.write("go\n")  # type: ignore[union-attr]
            other.stdin.flush()  # type: ignore[union-attr]
        said = {other.pid: other.stdout.readline().strip() for other in others}  # type: ignore[union-attr]
        (winner,) = [pid for pid, line in said.items() if line == "locked"]
        told = f"{tmp_path} is being written by process {winner} on {socket.gethostname()}"
        assert [line for pid, line in said.items() if pid != winner] == [told] * 3
    finally:
        for other in others:
            other.communicate("end\n")


def test_a_lock_lost_to_a_newer_writer_is_not_removed(tmp_path: Path) -> None:
    """Leaving the block removes only one's own lock."""
    folder = RunFolder.create(tmp_path)
    newer = json.dumps({"host": "elsewhere", "pid": 1, "started": "0", "epoch": 9})
    with folder.lock():
        folder.lock_file.write_text(newer)
    assert folder.lock_file.read_text() == newer


def test_a_run_is_held_only_while_its_holder_lives(tmp_path: Path) -> None:
    """A live holder holds; a dead one, a reused pid, a lock that names nobody and no lock do not."""
    folder = RunFolder.create(tmp_path / "run")
    assert not folder.is_held()
    with folder.lock():
        assert folder.is_held()
        holder = json.loads(folder.lock_file.read_bytes())
    for changed in ({"pid": 2**22 + 1}, {"started": "1"}):
        folder.lock_file.write_text(json.dumps(holder | changed))
        assert not folder.is_held()
    folder.lock_file.write_text("cut off")
    assert not folder.is_held()
