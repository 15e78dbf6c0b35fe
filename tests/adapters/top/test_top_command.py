"""The command: on a real terminal it draws, quits and leaves it as it was; elsewhere it says what to use."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from eventrain.adapters.cli import top_command
from eventrain.adapters.cli.main import commands
from eventrain.adapters.wording import MissingExtra
from eventrain.events.folder import RunFolder


def refused(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(commands, ["top", *map(str, arguments)])
    return result.exit_code, result.stderr.strip()


def test_it_draws_on_a_terminal_and_leaves_it_as_it_was(tmp_path: Path, busy, write_log) -> None:
    """A process on a pseudo-terminal shows the run, ends with q and exit code 0, and restores modes and screen."""
    folder = write_log(busy)
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(inside)
    process = subprocess.Popen(
        [sys.executable, "-m", "eventrain.adapters.cli", "top", str(folder.path)],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env={**os.environ, "TERM": "xterm-256color", "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    shown = b""
    try:
        deadline = time.monotonic() + 60
        while b"completed" not in shown or b"trainer" not in shown:
            assert time.monotonic() < deadline, shown[-2000:]
            if select.select([outside], [], [], 0.2)[0]:
                shown += os.read(outside, 65536)
        os.write(outside, b"q")
        while process.poll() is None:
            assert time.monotonic() < deadline, shown[-2000:]
            if select.select([outside], [], [], 0.2)[0]:
                shown += os.read(outside, 65536)
        while select.select([outside], [], [], 0)[0]:
            shown += os.read(outside, 65536)
        assert process.returncode == 0
        assert b"Traceback" not in shown
        assert shown.rindex(b"\x1b[?1049l") > shown.rindex(b"\x1b[?1049h")
        assert b"\x1b[?25h" in shown
        assert termios.tcgetattr(inside) == before
    finally:
        process.kill()
        process.wait()
        os.close(outside)
        os.close(inside)


def test_without_a_terminal_it_says_what_to_use(busy, write_log) -> None:
    """Exit code 2 and one line."""
    folder = write_log(busy[:10])
    assert refused(folder.path) == (2, f"top needs a terminal; without one: eventrain status {folder.path}")


def test_a_folder_without_a_run_and_a_wrong_point_are_refused(tmp_path: Path, busy, write_log) -> None:
    """As the other commands refuse them."""
    assert refused(tmp_path / "nowhere")[0] == 2
    code, line = refused(write_log(busy[:10]).path, "--at", "yesterday")
    assert code == 2
    assert line.startswith("--at 'yesterday' names no point of a run")


def test_without_textual_it_names_the_extra(tmp_path: Path, monkeypatch) -> None:
    """Exit code 2 and one line with what installs it."""

    def missing(module: str, extra: str) -> None:
        raise MissingExtra(f"{module} is not installed: pip install 'eventrain[{extra}]'")

    monkeypatch.setattr(top_command, "require", missing)
    monkeypatch.setattr(top_command, "on_terminal", lambda: True)
    folder = RunFolder.create(tmp_path / "run")
    assert refused(folder.path) == (2, "textual is not installed: pip install 'eventrain[view]'")


@pytest.mark.parametrize("interval", ["0.1", "0"])
def test_it_draws_at_most_four_times_a_second(tmp_path: Path, interval: str) -> None:
    """A shorter interval is refused."""
    folder = RunFolder.create(tmp_path / "run")
    assert refused(folder.path, "--interval", interval)[0] == 2
