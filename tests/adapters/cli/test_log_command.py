"""`eventrain log`: what it finds in logs that are whole, torn, damaged, foreign, and what it leaves alone."""

from __future__ import annotations

import json
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from eventrain.adapters.cli import parquet_export
from eventrain.adapters.cli.redaction import (
    HIDDEN_FIELDS,
    KEPT_FIELDS,
    TREATED_FIELDS,
    Redactor,
    redacted_config,
)
from eventrain.core.config_sections import ClusterSection, EngineSection
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.segment import FrameWriter, Header, marker_line, read_frames, segment_name
from eventrain.events.types import (
    EVENT_CLASSES,
    CheckpointCommitted,
    CheckpointStarted,
    EngineLost,
    LearnerUp,
    Origin,
    RunStarted,
    StallDetected,
    StepCompleted,
    TrajectoryCompleted,
    TrajectoryFailed,
    WorkerLogged,
)

WriteRun = Callable[..., RunFolder]


def lawful(record: Record) -> Record:
    """Return `record` with tokens of the version that was published when they were sampled."""
    if not isinstance(record.event, TrajectoryCompleted):
        return record
    (version, first), (_, second) = record.event.version_spans
    spans = ((version, first + second),)
    return record._replace(event=record.event.model_copy(update={"version_spans": spans}))


def in_segments(folder: RunFolder, *, each: int) -> None:
    """Write the log anew, in segments of `each` events, and without a broken law."""
    records = [lawful(record) for record in LogReader(folder.events).records()]
    for path in folder.events.iterdir():
        path.unlink()
    for first in range(0, len(records), each):
        writer = LogWriter(folder.events, run="hunt", epoch=1, first_seq=first, segment_bytes=2**20)
        for record in records[first : first + each]:
            writer.append(record)
        writer.close()


@pytest.fixture
def run(tmp_path: Path, write_run: WriteRun) -> RunFolder:
    """Return the small run, with a log of several segments."""
    folder = write_run(tmp_path / "run", failed=True)
    in_segments(folder, each=20)
    return folder


@pytest.fixture
def short(tmp_path: Path, write_run: WriteRun) -> RunFolder:
    """Return the small run before its end, with a log of one segment."""
    folder = write_run(tmp_path / "run")
    in_segments(folder, each=1000)
    return folder


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


def verified(command: Any, run: RunFolder, *options: str) -> tuple[int, list[str]]:
    done = command("log", "verify", run.path, *options)
    return done.exit_code, done.output.splitlines()


def test_a_whole_run_is_clean(run: RunFolder, command) -> None:
    """Exit code 0, and one line that says how much was looked at."""
    code, (line,) = verified(command, run)
    assert code == 0
    assert line == f"{run.path}: clean: 107 events in 6 segments, 8 payloads"
    assert verified(command, run, "--no-payloads")[1][0].endswith("payloads not looked at")


def test_a_live_run_is_verified_as_far_as_it_is_there(short: RunFolder, command) -> None:
    """While its lock is held the report says so, and a write that is just going on is no finding."""
    folder = short
    (path,) = folder.events.iterdir()
    path.write_bytes(path.read_bytes() + FrameWriter(1).frame(b"x" * 40)[:-3])
    with folder.lock():
        code, lines = verified(command, folder)
    assert code == 0
    assert lines[0].endswith("perhaps just being written")
    assert "a live process writes the run" in lines[1]
    assert verified(command, folder)[0] == 1


def test_a_flipped_byte_is_found_and_what_is_behind_it_too(run: RunFolder, command) -> None:
    """The line names segment, byte and seq; the next one what the others read, and what is whole behind it."""
    flip(run.events / segment_name(3), 120)
    code, lines = verified(command, run)
    assert code == 1
    assert lines[0].startswith("000003.jsonl.zst at byte ")
    assert lines[0].endswith("damaged from seq 40 on")
    assert lines[1] == "the other commands can read seq 0 to 39; whole events behind the damage: seq 60 to 106"
    assert len(lines) == 3


def test_two_segments_in_each_other_s_place_are_found(run: RunFolder, command) -> None:
    """Their headers say where they belong."""
    second, third = run.events / segment_name(2), run.events / segment_name(3)
    second.rename(run.events / "aside")
    third.rename(second)
    (run.events / "aside").rename(third)
    code, lines = verified(command, run)
    assert code == 1
    assert lines[0] == "000002.jsonl.zst: it begins with seq 40; damaged from seq 20 on"
    assert lines[1] == "000003.jsonl.zst: it begins with seq 20; damaged from seq 60 on"
    assert any("can read seq 0 to 19" in line for line in lines)


