"""What traces cost: a long log folded into spans, encoded, and sent by the process that follows it.

The log is that of a simulated run. Events per second are of CPU time: of the fold alone, with the protobuf, and of the
whole following process (reading, validating, folding, encoding, compressing, HTTP to a receiver that answers at once).
Beside it the spans that the OpenTelemetry SDK starts, ends and encodes in a second::

    python benchmarks/bench_traces.py [--events N]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from _simulated_log import write_log
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from eventrain.adapters.telemetry.traces.builder import TraceBuilder
from eventrain.adapters.telemetry.traces.otlp import encoded
from eventrain.adapters.telemetry.traces.sampling import Sampling
from eventrain.adapters.telemetry.traces.spans import Span
from eventrain.events import LogReader
from eventrain.events.record import Record

BATCH = 512


class Taking(BaseHTTPRequestHandler):
    """A receiver that takes everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer at once."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Keeping(SpanExporter):
    """Keeps the SDK's spans, to encode them in batches."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: object) -> SpanExportResult:
        """Keep `spans`."""
        self.spans += spans  # type: ignore[operator]
        return SpanExportResult.SUCCESS


def folded(records: list[Record], share: float) -> tuple[list[Span], float, int]:
    """Return the spans of a log, the CPU seconds, and how many were held at most."""
    builder, spans, most = TraceBuilder(Sampling(share, 2)), [], 0
    began = time.process_time()
    for record in records:
        spans += builder.apply(record)
    took_s = time.process_time() - began
    again = TraceBuilder(Sampling(share, 2))
    for record in records:
        again.apply(record)
        most = max(most, again.held)
    return spans, took_s, most


def encode_s(spans: list[Span]) -> float:
    """Return the CPU seconds to encode `spans`, in batches."""
    began = time.process_time()
    for first in range(0, len(spans), BATCH):
        encoded(spans[first : first + BATCH])
    return time.process_time() - began


def sdk_us() -> float:
    """Return microseconds of CPU per span that the SDK makes and encodes, with 12 attributes."""
    keeping, count = Keeping(), 5_000
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(keeping))
    tracer = provider.get_tracer("bench")
    attributes = {f"rl.some.attribute_{number}": number for number in range(12)}
    began = time.process_time()
    for number in range(count):
        tracer.start_span("chat tiny", attributes=attributes, start_time=number).end(number + 1)
    for first in range(0, count, BATCH):
        encode_spans(keeping.spans[first : first + BATCH]).SerializeToString()
    took = (time.process_time() - began) / count * 1e6
    provider.shutdown()
    return took


def following_s(run: Path) -> float:
    """Return the CPU seconds of a process that follows the log of `run` to its end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "eventrain.adapters.telemetry.traces", str(run), "--otlp", url]
    done = subprocess.run(command, input=b"", check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    server.shutdown()
    server.server_close()
    if done.stdout:
        print(done.stdout.decode().strip())
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=200_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_log(run, asked.events)
        records = list(LogReader(run / "events").records())
        count = len(records)
        print(f"{count:,} events\n")
        print("share   spans    fold, events/s   fold and protobuf, events/s   us/span   held at most")
        for share in (1.0, 0.1, 0.0):
            spans, fold_s, most = folded(records, share)
            wire_s = encode_s(spans)
            per_span = wire_s / max(1, len(spans)) * 1e6
            print(
                f"{share:5.1f} {len(spans):7,}   {count / fold_s:14,.0f}   {count / (fold_s + wire_s):27,.0f}"
                f"   {per_span:7.1f}   {most:12,}"
            )
        print(f"\nthe following process, all of it: {count / following_s(run):,.0f} events/s of CPU")
        print(f"the OpenTelemetry SDK, a span made and encoded: {sdk_us():.1f} us")


if __name__ == "__main__":
    main()
