"""`eventrain export perfetto`: a trace of any run, and one line for what cannot be done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from perfetto_traces import ReadTrace

from eventrain.events.folder import RunFolder

Command = Callable[..., Result]
WriteRun = Callable[..., RunFolder]


class NotInstalled:
    """Makes the import of perfetto fail as it does where nothing of it is there."""

    def find_spec(self, name, path=None, target=None):
        if name == "perfetto":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def test_a_run_is_exported(command: Command, write_run: WriteRun, tmp_path: Path) -> None:
    """The file is a sound trace, and what was done is said in two lines."""
    write_run(tmp_path / "run")
    out = tmp_path / "run.pftrace"
    result = command("export", "perfetto", tmp_path / "run", out)
    assert result.exit_code == 0, result.stderr
    trace = ReadTrace(out.read_bytes())
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{out}: ")
    assert f"{len(trace.slices)} slices on {len(trace.lanes)} lanes" in first
    assert "ui.perfetto.dev" in second
    assert [one.told["step"] for one in trace.on("trainer/steps")] == [0, 1]


def test_a_run_that_goes_on_is_exported(command: Command, write_run: WriteRun, tmp_path: Path) -> None:
    """What is open ends where the log does; a second export replaces the first."""
    write_run(tmp_path / "run", upto=30)
    out = tmp_path / "run.pftrace"
    assert command("export", "perfetto", tmp_path / "run", out).exit_code == 0
    before = out.read_bytes()
    assert any(one.told.get("open") for one in ReadTrace(before).slices)
    assert command("export", "perfetto", tmp_path / "run", out).exit_code == 0
    assert out.read_bytes() == before


def test_lanes_can_be_fewer(command: Command, write_run: WriteRun, tmp_path: Path) -> None:
    """What found no lane is said."""
    write_run(tmp_path / "run")
    result = command("export", "perfetto", "--slots-max", 0, tmp_path / "run", tmp_path / "few.pftrace")
    assert "trajectories found no lane and are only counted (--slots-max 0)" in result.stdout
    assert not ReadTrace((tmp_path / "few.pftrace").read_bytes()).below("rollouts")


@pytest.mark.parametrize(
    ("run", "file", "line"),
    [
        ("nothing", "a.pftrace", "{tmp}/nothing: no such folder; did you mean {tmp}/run?"),
        ("other", "a.pftrace", "{tmp}/other: is no run (it has no events folder)"),
        ("run", "missing/a.pftrace", "{tmp}/missing/a.pftrace: there is no folder {tmp}/missing"),
        ("run", "other", "{tmp}/other: is a folder; name a file in it, like {tmp}/other/run.pftrace"),
    ],
)
def test_bad_input_is_one_line(
    command: Command, write_run: WriteRun, tmp_path: Path, run: str, file: str, line: str
) -> None:
    """What is wrong, and what would be right; nothing is written."""
    write_run(tmp_path / "run")
    (tmp_path / "other").mkdir()
    result = command("export", "perfetto", tmp_path / run, tmp_path / file)
    assert (result.exit_code, result.stderr) == (2, line.format(tmp=tmp_path) + "\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run"]


def test_without_the_package_one_line_says_what_to_install(
    command: Command, write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is named, and no half a file is left."""
    write_run(tmp_path / "run")
    for name in [name for name in sys.modules if name.partition(".")[0] == "perfetto"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NotInstalled(), *sys.meta_path])
    result = command("export", "perfetto", tmp_path / "run", tmp_path / "a.pftrace")
    assert result.exit_code == 2
    assert result.stderr == "perfetto is not installed: pip install 'eventrain[view]'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_damaged_log_is_exported_up_to_the_damage(
    command: Command, write_run: WriteRun, append_records: Callable[..., None], small_run, tmp_path: Path
) -> None:
    """The command fails, and says that the file has what is before it."""
    folder = write_run(tmp_path / "run", upto=30)
    append_records(folder, small_run.records[30:], first_seq=30)
    segment = sorted(folder.events.iterdir())[-1]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    out = tmp_path / "a.pftrace"
    result = command("export", "perfetto", tmp_path / "run", out)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(f"; {out} has what is before it\n")
    assert ReadTrace(out.read_bytes()).on("trainer/phases")