def test_a_missing_and_a_foreign_segment_are_found(run: RunFolder, command) -> None:
    """One line for each, with the seq from which the log is damaged."""
    (run.events / segment_name(2)).unlink()
    foreign = marker_line(Header(1, "other", 1, 80, "0"))
    (run.events / segment_name(5)).write_bytes(FrameWriter(1).frame(foreign))
    _, lines = verified(command, run)
    assert lines[:2] == [
        "000002.jsonl.zst: the file is missing; damaged from seq 20 on",
        "000005.jsonl.zst: it is of run 'other', not 'hunt'; damaged from seq 80 on",
    ]
    assert "whole events behind the damage: seq 40 to 79, 100 to 106" in lines[2]


def test_a_log_cut_off_in_a_frame_is_a_torn_tail(run: RunFolder, command) -> None:
    """Nothing that was acknowledged is lost, and the line says what cuts it off."""
    last = run.events / segment_name(6)
    with last.open("rb") as file:
        ends = [end for end, _ in read_frames(file)]
    last.write_bytes(last.read_bytes()[: ends[1] - 4])
    code, lines = verified(command, run)
    assert code == 1
    assert "of a torn write after seq 99; no event that was acknowledged is lost" in lines[0]


def test_an_event_that_is_none_is_found(run: RunFolder, command) -> None:
    """A frame with a good checksum may still hold what no event allows; the rest is looked at all the same."""
    path = run.events / segment_name(2)
    with path.open("rb") as file:
        header, records, seal = (content for _, content in read_frames(file))
    edited = records.replace(b'"attempt":0', b'"attempt":"no"', 1)
    assert edited != records
    frames = FrameWriter(1)
    path.write_bytes(b"".join(frames.frame(part) for part in (header, edited, seal)))
    code, lines = verified(command, run)
    assert code == 1
    assert "is no valid '" in lines[0]
    assert len(lines) == 3


def test_a_missing_and_a_changed_payload_are_found(run: RunFolder, command) -> None:
    """Each event whose payload cannot be read has a line; without payloads nothing is found."""
    (pack,) = run.payloads.iterdir()
    flip(pack, 3)
    code, lines = verified(command, run)
    assert code == 1
    assert "does not match its digest" in lines[0]
    assert lines[0].startswith("seq ")
    pack.unlink()
    code, lines = verified(command, run)
    assert (code, len(lines)) == (1, 9)
    assert "there is no such pack" in lines[0]
    assert verified(command, run, "--no-payloads")[0] == 0


def test_checkpoints_are_held_against_their_commits(short: RunFolder, command, append_records) -> None:
    """A committed one that is missing is a finding; a folder that nobody committed is only said."""
    folder = short
    last = list(LogReader(folder.events).records())[-1]
    path = "checkpoints/step-000002"
    events = [
        CheckpointStarted(step=2, version=2, path=path),
        CheckpointCommitted(step=2, version=2, path=path, size_bytes=1, seconds=1),
    ]
    append_records(
        folder,
        [last._replace(seq=last.seq + at, event=event) for at, event in enumerate(events, 1)],
        first_seq=last.seq + 1,
    )
    code, lines = verified(command, folder)
    assert code == 1
    assert lines[0] == (
        f"seq {last.seq + 2}: {path} was committed and is missing; "
        "a resume goes on from an older one, if there is one"
    )
    (folder.path / path).mkdir()
    (folder.checkpoints / "step-000003").mkdir()
    code, lines = verified(command, folder)
    assert code == 0
    assert lines[0] == "checkpoints/step-000003: not committed, a resume ignores it"


def test_a_broken_law_is_found(short: RunFolder, command, append_records) -> None:
    """The books are kept over the whole log; a breach has the seq of the event that broke it."""
    folder = short
    records = list(LogReader(folder.events).records())
    again = next(record for record in records if isinstance(record.event, StepCompleted))
    append_records(folder, [again._replace(seq=len(records))], first_seq=len(records))
    code, lines = verified(command, folder)
    assert code == 1
    assert any(line.startswith(f"seq {len(records)}: law 'step' broken: ") for line in lines)


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path, command) -> None:
    """Every command that takes a run says so, with exit code 2."""
    (tmp_path / "events").mkdir()
    for arguments in (
        ("log", "verify", tmp_path),
        ("log", "repair", tmp_path),
        ("log", "export", tmp_path, "--parquet", tmp_path / "out"),
        ("log", "redact", tmp_path, "--out", tmp_path / "out"),
        ("fork", tmp_path, "--at", "step:1"),
        ("run", "--resume", tmp_path),
    ):
        done = command(*arguments)
        assert done.exit_code == 2, arguments
        assert done.stderr == f"{tmp_path}: is no run (it has nothing of a run in its events folder)\n"
    assert not (tmp_path / "out").exists()


