"""`eventrain run` in a real process, with simulated parts: how it shows progress and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from simulated_program import PROGRAM, eventrain

from eventrain.events.folder import RunFolder
from eventrain.events.reader import LogReader
from eventrain.events.types import Event, StepCompleted, StopRequested

CONFIG = """
[run]
name = "sim"
steps = 3
[model]
path = "model"
[data]
kind = "generated"
size = 100000
[environment]
kind = "simulated"
[rollout]
group_size = 2
max_turns = 2
[scheduler]
groups_per_step = 2
[failures]
backoff_s = 0.001
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a configuration of three quick steps."""
    (tmp_path / "model").mkdir()
    (tmp_path / "sim.toml").write_text(CONFIG)
    return tmp_path


def started(
    folder: Path, *arguments: str, hangups: signal.Handlers = signal.SIG_DFL
) -> subprocess.Popen[str]:
    """Start a run that never ends by itself and return once it has taken its first steps.

    `hangups` is what the run inherits for SIGHUP, whatever these tests themselves were started with.
    """
    ours = signal.signal(signal.SIGHUP, hangups)
    try:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), "run", "sim.toml", "--run-dir", "run", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGHUP, ours)
    assert process.stderr is not None
    no_step = {"environment.options.hang=true", "environment.options.fail=true"} & set(arguments)
    awaited = '"engine_up"' if no_step else '"step_completed"'
    for line in process.stderr:
        if awaited in line:
            break
    return process


def events(path: Path) -> list[Event]:
    return [record.event for record in LogReader(RunFolder.open(path).events).records()]


def kinds(path: Path) -> list[str]:
    return [event.kind for event in events(path)]  # type: ignore[attr-defined]


def test_a_run_ends_with_its_folder_and_exit_code_0(folder: Path) -> None:
    """Off a terminal, stderr has one JSON line per step, stdout the end of the run and what to look at next."""
    done = eventrain(folder, "run", "sim.toml", "--set", "run.name=my run")
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["step"] for line in lines if line["event"] == "step_completed"] == [0, 1, 2]
    assert lines[-1]["event"] == "run_finished"
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"my run: completed after 3 steps in .*", first)
    path = folder / second.split()[-1]
    assert re.fullmatch(r"runs/my-run-\d{8}-\d{6}", second.split()[-1])
    assert kinds(path)[0] == "run_started"
    assert kinds(path)[-1] == "run_finished"
    assert not (path / "lock").exists()


def test_a_run_whose_data_runs_out_says_so_and_ends_with_3(folder: Path) -> None:
    """With steps missing it is no success: exit code 3, and the last line has what became of the prompts."""
    options = ("environment.options.equal=true", "algorithm.drop_zero_variance=true", "algorithm.filtered_max=0")
    settings = [part for option in (*options, "data.size=12") for part in ("--set", option)]
    done = eventrain(folder, "run", "sim.toml", "--run-dir", "run", *settings)
    assert done.returncode == 3
    first, _ = done.stdout.splitlines()
    reason = "12 prompts: 0 trained, 12 filtered (equal rewards); 0 of 3 steps"
    assert re.fullmatch(rf"sim: not complete, the data ran out after 0 steps in .*: {re.escape(reason)}", first)
    assert events(folder / "run")[-1].reason == reason  # type: ignore[attr-defined]


def test_ctrl_c_ends_a_run_cleanly(folder: Path) -> None:
    """The first Ctrl-C is told, the run ends as interrupted with everything accounted for, exit code 130."""
    process = started(folder, "--set", "run.steps=10000")
    with process, closing(process.stdout), closing(process.stderr):
        process.send_signal(signal.SIGINT)
        stderr, stdout = process.stderr.read(), process.stdout.read()
        assert process.wait(30) == 130
    assert "finishing" in stderr
    assert "Traceback" not in stderr
    assert stdout.startswith("sim: interrupted after ")
    assert kinds(folder / "run")[-1] == "run_finished"
    assert events(folder / "run")[-1].outcome == "interrupted"  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_are_requests_to_end_too(folder: Path, number: signal.Signals) -> None:
    """A process supervisor's SIGTERM, and the SIGHUP of a closed terminal, end the run as cleanly as Ctrl-C."""
    process = started(folder, "--set", "run.steps=10000")
    with process, closing(process.stdout), closing(process.stderr):
        process.send_signal(number)
        process.stderr.read()
        assert process.wait(30) == 130
    assert kinds(folder / "run")[-1] == "run_finished"


def test_a_run_under_nohup_outlives_its_terminal(folder: Path) -> None:
    """A SIGHUP that whoever started the run has set to be ignored stays ignored: the run goes on."""
    process = started(folder, "--set", "run.steps=10000", hangups=signal.SIG_IGN)
    with process, closing(process.stdout), closing(process.stderr):
        process.send_signal(signal.SIGHUP)
        later = LogReader(folder / "run" / "events").follow(len(events(folder / "run")))
        first = next(
            record.event for record in later if isinstance(record.event, StepCompleted | StopRequested)
        )
        assert isinstance(first, StepCompleted)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(30) == 130


