"""status, events and show, as their users see them, on a small fixed run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from eventrain.adapters.cli.main import commands
from eventrain.adapters.cli.opening import reader_of
from eventrain.adapters.cli.scenario_file import load_scenario
from eventrain.adapters.cli.status_report import RunStatus, status_lines, status_table
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.events.folder import RunFolder
from eventrain.events.types import (
    EnvironmentWorkerLost,
    RunFailed,
    RunFinished,
    TrajectoryDropped,
    TrajectoryFailed,
    TrajectoryStarted,
)

GOLDEN = Path(__file__).parent / "golden"
SCENARIOS = Path(__file__).parents[2] / "scenarios"
NOW_TS = 1_767_268_800_000_000_000 + 6_000_000_000


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def golden(name: str, text: str) -> None:
    """Compare with tests/adapters/cli/golden/<name>; EVENTRAIN_GOLDEN=write writes it anew, to be looked at."""
    path = GOLDEN / name
    if os.environ.get("EVENTRAIN_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def run_path(tmp_path: Path, write_run, monkeypatch) -> Path:
    """Write the small run to ``run`` in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"))
    return Path("run")


# events


def test_events_prints_one_aligned_line_per_event(run_path: Path, command) -> None:
    """Every event is one line with seq, time, actor, kind and fields, without colour codes in a pipe."""
    result = command("events", run_path)
    assert result.exit_code == 0
    golden("events.txt", result.output)


def test_events_can_be_chosen_by_kind_and_seq(run_path: Path, command) -> None:
    """--type picks kinds, --from begins later, and times still count from the start of the run."""
    result = command("events", run_path, "--type", "step_completed", "--type", "batch_taken", "--from", "60")
    assert [line.split()[:4] for line in result.output.splitlines()] == [
        ["94", "0:00:04.400", "trainer", "batch_taken"],
        ["97", "0:00:04.810", "trainer", "step_completed"],
    ]


def test_events_as_json_are_the_lines_of_the_log(run_path: Path, command) -> None:
    """--json prints each event as the log holds it, whether or not it follows the log."""
    lines = [json.loads(line) for line in command("events", run_path, "--json").output.splitlines()]
    assert [line["seq"] for line in lines] == list(range(105))
    assert lines == list(reader_of(RunFolder.open(run_path)).raw())
    chosen = command("events", run_path, "--json", "--type", "group_failed").output.splitlines()
    assert [json.loads(line)["group"] for line in chosen] == [4]


def test_an_unknown_kind_is_refused_with_the_nearest(run_path: Path, command) -> None:
    """A misspelt kind is bad input, not an empty answer."""
    result = command("events", run_path, "--type", "step_complete")
    assert result.exit_code == 2
    assert result.stderr == "--type step_complete: no event has this kind; did you mean step_completed?\n"


def test_following_ends_with_the_run(tmp_path: Path, write_run, command) -> None:
    """--follow on a finished run prints everything and ends by itself."""
    write_run(tmp_path / "run", failed=True)
    lines = command("events", tmp_path / "run", "--follow", "--type", "run_failed").output.splitlines()
    assert len(lines) == 1
    assert 'message="no batch came"' in lines[0]
    raw = command("events", tmp_path / "run", "--follow", "--json", "--from", "104").output.splitlines()
    assert [json.loads(line)["kind"] for line in raw] == ["blocked", "unblocked", "run_failed"]


def test_following_a_live_run_from_another_process(
    tmp_path: Path, write_run, append_records, small_run
) -> None:
    """A follower prints what is there, then what another process adds, and ends with the run's last event."""
    folder = write_run(tmp_path / "run", upto=100)
    follower = _eventrain("events", tmp_path / "run", "--follow", "--from", "98")
    with follower, closing(follower.stdout):
        assert "weights_published" in follower.stdout.readline()
        assert "phase_entered" in follower.stdout.readline()
        small_run.publish("run", RunFinished(outcome="completed", steps=2, version=2, seconds=5.0))
        append_records(folder, small_run.records[100:], first_seq=100)
        rest = follower.stdout.read().splitlines()
        assert follower.wait(20) == 0
    assert rest[-1].split()[3:] == [
        "run_finished",
        "outcome=completed",
        "steps=2",
        "version=2",
        "seconds=5.0s",
    ]