def test_repair_cuts_a_torn_tail_and_keeps_it(short: RunFolder, command) -> None:
    """The bytes lie beside the segment; a second repair finds nothing to do."""
    folder = short
    (path,) = folder.events.iterdir()
    whole = path.read_bytes()
    torn = FrameWriter(1).frame(b"x" * 400)[:-3]
    path.write_bytes(whole + torn)
    done = command("log", "repair", folder.path)
    assert done.exit_code == 0
    kept = folder.events / f"{path.name}.torn-{len(whole)}"
    assert done.stdout == (
        f"{folder.path}: cut {len(torn)} bytes of a torn write after seq 104; they are kept in {kept}\n"
    )
    assert (path.read_bytes(), kept.read_bytes()) == (whole, torn)
    assert command("log", "repair", folder.path).stdout.endswith("no torn tail; nothing was changed\n")
    assert verified(command, folder)[0] == 0


def test_repair_refuses_other_damage_and_a_live_run(run: RunFolder, command) -> None:
    """Nothing is cut that was acknowledged, nor under a writer's hands."""
    with run.lock():
        held = command("log", "repair", run.path)
    assert held.exit_code == 2
    assert "is being written by process" in held.stderr
    last = run.events / segment_name(6)
    flip(last, 120)  # a good frame follows: the seal
    before = last.read_bytes()
    refused = command("log", "repair", run.path)
    assert refused.exit_code == 1
    assert "log damaged in segment 000006.jsonl.zst" in refused.stderr
    assert "the last good event is seq 99. This is no torn tail, and is not repaired" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert last.read_bytes() == before


# Export


def rows(path: Path) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()


def test_every_event_is_exported_with_its_fields(run: RunFolder, tmp_path: Path, command) -> None:
    """One file per kind; numbers, lists, structs and maps are what they were."""
    pytest.importorskip("pyarrow")
    out = tmp_path / "parquet"
    done = command("log", "export", run.path, "--parquet", out)
    assert done.stdout == f"{out}: 107 events in 24 files, one per kind\n"
    records = {record.seq: record for record in LogReader(run.events).records()}
    found = {row["seq"]: row for path in out.iterdir() for row in rows(path)}
    assert sorted(found) == sorted(records)
    for seq, row in found.items():
        record = records[seq]
        assert (row["kind"], row["actor"], row["mono"], row["cause"]) == (
            record.event.kind,  # type: ignore[attr-defined]
            record.actor,
            record.mono,
            record.cause,
        )
        told = record.event.model_dump(mode="json")
        for name, value in told.items():
            got = row[name]
            if isinstance(value, dict) and isinstance(got, str):
                got = json.loads(got)
            elif isinstance(value, dict) and isinstance(got, list):
                got = dict(got)
            assert got == value, (seq, name)


