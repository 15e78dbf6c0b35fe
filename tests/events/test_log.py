"""The log writer: order, durability, rotation, and disks that refuse."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from eventrain.events import Bus, LogReader, LogWriteError, LogWriter, PayloadStore, Record
from eventrain.events import log as log_module
from eventrain.events.types import LogTailCut, PromptDrawn


class _CountingClock:
    def __init__(self) -> None:
        self.now = 0

    def utc_ns(self) -> int:
        self.now += 1
        return self.now

    def mono_ns(self) -> int:
        return self.now


def _writer(folder: Path, **settings: object) -> LogWriter:
    return LogWriter(
        folder, **{"run": "test", "epoch": 1, "first_seq": 0, "segment_bytes": 2**20} | settings
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(200, 3000))
def test_seq_order_is_delivery_order_is_file_order(bursts: list[int], segment_bytes: int) -> None:
    """What subscribers got, in their order, is what the file holds, in its order."""

    async def run(folder: Path) -> list[Record]:
        writer = _writer(folder, segment_bytes=segment_bytes)
        bus = Bus(_CountingClock(), writer)
        delivered: list[Record] = []

        async def read() -> None:
            async for batch in bus.subscribe("reader"):
                delivered.extend(batch)

        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(read())
            await asyncio.sleep(0)
            for burst in bursts:
                for _ in range(burst):
                    record = bus.publish("test", PromptDrawn(prompt=bus.next_seq, epoch=0, index=0))
                    if record.seq % 17 == 0:
                        await bus.durable(record.seq)
                await asyncio.sleep(0)
            if bus.next_seq:
                await bus.durable(bus.next_seq - 1)
            bus.close()
        assert bus.unsaved == 0
        writer.close()
        return delivered

    with tempfile.TemporaryDirectory() as name:
        delivered = asyncio.run(run(Path(name)))
        assert [record.seq for record in delivered] == list(range(sum(bursts)))
        assert list(LogReader(Path(name)).records()) == delivered


def test_the_file_is_ordinary_zst_over_json_lines(tmp_path: Path, write_log: Callable) -> None:
    """Any zstd tool reads a segment: a header line, records, and a line that says it is whole."""
    write_log(tmp_path, 2, 1)
    with (tmp_path / "000001.jsonl.zst").open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["kind"] for line in lines] == [
        "segment",
        "reward_scored",
        "prompt_drawn",
        "prompt_drawn",
        "segment_sealed",
    ]
    assert (lines[0]["run"], lines[0]["epoch"], lines[0]["first_seq"]) == ("test", 1, 0)
    assert [line.get("seq") for line in lines[1:4]] == [0, 1, 2]


def test_a_full_segment_is_followed_by_the_next(tmp_path: Path, write_log: Callable) -> None:
    """Segments end at their size, each headed by its first seq, and read as one log."""
    records = write_log(tmp_path, *[5] * 20, segment_bytes=500)
    assert len(list(tmp_path.iterdir())) > 3
    assert list(LogReader(tmp_path).records()) == records


def test_nothing_is_acknowledged_before_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_records: Callable
) -> None:
    """Payloads first, then the frame, then its fdatasync, and only then the acknowledgement."""
    order: list[str] = []
    sync = os.fdatasync

    def watched(descriptor: int) -> None:
        order.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().suffix)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", watched)
    (tmp_path / "events").mkdir()
    store = PayloadStore(tmp_path)
    store.put(b"tokens")
    writer = _writer(tmp_path / "events", before_commit=[store.sync])
    acknowledged = threading.Event()

    def on_durable(seq: int) -> None:
        order.append(f"durable {seq}")
        acknowledged.set()

    for record in make_records(3):
        writer.append(record)
    writer.start(on_durable, lambda error: None)
    assert acknowledged.wait(20)
    writer.close()
    store.close()
    # header and frame of the log, then the seal
    assert order == ["sync .pack", "sync .zst", "sync .zst", "durable 2", "sync .zst"]


def test_what_follows_closely_shares_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_records: Callable
) -> None:
    """The thread waits for more before it commits, so that one sync serves it all, unless somebody waits."""
    monkeypatch.setattr(log_module, "GATHER_S", 60.0)
    records, acknowledged, ended = make_records(9), [], threading.Event()
    writer = _writer(tmp_path)
    writer.start(lambda seq: (acknowledged.append(seq), ended.set()), lambda error: None)
    for record in records:
        writer.append(record)
    assert not acknowledged
    writer.hurry()
    assert ended.wait(20)
    writer.close()
    assert acknowledged == [8]


def test_an_event_in_the_log_never_names_a_payload_that_is_not_durable(
    tmp_path: Path, make_records: Callable
) -> None:
    """If payloads cannot be made durable, no event of that group reaches the file."""

    def fail() -> None:
        raise OSError(5, "Input/output error")

    errors: list[LogWriteError] = []
    writer = _writer(tmp_path, before_commit=[fail])
    for record in make_records(3):
        writer.append(record)
    writer.start(lambda seq: pytest.fail("acknowledged"), errors.append)
    with pytest.raises(LogWriteError, match="could not be written: Input/output error"):
        writer.close()
    assert len(errors) == 1
    assert list(LogReader(tmp_path).records()) == []


def test_close_without_start_writes_what_was_appended(tmp_path: Path, make_records: Callable) -> None:
    """A run that ends before its loop ran loses nothing either; and closing twice is the same as once."""
    writer = _writer(tmp_path)
    records = make_records(10)
    for record in records:
        writer.append(record)
    writer.close()
    writer.close()
    assert list(LogReader(tmp_path).records()) == records
    with pytest.raises(RuntimeError, match="the log writer is closed"):
        writer.append(make_records(1, 10)[0])


def test_a_writer_that_wrote_nothing_leaves_nothing(tmp_path: Path) -> None:
    """No empty segment is made."""
    _writer(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_hole_in_the_order_is_refused_at_append(tmp_path: Path, make_records: Callable) -> None:
    """Seqs are dense: a record out of order is a defect, found before it is written."""
    writer = _writer(tmp_path, first_seq=4)
    with pytest.raises(ValueError, match="the log goes on with seq 4, not 5"):
        writer.append(make_records(1, 5)[0])
    writer.close()


def test_a_writer_that_was_taken_over_writes_no_more(
    tmp_path: Path, write_log: Callable, make_records: Callable
) -> None:
    """A process that wakes up after another took over its run fails instead of writing beside it."""
    write_log(tmp_path, 3, epoch=2)
    writer = _writer(tmp_path, epoch=1, first_seq=3)
    writer.append(make_records(1, 3)[0])
    with pytest.raises(LogWriteError, match="another process took over the run"):
        writer.close()
    assert len(list(LogReader(tmp_path).records())) == 3


def test_two_writers_never_share_a_segment(
    tmp_path: Path, make_records: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that begin the same segment at the same time: the second one fails."""
    monkeypatch.setattr(log_module, "segment_numbers", lambda folder: [])  # as both see it
    first, second = _writer(tmp_path), _writer(tmp_path)
    for writer in (first, second):
        writer.append(make_records(1)[0])
    first.close()
    with pytest.raises(LogWriteError, match="File exists"):
        second.close()