def test_a_closed_pipe_is_quiet(tmp_path: Path, write_run) -> None:
    """`eventrain events RUN | head -1` ends well and says nothing on stderr."""
    write_run(tmp_path / "run")
    script = f"set -o pipefail; {sys.executable} -m eventrain.adapters.cli events run --json | head -c 20"
    for _ in range(2):
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let children take SIGINT also where this process was started to ignore it, as a shell's background job is."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_follower_ends_with_130(tmp_path: Path, write_run) -> None:
    """Ctrl-C while following ends it at once, without a traceback."""
    write_run(tmp_path / "run")
    follower = _eventrain("events", tmp_path / "run", "--follow", stderr=subprocess.PIPE)
    with follower, closing(follower.stdout), closing(follower.stderr):
        assert "run_started" in follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 130
        assert "Traceback" not in follower.stderr.read()


# status


def test_status_of_a_run_that_goes_on(run_path: Path) -> None:
    """A live run shows its phase, the open wait with its age, engines, failures, and shares of time."""
    records = reader_of(RunFolder.open(run_path)).records()
    status = RunStatus.of(run_path, records, being_written=True, now_ts=NOW_TS)
    golden("status_running.txt", plain("\n".join(status_lines(status)) + "\n"))


def test_status_of_a_failed_run_names_the_first_cause(tmp_path: Path, write_run, monkeypatch) -> None:
    """A failed run says who failed, why, and which event shows it."""
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"), failed=True)
    records = reader_of(RunFolder.open(Path("run"))).records()
    status = RunStatus.of(Path("run"), records, being_written=False, now_ts=NOW_TS)
    golden("status_failed.txt", plain("\n".join(status_lines(status)) + "\n"))


def test_status_shows_what_the_very_last_event_broke(run_path: Path, small_run) -> None:
    """No event can follow the last one to tell it: the reader's own books do, and before the end there is nothing."""
    failed = RunFailed(failed_actor="trainer", error="x", message="no batch came")
    records = list(reader_of(RunFolder.open(run_path)).records())
    before = RunStatus.of(run_path, records, being_written=False, now_ts=NOW_TS)
    assert before.broken_laws() == []
    small_run.publish("run", failed)  # while the trainer still waits
    status = RunStatus.of(run_path, small_run.records, being_written=False, now_ts=NOW_TS)
    line = "open wait: expected none at the end, found 1: ['104']"
    assert re.search(rf"^law broken +{re.escape(line)}$", plain("\n".join(status_lines(status))), re.MULTILINE)
    assert status_table(status)["invariants_broken"] == ["open wait"]


def test_status_and_show_of_a_run_that_lost_trajectories_and_its_data(
    tmp_path: Path, write_run, append_records, small_run, command
) -> None:
    """What was dropped is counted, a run that ended short says why, and is not called completed."""
    reason = "12 prompts: 6 trained, 6 filtered (equal rewards); 2 of 3 steps"
    told, why = len(small_run.records), {"failure": "env_error", "blame": "environment", "message": "no tool"}
    small_run.publish("rollout", TrajectoryStarted(trajectory="5/0", group=5))
    small_run.publish(
        "rollout", TrajectoryFailed(trajectory="5/0", group=5, attempt=0, retryable=True, **why)
    )
    small_run.publish("collector", TrajectoryDropped(trajectory="5/0", group=5, **why))
    small_run.publish(
        "run", RunFinished(outcome="data_exhausted", steps=2, version=2, seconds=5.0, reason=reason)
    )
    append_records(write_run(tmp_path / "run"), small_run.records[told:], first_seq=told)
    said = command("status", tmp_path / "run").output
    assert said.splitlines()[0] == "hunt  not complete: the data ran out  step 2 of 3"
    assert re.search(rf"^ended +{re.escape(reason)}$", said, re.MULTILINE)
    assert re.search(r"^dropped +trajectories that their groups go on without: 1$", said, re.MULTILINE)
    table = json.loads(command("status", tmp_path / "run", "--json").output)
    assert (table["state"], table["reason"], table["trajectories_dropped"]) == ("data_exhausted", reason, 1)
    shown = command("show", tmp_path / "run", "5").output
    assert "5 (2 trajectories, 1 dropped)" in shown
    assert "dropped: env_error" in shown
    assert "its group went on without it" in command("show", tmp_path / "run", "5/0").output


