"""The trackers for real: their files and databases are read back, and one that hangs or fails holds up nothing."""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import World, config

from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.telemetry.trackers import StepFigures, StepRow, Trackers
from eventrain.adapters.telemetry.trackers.jsonl import JsonlTracker
from eventrain.adapters.telemetry.trackers.tensorboard import TensorBoardTracker
from eventrain.adapters.telemetry.trackers.tracker import QUEUED_MAX, Feed
from eventrain.core.config import TelemetrySection
from eventrain.events.record import Record
from eventrain.events.types import RunResumed, TelemetryDegraded, TelemetryDropped

SUPPORT = Path(__file__).parents[3] / "support"


def row(step: int, **figures: float) -> StepRow:
    return StepRow(step, 100 + step, 1_700_000_000_000_000_000 + step, {"policy/loss": 0.5, **figures})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trackers(folder: Path, *names: str, past: list[Record] | None = None) -> Trackers:
    section = TelemetrySection.model_validate({"trackers": names})
    return Trackers(section, folder, "demo-20261201-015541", config(), past or [])


# metrics.jsonl


def test_metrics_jsonl_has_a_line_for_each_step(tmp_path: Path) -> None:
    """A simulated run: step, seq and ts in front, then the figures, and no report to make."""
    world = World().go()
    ours = trackers(tmp_path)
    for record in world.log:
        ours.apply(record)
    ours.close(5)
    found = lines(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in found] == list(range(6))
    assert list(found[0])[:3] == ["step", "seq", "ts"]
    assert all(line["reward/mean"] == 0.5 or 0 <= line["reward/mean"] <= 1 for line in found)
    assert ours.take_reports() == []


def test_a_resumed_run_has_its_surviving_history_once(tmp_path: Path) -> None:
    """Whatever a killed life left in the file, after the resume it is what a fold of the whole log gives."""
    compared = 0
    for seed in range(12):
        tape = Tape(seed)
        records = simulate(draw_scenario(tape), tape, killing=True).records
        places = [n for n, record in enumerate(records) if isinstance(record.event, RunResumed)]
        if not places:
            continue
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "metrics.jsonl").write_text('{"step": 0}\n{"step": 99}\n{"st')
        ours = trackers(folder, past=records[: places[0]])
        for record in records[places[0] :]:
            ours.apply(record)
        ours.close(5)
        assert [(line["step"], line["seq"]) for line in lines(folder / "metrics.jsonl")] == survivors(records)
        compared += 1
    assert compared >= 3