def test_an_event_beyond_what_json_libraries_take_is_still_written(tmp_path: Path) -> None:
    """An integer of more than 64 bits goes the slow way instead of ending the run."""
    record = Record(0, 1, 2, "run", None, "", LogTailCut(after_seq=2**70, cut_bytes=0))
    writer = _writer(tmp_path)
    writer.append(record)
    writer.close()
    assert list(LogReader(tmp_path).records()) == [record]


def _run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_full_disk_ends_with_one_clear_error_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """When the file may grow no further, waits for the disk and guard raise, and what was durable is readable."""
    done = _run_script(
        """
        import asyncio, random, resource, sys, time
        from pathlib import Path
        from eventrain.events import Bus, LogWriter, LogWriteError
        from eventrain.events.types import PolicyChanged

        class Clock:
            utc_ns = staticmethod(time.time_ns)
            mono_ns = staticmethod(time.monotonic_ns)

        async def run(folder):
            writer = LogWriter(folder, run="full", epoch=1, first_seq=0, segment_bytes=2**30)
            bus = Bus(Clock(), writer)
            bytes_ = random.Random(0).randbytes
            try:
                async with asyncio.timeout(50):
                    while True:
                        record = bus.publish("run", PolicyChanged(key="k", old="", new=bytes_(200).hex()))
                        if record.seq % 7 == 0:
                            await bus.durable(record.seq)
            except LogWriteError as error:
                print(bus.durable_seq)
                print(error)
            try:
                await bus.guard()
            except LogWriteError:
                print("guard raised")
            bus.close()
            try:
                writer.close()
            except LogWriteError:
                print("close raised")

        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        asyncio.run(run(Path(sys.argv[1])))
        """,
        str(tmp_path),
    )
    assert done.stderr == ""
    durable, error, *rest = done.stdout.splitlines()
    assert rest == ["guard raised", "close raised"]
    assert error == f"the event log in {tmp_path} could not be written: File too large"
    reader = LogReader(tmp_path)
    assert [record.seq for record in reader.records()] == list(range(int(durable) + 1))
    assert int(durable) > 50
    assert reader.torn_tail is None  # what the failed write left was cut back


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, make_records: Callable) -> None:
    """A vanished or unwritable folder ends with a LogWriteError that says where and why."""
    writer = _writer(tmp_path / "gone")
    writer.append(make_records(1)[0])
    with pytest.raises(LogWriteError, match="gone could not be written: No such file or directory"):
        writer.close()


def test_a_killed_writer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After a kill at any moment, every event whose durability was announced is there, and nothing out of order."""
    done = _run_script(
        """
        import os, signal, sys, threading, time
        from pathlib import Path
        from eventrain.events import LogWriter, Record
        from eventrain.events.types import PromptDrawn

        def announce(seq):
            os.write(1, b"%d\\n" % seq)
            if seq > 3000:
                os.kill(os.getpid(), signal.SIGKILL)

        writer = LogWriter(Path(sys.argv[1]), run="killed", epoch=1, first_seq=0, segment_bytes=20_000)
        writer.start(announce, lambda error: None)
        for seq in range(10**6):
            writer.append(Record(seq, seq, seq, "run", None, "", PromptDrawn(prompt=seq, epoch=0, index=0)))
        """,
        str(tmp_path),
    )
    assert done.returncode == -9
    acknowledged = int(done.stdout.splitlines()[-1])
    seqs = [record.seq for record in LogReader(tmp_path).records()]
    assert seqs == list(range(len(seqs)))
    assert len(seqs) > acknowledged
