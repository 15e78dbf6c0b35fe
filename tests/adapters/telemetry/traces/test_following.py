"""Following a live log: the same spans as a later export, in a thread and in the process that a run starts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import Receiver, receiving
from trace_logs import Told, chaos, spans_of, write, writer_of

from eventrain.adapters.telemetry.traces.builder import TraceBuilder
from eventrain.adapters.telemetry.traces.delivery import Delivery
from eventrain.adapters.telemetry.traces.following import Following
from eventrain.adapters.telemetry.traces.process import Report, TraceFollower, parsed
from eventrain.adapters.telemetry.traces.sampling import Sampling
from eventrain.adapters.telemetry.traces.sender import SpanSender
from eventrain.core.config_sections import TelemetrySection
from eventrain.events.folder import RunFolder
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.types import RunFinished, TelemetryDegraded, TelemetryDropped

HALF = Sampling(0.5, 1)


def told() -> Told:
    """Return a small run that ends."""
    log = Told()
    for step in range(3):
        waits = log.wait()
        log.group(step, 0.1, 0.2)
        log.waited(waits)
        log.step(step, step)
    log.finish()
    return log


def ids(receiver: Receiver) -> list[bytes]:
    """Return the ids of the spans that arrived."""
    return [bytes(span.span_id) for span in receiver.spans()]


def exported(records: list[Record], sampling: Sampling) -> list[bytes]:
    """Return the ids of the spans of an export."""
    return [span.span_id for span in spans_of(records, sampling)]


def follow(
    folder: RunFolder, receiver_url: str, sampling: Sampling, over: threading.Event, **options: Any
) -> tuple[Callable[[], None], list[dict[str, Any]]]:
    """Follow a log in a thread; return how to wait for its end, and what it says."""
    said: list[dict[str, Any]] = []
    sender = SpanSender(Delivery(receiver_url, retry_s=0.2, timeout_s=2))
    reader = LogReader(folder.events)
    following = Following(reader, TraceBuilder(sampling), sender, over, said.append, **options)
    thread = threading.Thread(target=following.run, args=(5.0,))
    thread.start()

    def ended() -> None:
        thread.join(30)
        assert not thread.is_alive()

    return ended, said


@pytest.mark.parametrize("seed", [1, 5, 8, 13])
def test_live_spans_are_those_of_a_later_export(tmp_path: Path, seed: int) -> None:
    """Followed while it grows, segment by segment, a log gives the very spans that it gives when it is finished."""
    records = chaos(seed).records
    folder = RunFolder.create(tmp_path / "run")
    with receiving() as receiver:
        over = threading.Event()
        ended, said = follow(folder, receiver.url, HALF, over)
        with closing(writer_of(folder)) as writer:
            for record in records:
                writer.append(record)
        over.set()
        ended()
    assert ids(receiver) == exported(records, HALF)
    assert said == []


def test_following_ends_with_the_run(tmp_path: Path) -> None:
    """The last event ends it, without anybody asking."""
    log = told()
    folder = write(tmp_path / "run", log.records)
    with receiving() as receiver:
        ended, _ = follow(folder, receiver.url, HALF, threading.Event())
        ended()
    assert isinstance(log.records[-1].event, RunFinished)
    assert ids(receiver) == exported(log.records, HALF)


def test_a_follower_of_a_later_life_sends_what_is_new(tmp_path: Path) -> None:
    """What ended before is known to the receiver, and not sent again."""
    log = told()
    since = len(log.records) // 2
    folder = write(tmp_path / "run", log.records)
    with receiving() as receiver:
        ended, _ = follow(folder, receiver.url, HALF, threading.Event(), since_seq=since)
        ended()
    earlier = TraceBuilder(HALF)
    before = [span.span_id for record in log.records[:since] for span in earlier.apply(record)]
    assert before
    assert before + ids(receiver) == exported(log.records, HALF)


def test_a_receiver_that_is_only_slow_loses_nothing(tmp_path: Path) -> None:
    """With room for a few spans only, the log is read as fast as they are taken."""
    log = told()
    folder = write(tmp_path / "run", log.records)
    with receiving() as receiver:
        sender = SpanSender(Delivery(receiver.url), queue_max=8, batch_max=2)
        said: list[dict[str, Any]] = []
        over = threading.Event()
        following = Following(LogReader(folder.events), TraceBuilder(HALF), sender, over, said.append, batch_max=4)
        following.run(20)
    assert said == []
    assert ids(receiver) == exported(log.records, HALF)


@pytest.mark.slow
def test_a_receiver_that_hangs_from_the_first_request_is_told_while_it_is_tried(tmp_path: Path) -> None:
    """Also where the queue is full and the reading waits for room."""
    folder = write(tmp_path / "run", told().records)
    said: list[dict[str, Any]] = []
    over, heard = threading.Event(), threading.Event()

    def say(line: dict[str, Any]) -> None:
        said.append(line)
        heard.set()

    with receiving() as receiver:
        receiver.silent.set()
        sender = SpanSender(Delivery(receiver.url, timeout_s=0.1, retry_s=60), queue_max=8, batch_max=2)
        following = Following(LogReader(folder.events), TraceBuilder(HALF), sender, over, say, batch_max=4)
        thread = threading.Thread(target=following.run, args=(0.1,))
        thread.start()
        was_told = heard.wait(20)
        still_trying = not sender.failing
        over.set()
        thread.join(30)
    assert was_told
    assert still_trying
    assert "no answer within" in said[0]["degraded"]


def test_a_damaged_log_ends_the_following_with_a_reason(tmp_path: Path) -> None:
    """It says why, once, and what still works."""
    folder = write(tmp_path / "run", told().records)
    segment = sorted(folder.events.iterdir())[0]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    with receiving() as receiver:
        ended, said = follow(folder, receiver.url, HALF, threading.Event())
        ended()
    assert [list(line) for line in said] == [["degraded", "works"]]


# The process


def section(url: str, **settings: Any) -> TelemetrySection:
    """Return the configuration of a run whose traces go to `url`."""
    return TelemetrySection(otlp_endpoint=url, trace_slowest=1, **settings)


async def collect(folder: RunFolder, settings: TelemetrySection, *, close_s: float | None) -> list[Report]:
    """Follow a log in a process to the end, or until it is closed, and return its reports."""
    follower = await TraceFollower.start(folder.path, settings, close_s=close_s or 10)
    found: list[Report] = []

    async def read() -> None:
        async for report in follower.reports():
            found.append(report)  # noqa: PERF401 - what was read counts also where the reading is cut off

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read())
        if close_s is None:
            await reading
        await follower.close(close_s or 10)
        await reading
    return found


def test_the_process_sends_what_an_export_sends_and_ends_with_the_run(tmp_path: Path) -> None:
    """As a run starts it: it reads the log, sends everything, and ends by itself."""
    log = told()
    folder = write(tmp_path / "run", log.records)
    with receiving() as receiver:
        reports = asyncio.run(collect(folder, section(receiver.url), close_s=None))
    assert reports == []
    assert ids(receiver) == exported(log.records, Sampling(1.0, 1))
    assert (folder.logs / "traces.log").read_text() == ""


def test_a_run_that_closes_early_gets_what_is_in_the_log(tmp_path: Path) -> None:
    """The log has no end, as when the run was killed: the rest is read, and cut there."""
    log = told().records[:-20]
    folder = write(tmp_path / "run", log)
    with receiving() as receiver:
        reports = asyncio.run(collect(folder, section(receiver.url), close_s=20))
    assert reports == []
    assert ids(receiver) == exported(log, Sampling(1.0, 1))


def test_drops_and_the_first_failure_become_events(tmp_path: Path) -> None:
    """With nobody at the endpoint a run hears how many spans were lost, why, and what still works."""
    log = told()
    folder = write(tmp_path / "run", log.records)
    settings = section("http://127.0.0.1:9", otlp_timeout_s=1)
    reports = asyncio.run(collect(folder, settings, close_s=3))
    drops = [report for report in reports if isinstance(report, TelemetryDropped)]
    (degraded,) = [report for report in reports if isinstance(report, TelemetryDegraded)]
    assert sum(drop.count for drop in drops) == len(exported(log.records, Sampling(1.0, 1)))
    assert {drop.reason for drop in drops} == {"unreachable"}
    assert "connection refused" in degraded.missing
    assert "export traces" in degraded.works


def test_a_receiver_that_hangs_does_not_hold_a_run_up(tmp_path: Path) -> None:
    """Closing ends within its deadline, and what was not sent is counted."""
    folder = write(tmp_path / "run", told().records)
    with receiving() as receiver:
        receiver.silent.set()
        loop_time: list[float] = []

        async def timed() -> list[Report]:
            began = asyncio.get_running_loop().time()
            reports = await collect(folder, section(receiver.url, otlp_timeout_s=60), close_s=4)
            loop_time.append(asyncio.get_running_loop().time() - began)
            return reports

        reports = asyncio.run(timed())
    assert loop_time[0] < 15
    assert {report.reason for report in reports if isinstance(report, TelemetryDropped)} <= {"timed_out"}


def test_a_process_that_cannot_work_says_so(tmp_path: Path) -> None:
    """A defect of the child is one report with its last words, and no more."""
    folder = write(tmp_path / "run", told().records)

    async def main() -> list[Report]:
        follower = await TraceFollower.start(folder.path, section("http://127.0.0.1:9"), close_s=1)
        os.kill(follower.pid, 11)
        found = [report async for report in follower.reports()]
        await follower.close(5)
        return found

    (report,) = asyncio.run(main())
    assert isinstance(report, TelemetryDegraded)
    assert "SIGSEGV" in report.missing


def test_the_process_outlives_no_parent(tmp_path: Path) -> None:
    """When its standard input closes, as when the run was killed, it sends the rest and ends."""
    log = told().records[:-20]
    folder = write(tmp_path / "run", log)
    with receiving() as receiver:
        command = [sys.executable, "-m", "eventrain.adapters.telemetry.traces"]
        done = subprocess.run(
            [*command, folder.path, "--otlp", receiver.url, "--slowest", "1"],
            input=b"", capture_output=True, timeout=60, check=True,
        )  # fmt: skip
    assert done.stdout == b""
    assert ids(receiver) == exported(log, Sampling(1.0, 1))


def test_the_parent_imports_nothing_heavy() -> None:
    """The module that a run loads brings neither protobuf nor HTTP."""
    script = (
        "import sys, eventrain.adapters.telemetry.traces.process\n"
        "print([top for top in ('google.protobuf', 'opentelemetry', 'http.client') if top in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_lines_of_another_language_are_ignored() -> None:
    """What is no report is nothing, whatever it is."""
    for line in (b"hello\n", b"[1]\n", b'{"signal": "traces"}\n', b"3\n", b'{"reason": "x", "count": 1}'):
        assert parsed(line) is None
    dropped = json.dumps({"signal": "traces", "reason": "refused", "count": 3}).encode()
    assert parsed(dropped) == TelemetryDropped(signal="traces", reason="refused", count=3)