def test_status_of_a_killed_run_says_so(run_path: Path, command) -> None:
    """A log without a last word, and nobody who writes it, is told apart from a run that goes on."""
    assert "gone without a last word" in command("status", run_path).output
    with RunFolder.open(run_path).lock():
        assert "gone" not in command("status", run_path).output


def test_a_lock_that_was_cut_off_keeps_nobody_from_reading(run_path: Path, command) -> None:
    """What a full disk or a kill leaves of a lock file is no holder: the run can still be looked at."""
    RunFolder.open(run_path).lock_file.write_text('{"host": "here"')
    result = command("status", run_path)
    assert result.exit_code == 0
    assert "gone without a last word" in result.output


def test_status_as_json(run_path: Path, command) -> None:
    """--json has the same facts under fixed names."""
    table = json.loads(command("status", run_path, "--json").output)
    assert table["state"] == "gone"
    assert (table["step"], table["steps_total"], table["reward"]) == (2, 3, 0.875)
    assert table["groups_ended"] == {"failed": 1, "trained": 4}
    assert table["waits"][0]["edge"] == "buffer_ready"
    assert set(table["phase_s"]) == {"starting", "generating", "training"}
    ran_s = table["phase_s"]["starting"] + table["phase_s"]["generating"] + table["phase_s"]["training"]
    assert ran_s == pytest.approx(4.97, abs=0.001)


@pytest.mark.parametrize("upto", [1, 2, 5, 20, 55, 58, 100])
def test_status_works_at_every_point_of_a_run(tmp_path: Path, write_run, command, upto: int) -> None:
    """However little a log holds, status folds it."""
    write_run(tmp_path / "run", upto=upto)
    result = command("status", tmp_path / "run")
    assert result.exit_code == 0
    assert f"(seq {upto - 1})" in result.output


# show


def test_show_tells_the_story_of_a_trajectory(run_path: Path, command) -> None:
    """Prompt, turns, tokens with versions, times, reward, lag and failed attempts stand on one page."""
    result = command("show", run_path, "0/1")
    assert result.exit_code == 0
    golden("show_trajectory.txt", result.output)


def test_show_prints_every_token_when_asked(run_path: Path, command) -> None:
    """--tokens lists ids with who wrote them, the version and the log-prob of sampled ones."""
    lines = command("show", run_path, "0/1", "--tokens").output.splitlines()
    table = lines[lines.index("position  id  by           version  log-prob") + 1 :]
    assert len(table) == 11
    assert table[0].split() == ["0", "20", "environment"]
    assert table[4].split() == ["4", "24", "policy", "0", "-0.5000"]


def test_show_of_a_group_lists_its_trajectories(run_path: Path, command) -> None:
    """A bare number is a group."""
    golden("show_group.txt", command("show", run_path, "0").output)


def test_show_of_a_failed_trajectory_says_why(run_path: Path, command) -> None:
    """What never completed has no text, and its failure is named."""
    output = command("show", run_path, "4/0").output
    assert "prompt_too_long (final, blamed on prompt): 120 tokens do not fit the context of 96" in output
    assert "no text to show" in output


def test_show_escapes_what_a_terminal_would_obey(tmp_path: Path, write_run, small_run, command) -> None:
    """A sampled escape sequence is printed as text."""
    from eventrain.adapters.cli.story_lines import _indented

    assert _indented("a\x1b[31mb\nc") == ["  a\\x1b[31mb", "  c"]


@pytest.mark.parametrize(
    ("which", "line"),
    [
        ("99/0", "run: has no trajectory 99/0; its groups go from 0 to 5"),
        ("99", "run: has no group 99; its groups go from 0 to 5"),
        ("first", "first: must be a trajectory like 57/3 or eval0/2, or a group like 57"),
    ],
)
def test_show_of_what_is_not_there(run_path: Path, command, which: str, line: str) -> None:
    """One line says what the run has instead."""
    result = command("show", run_path, which)
    assert (result.exit_code, result.stderr) == (2, f"{line}\n")


# Bad input


