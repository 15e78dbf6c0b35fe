"""Commands that are suggested can be typed as they stand."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from eventrain.adapters.cli.program import program


def test_a_program_that_the_shell_finds_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an activated environment it is `eventrain`, and so it is where it was not called as a program at all."""
    script = tmp_path / "bin" / "eventrain"
    script.parent.mkdir()
    script.touch(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.setattr("sys.argv", [str(script), "demo"])
    assert program() == "eventrain"
    monkeypatch.setattr("sys.argv", ["/somewhere/pytest"])
    monkeypatch.setenv("PATH", "")
    assert program() == "eventrain"


def test_a_program_off_the_path_is_called_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `make demo` the commands to try next begin with .venv/bin/eventrain."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv" / "bin" / "eventrain"), "demo"])
    assert program() == ".venv/bin/eventrain"
