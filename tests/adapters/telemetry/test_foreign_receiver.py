"""What is sent, as somebody else's receiver reads it: Rotel, an OpenTelemetry collector written in Rust."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from metric_runs import SetClock
from told_runs import phased_run

from eventrain.adapters.cli.main import commands
from eventrain.adapters.telemetry.metrics.live import LiveMetrics
from eventrain.core.config import TelemetrySection
from eventrain.events.reader import LogReader
from eventrain.events.types import BatchTaken

pytestmark = pytest.mark.slow
INCIDENT = Path(__file__).resolve().parents[3] / "examples" / "incidents" / "stall"


class Rotel:
    """The collector as a process, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.url = url
        self.said: list[str] = []
        self._more = threading.Condition()
        self._process = process
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self.said.append(line.rstrip("\n"))
                self._more.notify_all()

    def wait_for(self, words: str) -> None:
        """Wait until it has said `words`."""
        with self._more:
            assert self._more.wait_for(lambda: any(words in line for line in self.said), 30), self.said[-5:]

    def end(self) -> None:
        """End it, and take what it still has to say."""
        self._process.terminate()
        self._process.wait(30)
        self._reading.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def rotel() -> Iterator[Rotel]:
    """Run the collector for a block; it prints every span and metric in full."""
    found = importlib.util.find_spec("rotel")
    assert found is not None
    assert found.origin is not None
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        http, grpc = (f"127.0.0.1:{server.getsockname()[1]}" for server in (one, other))
    process = subprocess.Popen(
        [
            Path(found.origin).parent / "rotel-agent", "start", "--exporter", "blackhole",
            "--debug-log", "traces", "--debug-log", "metrics", "--debug-log-verbosity", "detailed",
            "--otlp-http-endpoint", http, "--otlp-grpc-endpoint", grpc,
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    collector = Rotel(process, f"http://{http}")
    try:
        collector.wait_for("Starting Rotel")
        yield collector
    finally:
        collector.end()


def values(lines: list[str], key: str) -> list[str]:
    """Return what stands behind `key` in the lines of spans."""
    pattern = re.compile(rf"^\s+{key}\s*: (.*)$")
    return [found[1] for line in lines if (found := pattern.match(line))]


def test_every_span_of_a_log_arrives_with_its_parents_links_and_times() -> None:
    """As many spans as were sent, ids unique, parents and links among them, the hanging call marked as an error."""
    with rotel() as collector:
        told = CliRunner().invoke(commands, ["export", "traces", str(INCIDENT), "--otlp", collector.url])
        assert told.exit_code == 0, told.output
    sent = int(told.output.split(": ")[1].split(" spans")[0])
    names = Counter(values(collector.said, "Name"))
    blocks = [line.strip().removeprefix("ID             : ") for line in collector.said if line.startswith("    ID ")]
    parents = {parent for parent in values(collector.said, "Parent ID") if parent}
    assert sum(names.values()) == sent == len(set(blocks))
    assert parents <= set(blocks)
    batches = [
        record.event
        for record in LogReader(INCIDENT / "events").records()
        if isinstance(record.event, BatchTaken)
    ]
    assert names["rl.step"] == len(batches) + 1  # a copy of the one that was open when the stall was seen
    links = [line for line in collector.said if line.startswith("SpanLink #")]
    assert len(links) >= 4 * sum(len(batch.groups) for batch in batches)
    assert any("STATUS_CODE_ERROR" in line for line in collector.said)
    assert "     -> rl.trajectory.id: Str(21/1)" in collector.said


def test_every_metric_of_a_push_arrives() -> None:
    """The push at the end has the phases, which sum to 1, and the histograms with their bounds."""
    told = phased_run(2, finish=False)
    clock = SetClock(told.now_s)
    with rotel() as collector:
        live = LiveMetrics(TelemetrySection(otlp_endpoint=collector.url, otlp_interval_s=3600), clock)
        live.start()
        live.apply_batch(told.records)
        live.close(10.0)
        assert live.take_reports() == []
    text = "\n".join(collector.said)
    for name in ("rl.trainer.phase", "rl.gpu.busy", "rl.staleness", "rl.buffer.groups"):
        assert name in text, name
    assert "rl.run.id: Str(told-20260101-120000)" in text