def test_a_second_ctrl_c_ends_the_process_at_once(folder: Path) -> None:
    """A run that cannot finish is ended by the second Ctrl-C; its log is readable and says nothing more."""
    process = started(
        folder, "--set", "environment.options.seconds=1000", "--set", "environment.options.hang=true"
    )
    with process, closing(process.stdout), closing(process.stderr):
        next(LogReader(folder / "run" / "events").follow(poll_s=0.01))  # its first event is on disk
        process.send_signal(signal.SIGINT)
        line = process.stderr.readline()
        while "finishing" not in line:
            assert line
            line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert "run_started" in kinds(folder / "run")


def test_a_failed_run_says_its_first_cause_and_ends_with_1(folder: Path) -> None:
    """When too many attempts fail the first cause is one line on stderr, and the log's last event."""
    done = eventrain(folder, "run", "sim.toml", "--run-dir", "run", "--set", "environment.options.fail=true")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("sim: failed")]
    assert len(said) == 1
    assert "division by zero" in said[0]
    assert kinds(folder / "run")[-1] == "run_failed"


@pytest.mark.parametrize(("fail", "code"), [("true", 1), ("false", 0)])
def test_the_exit_code_is_the_run_s_also_when_nobody_reads(folder: Path, fail: str, code: int) -> None:
    """With stdout and stderr closed early (`| head`), a run goes on to its end and its exit code still says how."""
    process = started(folder, "--set", f"environment.options.fail={fail}", "--set", "run.steps=20")
    with process:
        process.stdout.close()
        process.stderr.close()
        assert process.wait(30) == code
    assert kinds(folder / "run")[-1] == ("run_failed" if code else "run_finished")


def test_a_defect_leaves_its_traceback_in_the_run_folder(folder: Path) -> None:
    """An exception that nobody expected is one line on stderr; its traceback lies in logs, and --debug prints it."""
    options = ("--set", "environment.options.defect=true")
    done = eventrain(folder, "run", "sim.toml", "--run-dir", "run", *options)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "no such weight" in done.stderr.splitlines()[-2]
    (kept,) = (folder / "run" / "logs").glob("traceback-*.txt")
    assert "KeyError" in kept.read_text()
    shown = eventrain(folder, "run", "sim.toml", "--run-dir", "run2", "--debug", *options)
    assert "Traceback" in shown.stderr


def test_a_wrong_setting_ends_before_anything_starts(folder: Path, command) -> None:
    """A misspelt key is one line and exit code 2, and no folder was made."""
    wrong = command("run", folder / "sim.toml", "--run-dir", folder / "run", "--set", "run.stepps=3")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "--set run.stepps = 3: unknown key; did you mean run.steps?\n",
    )
    assert not (folder / "run").exists()


def test_parts_that_cannot_be_built_leave_no_folder(folder: Path) -> None:
    """What the wiring refuses is one line and exit code 2, and the folder can be used for the next try."""
    options = ("--set", "environment.options.refuse=true")
    refused = eventrain(folder, "run", "sim.toml", "--run-dir", "run", *options)
    assert (refused.returncode, refused.stderr) == (2, "environment 'simulated': no such class\n")
    assert not (folder / "run").exists()


def test_a_folder_that_holds_a_run_is_left_alone(folder: Path, write_run, command) -> None:
    """A second run into the same folder is refused, and the first one is untouched."""
    write_run(folder / "run", failed=True)
    again = command("run", folder / "sim.toml", "--run-dir", folder / "run")
    assert again.exit_code == 2
    assert again.stderr == f"{folder}/run already holds a run; choose another folder\n"
    assert kinds(folder / "run")[-1] == "run_failed"


def test_a_folder_that_cannot_be_made_is_one_line(folder: Path, command) -> None:
    """A file in the way of the run's folder is named."""
    (folder / "taken").write_text("")
    done = command("run", folder / "sim.toml", "--run-dir", folder / "taken" / "run")
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert "taken" in done.stderr


def test_a_terminal_gets_the_live_panel(folder: Path) -> None:
    """On a terminal the panel is drawn with step, reward and phase, log lines are human, and the cursor comes back."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "run", "sim.toml", "--set", "environment.options.seconds=0.2"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(terminal)
    shown = b""
    with process, closing(process.stdout):
        while True:
            try:
                part = os.read(screen, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not part:
                break
            shown += part
        assert process.wait(30) == 0
    os.close(screen)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "step   3/3" in text
    assert "reward" in text
    assert "phase  " in text
    assert "step_completed" in text
    assert '{"' not in text
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")


def test_a_full_disk_ends_the_run_with_one_line(folder: Path) -> None:
    """When the log cannot be written the run ends with that as its cause, and what was logged before stays readable."""
    command_line = (
        f"ulimit -f 60; exec {sys.executable} {PROGRAM} run sim.toml --run-dir run --set run.steps=10000"
    )
    done = subprocess.run(
        ["bash", "-c", command_line], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "the event log in run/events could not be written: File too large"
    assert kinds(folder / "run").count("step_completed") > 3


def test_numbers_that_cannot_make_progress_are_refused_before_a_folder_is_made(folder: Path) -> None:
    """The line has the setting, its default and the chain; nothing is started, and no folder stays behind."""
    result = eventrain(folder, "run", "sim.toml", "--run-dir", "run", "--set", "deadlines.buffer_wait_s=0.01")
    assert result.returncode == 2
    assert result.stderr == (
        "sim: refused: with deadlines.buffer_wait_s = 0.01 (its default 7200 would do), no step can be trained: "
        "trainer waits buffer_ready(0) <- target 0 short by 2 <- collector waits engine_available "
        "<- no engine is up\n"
    )
    assert not (folder / "run").exists()