def survivors(records: list[Record]) -> list[tuple[int, int]]:
    figures, kept = StepFigures(), {}
    for record in records:
        figures.apply(record)
        if isinstance(record.event, RunResumed):
            kept = {step: seq for step, seq in kept.items() if step < record.event.step}
        kept |= {one.step: one.seq for one in figures.take()}
    return list(kept.items())


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    """A reader that has the file open keeps what it read: the shorter one is another file."""
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path, [row(0), row(1)])
    tracker.log(row(2))
    with path.open() as before:
        tracker.rewind(1)
        tracker.log(row(1, again=1.0))
        assert [json.loads(line)["step"] for line in before] == [0, 1, 2]
    tracker.close()
    assert [(line["step"], line.get("again")) for line in lines(path)] == [(0, None), (1, 1.0)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


# TensorBoard


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    """Return (step, tag, value) as TensorBoard shows them, from the bytes of the event files."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    shown: list[tuple[int, str, float]] = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name.rpartition(".")[2]):
        data, at = path.read_bytes(), 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            if event.session_log.status == SessionLog.START:
                shown = [one for one in shown if one[0] < event.step]
            shown += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return shown


def test_tensorboard_has_every_figure_at_its_step(tmp_path: Path) -> None:
    """Read back from the event files: tag, step and value; steps that a resume took back are purged."""
    tracker = TensorBoardTracker(tmp_path / "tensorboard")
    for step in range(3):
        tracker.log(row(step, **{"timing/step": float(step)}))
    tracker.rewind(1)
    tracker.log(row(1, **{"timing/step": 8.0}))
    tracker.close()
    assert scalars(tmp_path / "tensorboard") == [
        (0, "policy/loss", 0.5),
        (0, "timing/step", 0.0),
        (1, "policy/loss", 0.5),
        (1, "timing/step", 8.0),
    ]


def test_tensorboard_shows_the_steps_of_a_log_that_goes_on_once(tmp_path: Path) -> None:
    """A resume writes them again, and what the process before had written does not count."""
    folder = tmp_path / "tensorboard"
    first = TensorBoardTracker(folder)
    first.log(row(0, old=1.0))
    first.close()
    (old,) = folder.iterdir()
    old.rename(folder / f"{old.name[:-2]}.0")  # opened seconds earlier, it would have another name
    second = TensorBoardTracker(folder, [row(0)])
    second.rewind(1)
    second.log(row(1))
    second.close()
    assert scalars(folder) == [(0, "policy/loss", 0.5), (1, "policy/loss", 0.5)]


# Those that keep state of their own in the process run in another one


def in_process(code: str, folder: Path, **env: str) -> str:
    """Run `code` in another Python whose home is `folder`, and return what it prints."""
    environment = {
        **os.environ,
        "HOME": str(folder),
        "TRACKIO_DIR": str(folder / "trackio"),
        "WANDB_ERROR_REPORTING": "false",
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]),
        "FOLDER": str(folder),
        **env,
    }
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        if name not in env:
            environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


RUN = """
import os
from pathlib import Path
from worlds import World, config
from eventrain.adapters.telemetry.trackers import Trackers
from eventrain.core.config import TelemetrySection
section = TelemetrySection.model_validate({"trackers": [TRACKER]})
ours = Trackers(section, Path(os.environ["FOLDER"]), "demo-20261201-015541", config())
for record in World().go().log:
    ours.apply(record)
ours.close(60)
reports = ours.take_reports()
assert reports == [], reports
"""
AGAIN = """
import os
from pathlib import Path
from worlds import World, config
from eventrain.adapters.telemetry.trackers import Trackers
from eventrain.core.config import TelemetrySection
from eventrain.events.record import Record
from eventrain.events.types import RunResumed
log = World().go().log
section = TelemetrySection.model_validate({"trackers": [TRACKER]})
ours = Trackers(section, Path(os.environ["FOLDER"]), "demo-20261201-015541", config(), log)
last = log[-1]
ours.apply(Record(last.seq + 1, last.ts, last.mono, "run", None, "", RunResumed(step=6, version=6)))
ours.close(60)
reports = ours.take_reports()
assert reports == [], reports
"""
"""The run goes on where all its steps are trained; nothing more comes."""


def test_wandb_offline_needs_no_account_and_no_network(tmp_path: Path) -> None:
    """Without a key the run is kept on disk under our run's id, silently, and its history reads back."""
    proxies = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    assert in_process(f"TRACKER = 'wandb'{RUN}", tmp_path, **proxies) == ""
    (folder,) = (tmp_path / "wandb").glob("offline-run-*-demo-20261201-015541")
    history = wandb_history(next(folder.glob("*.wandb")))
    assert [entry["step"] for entry in history] == list(range(6))
    assert all("timing/step" in entry and "generate/frac_time_in_env" in entry for entry in history)


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True], ids=["new", "known"])
def test_wandb_is_told_the_steps_so_far_where_it_is_new(tmp_path: Path, before: bool) -> None:
    """Switched on at a resume it gets the history once; where it was on before, it gets nothing again."""
    if before:
        in_process(f"TRACKER = 'wandb'{RUN}", tmp_path)
    in_process(f"TRACKER = 'wandb'{AGAIN}", tmp_path)
    files = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    history = [entry for path in files for entry in wandb_history(path)]
    assert sorted(entry["step"] for entry in history if "timing/step" in entry) == list(range(6))


def wandb_history(path: Path) -> list[dict[str, Any]]:
    """Return the logged rows of a ``.wandb`` file: protobuf records in LevelDB's log format, after a short header."""
    from wandb.proto import wandb_internal_pb2

    history = []
    for data in leveldb_records(path.read_bytes(), header_bytes=7):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            history.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    return history


def leveldb_records(data: bytes, *, header_bytes: int) -> list[bytes]:
    """Return the records: in blocks of 32 KiB, each fragment has a checksum, a length and a place in its record."""
    block, head, (full, _, _, last) = 2**15, 7, (1, 2, 3, 4)
    found, parts, at = [], b"", header_bytes
    while at + head <= len(data):
        if block - at % block < head:
            at += block - at % block
            continue
        length, place = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + head : at + head + length]
        at += head + length
        if place in {full, last}:
            found.append(parts)
            parts = b""
    return found


def test_trackio_keeps_the_run_in_its_database(tmp_path: Path) -> None:
    """The database in TRACKIO_DIR has every step under our run's id, and nothing was printed."""
    assert in_process(f"TRACKER = 'trackio'{RUN}", tmp_path) == ""
    found = trackio_rows(tmp_path)
    assert [(name, step) for name, step, _ in found] == [("demo-20261201-015541", n) for n in range(6)]
    assert "timing/step" in json.loads(found[0][2])


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True], ids=["new", "known"])
def test_trackio_is_told_the_steps_so_far_where_it_is_new(tmp_path: Path, before: bool) -> None:
    """Switched on at a resume it gets the history once; where it was on before, it gets nothing again."""
    if before:
        in_process(f"TRACKER = 'trackio'{RUN}", tmp_path)
    in_process(f"TRACKER = 'trackio'{AGAIN}", tmp_path)
    assert [step for _, step, _ in trackio_rows(tmp_path)] == list(range(6))