@pytest.mark.parametrize("name", ["status", "events", "show"])
def test_a_folder_without_a_run_is_bad_input(run_path: Path, command, name: str) -> None:
    """A wrong path ends with one line, exit code 2, and the nearest run there is."""
    arguments = ("0/0",) if name == "show" else ()
    missing = command(name, "ruN2", *arguments)
    assert (missing.exit_code, missing.stderr) == (2, "ruN2: no such folder; did you mean run?\n")
    Path("empty").mkdir()
    empty = command(name, "empty", *arguments)
    assert empty.exit_code == 2
    assert empty.stderr == "empty: is no run (it has no events folder)\n"
    Path("source/events").mkdir(parents=True)
    other = command(name, "source", *arguments)
    assert other.exit_code == 2
    assert other.stderr == "source: is no run (it has nothing of a run in its events folder)\n"
    assert "did you mean run?" in command(name, "sourcf", *arguments).stderr


def test_a_damaged_log_gives_one_line(run_path: Path, command) -> None:
    """A flipped byte in the middle of the log is reported with segment and place, without a traceback."""
    segment = next(iter((run_path / "events").iterdir()))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    for arguments in (("events", run_path), ("status", run_path)):
        result = command(*arguments)
        assert result.exit_code in (1, 2)
        assert len(result.stderr.splitlines()) == 1
        assert "Traceback" not in result.output


def test_missing_payloads_give_one_line(run_path: Path, command) -> None:
    """A run without its payloads can still be followed; only the text is missing, and that is said."""
    for pack in (run_path / "payloads").iterdir():
        pack.unlink()
    result = command("show", run_path, "0/1")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert command("show", run_path, "0").exit_code == 0


def test_debug_prints_the_traceback(run_path: Path, command) -> None:
    """--debug shows where an error came from, and the line all the same."""
    result = command("status", "nowhere", "--debug")
    assert result.exit_code == 2
    for pack in (run_path / "payloads").iterdir():
        pack.unlink()
    shown = command("show", run_path, "0/1", "--debug").stderr
    assert "Traceback" in shown
    assert "PayloadMissing" in shown


def test_every_help_has_an_example(command) -> None:
    """Each command says what it does, with an example to copy."""
    for name in ("run", "demo", "status", "events", "show"):
        result = command(name, "--help")
        assert result.exit_code == 0
        assert "Example" in result.output
        assert f"eventrain {name}" in result.output
    assert re.fullmatch(r"eventrain \d+\.\d+\.\d+\S*\n", command("--version").output)


def _eventrain(*arguments: str | Path, stderr: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "eventrain.adapters.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


@pytest.mark.parametrize("command", ["status", "stalls", "replay"])
def test_a_log_whose_only_write_is_torn_is_not_called_empty(tmp_path, command):
    """A file full of bytes of which no event can be read is told apart from a run that has not begun."""
    golden = Path(__file__).parents[2] / "golden" / "run_0_1" / "events" / "000001.jsonl.zst"
    events = tmp_path / "run" / "events"
    events.mkdir(parents=True)
    (events / golden.name).write_bytes(golden.read_bytes()[:-200])
    arguments = [command, str(tmp_path / "run")] + (["--at", "1"] if command == "replay" else [])
    told = CliRunner().invoke(commands, arguments)
    assert told.exit_code == 2
    assert told.stderr == f"{tmp_path / 'run'}: nothing of the log can be read: its first write is not whole\n"


def test_status_tells_of_workers_that_hold_environments() -> None:
    """Each has its state, what it holds, and what was the matter with it; a run without them has no such row."""
    scenario = load_scenario(SCENARIOS / "environment_worker_dies.toml")
    records = simulate(scenario, Tape(0)).records
    lost = next(record for record in records if isinstance(record.event, EnvironmentWorkerLost))
    for upto, row, held in (
        (lost.seq, r"environment-1 lost, holds [1-9]\d* environments: environment-1 died", True),
        (len(records), r"environment-1 up, holds 0 environments, restarted 1 times", False),
    ):
        status = RunStatus.of(Path("run"), records[: upto + 1], being_written=True, now_ts=records[-1].ts)
        text = plain("\n".join(status_lines(status)))
        assert re.search(rf"^worker +{row}$", text, re.MULTILINE), text
        one = status_table(status)["environment_workers"][1]
        assert (one["name"], one["environments"] > 0) == ("environment-1", held)