def test_the_export_s_memory_is_bounded(
    run: RunFolder, tmp_path: Path, command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is written as soon as it is too much, and nothing is lost or written twice by that."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(parquet_export, "ROWS_WAITING_MAX", 10)
    monkeypatch.setattr(parquet_export, "ROWS_PER_GROUP", 4)
    command("log", "export", run.path, "--parquet", tmp_path / "out")
    seqs = [row["seq"] for path in (tmp_path / "out").iterdir() for row in rows(path)]
    assert sorted(seqs) == list(range(107))


def test_every_event_class_has_columns() -> None:
    """No field of any event is left without an Arrow type."""
    pa = pytest.importorskip("pyarrow")
    for event in EVENT_CLASSES:
        for name, field in event.model_fields.items():
            kind = parquet_export.arrow_type(pa, field.annotation)
            assert kind is not None or name == "config", (event, name)


def test_without_pyarrow_one_line_says_what_to_install(
    run: RunFolder, tmp_path: Path, command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is named, and no folder is made."""
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    done = command("log", "export", run.path, "--parquet", tmp_path / "out")
    assert (done.exit_code, done.stderr) == (2, "pyarrow is not installed: pip install 'eventrain[data]'\n")
    assert not (tmp_path / "out").exists()


def test_an_export_goes_to_an_empty_folder(run: RunFolder, tmp_path: Path, command) -> None:
    """A folder that holds something is left alone."""
    pytest.importorskip("pyarrow")
    done = command("log", "export", run.path, "--parquet", run.path)
    assert (done.exit_code, done.stderr) == (2, f"{run.path}: is not empty; choose another folder\n")


# Redaction


def test_a_redacted_copy_holds_nothing_private_and_reads_like_the_run(
    run: RunFolder, tmp_path: Path, command
) -> None:
    """It verifies, says what it is, has every event at its place, and cannot be gone on with."""
    out = tmp_path / "redacted"
    done = command("log", "redact", run.path, "--out", out)
    assert done.stdout == f"{out}: a redacted copy of 107 events, without payloads and checkpoints\n"
    code, lines = verified(command, RunFolder.open(out), "--no-payloads")
    assert code == 0
    assert "redacted: payloads and checkpoints are not part of it" in lines[0]
    old, new = list(LogReader(run.events).records()), list(LogReader(out / "events").records())
    assert [one._replace(event=None) for one in old] == [one._replace(event=None) for one in new]
    text = "".join(one.event.model_dump_json() for one in new)
    for private in ("/models/tiny", "box", "division by zero", "do not fit", "no batch came"):
        assert private in "".join(one.event.model_dump_json() for one in old)
        assert private not in text
    assert list((out / "payloads").iterdir()) == []
    refs = [[r.event.payload for r in log if isinstance(r.event, TrajectoryCompleted)] for log in (old, new)]
    assert refs[0] == refs[1]
    assert "redacted" in command("status", out).stdout
    assert json.loads(command("status", out, "--json").stdout)["redacted"]
    assert command("stalls", out).exit_code == 0
    assert len(command("events", out).stdout.splitlines()) == 107
    resumed = command("run", "--resume", out)
    assert (resumed.exit_code, resumed.stderr) == (
        2,
        f"{out}: is a redacted copy: nothing can go on from it\n",
    )
    assert command("fork", out, "--at", "step:1").stderr == resumed.stderr
    assert command("log", "redact", out, "--out", tmp_path / "twice").exit_code == 2


def test_messages_keep_their_type_and_equal_ones_stay_equal() -> None:
    """An exception's type is no secret, and tells most; the rest is a digest."""
    redactor = Redactor()

    def failed(message: str) -> str:
        event = TrajectoryFailed(
            trajectory="1/0", group=1, attempt=0, failure="env_error", retryable=True, blame="environment",
            message=message,
        )  # fmt: skip
        return redactor.event(event).message  # type: ignore[attr-defined]

    assert failed("ValueError: secret").startswith("ValueError: sha256:")
    assert failed("ValueError: secret") == failed("ValueError: secret") != failed("ValueError: other")
    assert failed("secret: of Error:").startswith("sha256:")
    redactor.event(EngineLost(engine="e0", message="killed at /secret"))
    stall = StallDetected(
        stall=0,
        stall_kind="overdue",
        chain=("trainer", "e0 was lost: killed at /secret"),
        sentence="trainer <- e0 was lost: killed at /secret",
    )
    assert "/secret" not in redactor.event(stall).model_dump_json()


def test_settings_that_may_be_private_are_digests() -> None:
    """Paths and free options go, and what the scheduler does is all there; a digest still is a valid configuration."""
    config = {
        "run": {"name": "x", "steps": 3},
        "model": {"path": "/secret/model"},
        "data": {"kind": "jsonl", "path": "/secret/data", "size": 100, "options": {}},
        "environment": {"kind": "verifier", "options": {"token": "s3cret"}},
        "scheduler": {"groups_per_step": 2},
    }
    event = RunStarted(run="x", config=config, code_version="", seed=0, host="h", pid=1, prompts=1, base="/secret")
    redacted = Redactor().event(event)
    assert isinstance(redacted, RunStarted)
    text = redacted.model_dump_json()
    assert "/secret" not in text
    assert "s3cret" not in text
    assert redacted.config["scheduler"] == config["scheduler"]
    assert event.config["environment"]["options"] == {"token": "s3cret"}


def test_machines_of_a_cluster_and_what_their_workers_log_are_digests() -> None:
    """Names of nodes are digests wherever they stand, and the same one everywhere; a worker's own words go."""
    origin = Origin(worker="engine-0", node="10.0.0.7", at_ns=1, offset_ns=0, error_ns=1)
    logged = Redactor().event(WorkerLogged(level="error", line="no /secret/file", origin=origin))
    up = Redactor().event(LearnerUp(version=0, parameters=1, device="cpu", ranks=2, nodes=("10.0.0.7", "10.0.0.8")))
    assert isinstance(logged, WorkerLogged)
    assert isinstance(up, LearnerUp)
    assert "secret" not in logged.line
    assert logged.origin.worker == "engine-0"
    assert up.nodes[0] == logged.origin.node
    assert "10.0.0" not in up.model_dump_json() + logged.model_dump_json()


def test_every_text_field_of_every_event_is_decided_about() -> None:
    """A new field that can hold text must be listed as hidden, kept or treated: this fails until it is."""

    def holds_text(annotation: Any) -> bool:
        if annotation is str or annotation is Any:
            return True
        return any(holds_text(one) for one in parts(annotation))

    def parts(annotation: Any) -> tuple[Any, ...]:
        if get_origin(annotation) in (Union, types.UnionType, tuple, dict):
            inner = get_args(annotation)
            return inner[1:] if get_origin(annotation) is dict else inner
        return ()

    def fields(model: type[BaseModel]) -> Iterator[str]:
        for name, field in model.model_fields.items():
            if holds_text(field.annotation):
                yield name
            for one in (field.annotation, *parts(field.annotation)):
                if isinstance(one, type) and issubclass(one, BaseModel):
                    yield from fields(one)

    text = {name for event in EVENT_CLASSES for name in fields(event)}
    assert {"node", "line", "trajectory"} < text
    assert text <= HIDDEN_FIELDS | KEPT_FIELDS | TREATED_FIELDS


def test_machines_and_what_their_workers_log_are_redacted() -> None:
    """Of an origin and of nodes a digest stays, the same for the same machine; of a line the exception's type."""
    origin = Origin(worker="engine-0", node="gpu7.corp", at_ns=1, offset_ns=0, error_ns=0)
    redactor = Redactor()
    logged = redactor.event(WorkerLogged(level="error", line="OSError: /secret: disk", origin=origin))
    up = redactor.event(LearnerUp(version=0, parameters=1, device="cuda", nodes=("gpu7.corp", "gpu8.corp")))
    assert isinstance(logged, WorkerLogged)
    assert isinstance(up, LearnerUp)
    assert logged.line.startswith("OSError: sha256:")
    assert (logged.origin.worker, logged.origin.node) == ("engine-0", up.nodes[0])
    assert len(set(up.nodes)) == 2
    for event in (logged, up):
        text = event.model_dump_json()
        assert "corp" not in text
        assert "secret" not in text
        assert type(event).model_validate_json(text) == event


def test_addresses_in_the_settings_of_processes_are_redacted_and_still_settings() -> None:
    """Servers, their certificates, a cluster and free options become digests, and the configuration is still valid."""
    engine = EngineSection(
        kind="vllm_server",
        urls=("http://10.0.0.7:8000",),
        python="/secret/python",
        tls_ca="/secret/ca.pem",
        options={"served_model_name": "secret"},
    )
    cluster = ClusterSection(kind="ray", address="10.0.0.1:6379")
    config = {"engine": engine.model_dump(mode="json"), "cluster": cluster.model_dump(mode="json")}
    hidden = redacted_config(config)
    EngineSection.model_validate(hidden["engine"], strict=True)
    ClusterSection.model_validate(hidden["cluster"], strict=True)
    for word in ("10.0.0", "secret"):
        assert word not in str(hidden)


def test_a_damaged_log_is_redacted_up_to_the_damage(run: RunFolder, tmp_path: Path, command) -> None:
    """What is before it can still be sent, and the line says where it ends."""
    flip(run.events / segment_name(3), 120)
    done = command("log", "redact", run.path, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "the last good event is seq 39; " in done.stderr
    assert len(list(LogReader(tmp_path / "out" / "events").records())) == 40
    shutil.rmtree(tmp_path / "out")


def test_addresses_in_the_settings_of_telemetry_are_redacted_and_still_settings():
    """Receivers, pages of nodes and the host of a device become digests, and the configuration is still valid."""
    from eventrain.core.config_sections import TelemetrySection
    from eventrain.events.types import DeviceSampled

    section = TelemetrySection(
        otlp_endpoint="http://jaeger.example:4318",
        prometheus_host="10.1.2.3",
        ray_metrics=("http://10.0.0.7:8080",),
        tracker_project="secret",
    )
    hidden = redacted_config({"telemetry": section.model_dump(mode="json")})["telemetry"]
    TelemetrySection.model_validate(hidden, strict=True)
    for word in ("jaeger", "10.1.2.3", "10.0.0.7", "secret"):
        assert word not in str(hidden)
    sample = DeviceSampled(
        device="10.0.0.7/gpu0", pool="shared", utilization=1.0, memory_bytes=1, window_s=1.0
    )
    assert Redactor().event(sample).device.endswith("/gpu0")
    assert "10.0.0.7" not in Redactor().event(sample).device