def trackio_rows(folder: Path) -> list[tuple[str, int, str]]:
    (path,) = (folder / "trackio").glob("eventrain*.db")
    database = sqlite3.connect(path)
    try:
        return database.execute("select run_name, step, metrics from metrics order by step").fetchall()
    finally:
        database.close()


# What goes wrong


def feed(tracker: Any) -> Feed:
    return Feed("made up", lambda: tracker)


class Recording:
    def __init__(self, log: Callable[[StepRow], None] = lambda row: None) -> None:
        self.seen: list[Any] = []
        self.then = log

    def log(self, row: StepRow) -> None:
        self.then(row)
        self.seen.append(row.step)

    def rewind(self, step: int) -> None:
        self.seen.append(("rewind", step))

    def close(self) -> None:
        self.seen.append("closed")


def test_a_tracker_gets_everything_in_order() -> None:
    """Steps, what is taken back, and the end."""
    tracker = Recording()
    ours = feed(tracker)
    ours.log(row(0))
    ours.rewind(0)
    ours.log(row(0))
    ours.end()
    ours.join(5)
    assert tracker.seen == [0, ("rewind", 0), 0, "closed"]
    assert ours.take_reports("all") == []


def test_what_a_tracker_is_made_with_goes_when_it_is_made() -> None:
    """The steps of a run so far are not kept as long as the feed that handed them over."""

    class Making:
        def __call__(self) -> Recording:
            return Recording(lambda row: logged.set())

    logged = threading.Event()
    making = Making()
    held = weakref.ref(making)
    ours = Feed("made up", making)
    del making
    ours.log(row(0))
    assert logged.wait(5)
    gc.collect()
    assert held() is None
    ours.end()
    ours.join(5)


def test_a_tracker_that_hangs_delays_nobody() -> None:
    """A full line drops steps and counts them, in no time; the end waits as long as allowed and no longer."""
    release = threading.Event()
    tracker = Recording(lambda row: release.wait(60) and None)
    ours = feed(tracker)
    began = time.monotonic()
    for step in range(QUEUED_MAX + 50):
        ours.log(row(step))
    assert time.monotonic() - began < 1
    ours.end()
    ours.join(0.1)
    assert time.monotonic() - began < 2
    degraded, *dropped = ours.take_reports("metrics.jsonl")
    assert degraded == TelemetryDegraded(
        part="trackers", missing="made up: not closed within 0.1 s", works="metrics.jsonl"
    )
    assert all(isinstance(one, TelemetryDropped) and one.signal == "trackers" for one in dropped)
    counts = {one.reason: one.count for one in dropped}
    assert sum(counts.values()) == QUEUED_MAX + 50
    assert set(counts) == {"queue_full", "timed_out"}
    assert ours.take_reports("metrics.jsonl") == []
    release.set()
    ours.join(5)


def test_a_failure_is_told_once_and_steps_are_counted() -> None:
    """The second step fails, and the fourth: one TelemetryDegraded with the first message, two steps dropped."""

    def fail(row: StepRow) -> None:
        if row.step % 2:
            raise OSError(f"no room for step {row.step}")

    tracker = Recording(fail)
    ours = feed(tracker)
    for step in range(4):
        ours.log(row(step))
    ours.end()
    ours.join(5)
    assert tracker.seen == [0, 2, "closed"]
    assert ours.take_reports("the log") == [
        TelemetryDegraded(part="trackers", missing="made up: no room for step 1", works="the log"),
        TelemetryDropped(signal="trackers", reason="failed", count=2),
    ]


def test_a_missing_library_is_one_line_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on with metrics.jsonl; the report names the extra."""
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    ours = trackers(tmp_path, "tensorboard")
    for record in World().go().log:
        ours.apply(record)
    ours.close(5)
    (report,) = ours.take_reports()
    assert isinstance(report, TelemetryDegraded)
    assert report.missing == (
        "tensorboard: tensorboardX is not installed: pip install 'eventrain[tensorboard]'"
    )
    assert report.works == "metrics.jsonl, the event log"
    assert len(lines(tmp_path / "metrics.jsonl")) == 6


def test_a_folder_that_cannot_be_written_does_not_raise(tmp_path: Path) -> None:
    """No folder: one report, and every call goes on."""
    ours = trackers(tmp_path / "none")
    for record in World().go().log:
        ours.apply(record)
    ours.close(5)
    (report,) = ours.take_reports()
    assert isinstance(report, TelemetryDegraded)
    assert report.missing.startswith("metrics.jsonl: ")


def test_a_log_that_cannot_be_folded_does_not_raise(tmp_path: Path) -> None:
    """A defect in the figures is told once, with the place in the log."""
    records = World().go().log
    ours = trackers(tmp_path)
    for record in [record for record in records if type(record.event).__name__ != "GroupDispatched"]:
        ours.apply(record)
    ours.close(5)
    (report,) = ours.take_reports()
    assert isinstance(report, TelemetryDegraded)
    assert report.missing.startswith("figures of steps from seq ")
