"""What writes a file for the user: whole or not at all, and never over a file that it did not write."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import Result

from eventrain.adapters.cli.writing import write_whole
from eventrain.events.folder import RunFolder

Command = Callable[..., Result]


class Writes(NamedTuple):
    """One command that writes a file."""

    what: str
    words: tuple[str, ...]
    before: tuple[str, ...] = ()
    """What stands before the name of the file."""

    def line(self, run: Path, file: Path, *more: str) -> tuple[object, ...]:
        """Return its arguments."""
        return (*self.words, run, *self.before, file, *more)


ALL = (
    Writes("metrics export", ("export", "openmetrics")),
    Writes("traces export", ("export", "traces"), ("--jsonl",)),
    Writes("Perfetto trace", ("export", "perfetto")),
    Writes("report", ("report",), ("-o",)),
)
each = pytest.mark.parametrize("writes", ALL, ids=lambda writes: writes.what)


@pytest.fixture(name="run")
def _run(write_run: Callable[..., RunFolder], tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"


@each
def test_a_file_of_somebodys_is_left_alone_unless_forced(
    writes: Writes, command: Command, run: Path, tmp_path: Path
) -> None:
    """One line says what the file is not, and exit code 2; with ``--force`` it is replaced."""
    file = tmp_path / "notes"
    file.write_text("# HELP wanted\n")
    refused = command(*writes.line(run, file))
    wrong = f"{file}: exists and is no {writes.what} of eventrain"
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == f"{wrong}; name another file, or write over it with --force\n"
    assert file.read_text() == "# HELP wanted\n"
    forced = command(*writes.line(run, file, "--force"))
    assert forced.exit_code == 0, forced.stderr
    assert file.stat().st_size > 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "run"]


@each
def test_an_earlier_output_of_the_same_command_is_replaced(
    writes: Writes, command: Command, run: Path, tmp_path: Path
) -> None:
    """So is an empty file; what any other command wrote is not."""
    file = tmp_path / "out"
    file.touch()
    for _ in range(2):
        done = command(*writes.line(run, file))
        assert done.exit_code == 0, done.stderr
    before = file.read_bytes()
    for other in ALL:
        if other is not writes:
            assert command(*other.line(run, file)).exit_code == 2
    assert file.read_bytes() == before


@each
def test_where_nothing_can_be_written_is_said_in_one_line(
    writes: Writes, command: Command, run: Path, tmp_path: Path
) -> None:
    """A folder, a folder that is missing, a pipe: exit code 2, and the log is not read first."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    missing = tmp_path / "no" / "out"
    for file, line in (
        (run, f"{run}: is a folder; name a file in it, like {run}/"),
        (missing, f"{missing}: there is no folder {missing.parent}\n"),
        (pipe, f"{pipe}: is no regular file; name another\n"),
    ):
        refused = command(*writes.line(run, file, "--force"))
        assert refused.exit_code == 2
        assert refused.stderr.startswith(line)
        assert refused.stderr.count("\n") == 1


def test_a_log_that_is_damaged_leaves_the_earlier_traces(command: Command, run: Path, tmp_path: Path) -> None:
    """Half of the new file is neither at its place nor beside it."""
    file = tmp_path / "out.jsonl"
    assert command("export", "traces", run, "--jsonl", file).exit_code == 0
    before = file.read_bytes()
    (segment,) = (run / "events").iterdir()
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    assert command("export", "traces", run, "--jsonl", file).exit_code == 1
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "run"]


def test_the_new_file_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    """Until then, and when the block fails, whoever looks sees the old one."""
    path = tmp_path / "file"
    with write_whole(path) as file:
        file.write(b"one")
        file.flush()
        assert not path.exists()
    with pytest.raises(ZeroDivisionError), write_whole(path) as file:
        file.write(bytes([3 // (file.write(b"two") - 3)]))
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """What it leads to is replaced."""
    link, real = tmp_path / "link", tmp_path / "real"
    real.write_text("old")
    link.symlink_to(real)
    with write_whole(link) as file:
        file.write(b"new")
    assert (link.is_symlink(), real.read_text()) == (True, "new")


def test_an_error_names_the_users_file(tmp_path: Path) -> None:
    """Not the unfinished one beside it; an error about any other file stays as it is."""
    missing, other = tmp_path / "no" / "file", tmp_path / "elsewhere" / "log"
    with pytest.raises(OSError, match="No such file") as failed, write_whole(missing):
        pass
    assert failed.value.filename == str(missing)
    with pytest.raises(OSError, match="No space") as full, write_whole(tmp_path / "file"):
        raise OSError(28, "No space left on device")
    assert full.value.filename == str(tmp_path / "file")
    with pytest.raises(OSError, match="No such file") as unread, write_whole(tmp_path / "file"):
        other.read_bytes()
    assert unread.value.filename == str(other)
