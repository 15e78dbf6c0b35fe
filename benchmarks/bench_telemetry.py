"""What telemetry costs, and whether it tells the truth. Every table has the limit or the other way beside it.

    python benchmarks/bench_telemetry.py [--quick] [--only use|cost|holds|spans|scrape|sinks]

use      utilisation by phase on a real Prometheus (which has to be installed): our counters and a sampled gauge
cost     CPU time of one event of the shipped run, with telemetry on and off, on real files and the real loop
holds    how long the folds hold up the event loop at once, where there is most for them to do
spans    spans built and encoded by the process that follows the log
scrape   the metrics page of a run with 4,096 trajectories in flight
sinks    step times while the receiver of metrics and traces works, hangs, answers 500, or is gone
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import logging
import os
import platform
import random
import socket
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import structlog
from _simulated_log import write_log
from bench_cost import InstantEngine, InstantEnvironment, InstantLearner, InstantRenderer

from eventrain.adapters.clock import SystemClock
from eventrain.adapters.garbage import settle
from eventrain.adapters.simulated.world import NumberedPrompts, SimulatedArtifacts
from eventrain.adapters.telemetry.live import Telemetry
from eventrain.adapters.telemetry.metrics.live import LiveMetrics
from eventrain.adapters.telemetry.metrics.meter import Meter
from eventrain.adapters.telemetry.metrics.part import INTERVALS_MAX, Track
from eventrain.adapters.telemetry.traces.builder import TraceBuilder
from eventrain.adapters.telemetry.traces.otlp import encoded
from eventrain.adapters.telemetry.traces.sampling import Sampling
from eventrain.adapters.telemetry.trackers.window import Rollout, Window
from eventrain.core.config import RunConfig, TelemetrySection
from eventrain.core.ports import Ports, TrainBatch, TrainResult
from eventrain.core.run import Run
from eventrain.events import Bus, LogReader, LogWriter, PayloadStore, RunFolder
from eventrain.events.record import Record
from eventrain.events.types import (
    TRAJECTORY_PARTS,
    LlmCallStarted,
    StepCompleted,
    TelemetryDropped,
    TrajectoryStarted,
)

RATE = 2_000
"""Events per second at which the cost is stated."""
OFF: dict[str, Any] = {"devices": "off"}
ON: dict[str, Any] = {"prometheus_port": 0, "devices": "auto"}
PER_STEP, SIZE = 64, 2


# A run with instant ports and real files


class Noting(InstantLearner):
    """A learner that notes the CPU time at every step, and takes `seconds` for it."""

    seconds = 0.0

    async def train(self, batch: TrainBatch) -> TrainResult:
        """Take time."""
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return await super().train(batch)


def conduct(folder: Path, steps: int, telemetry: dict[str, Any] | None, step_s: float = 0.0) -> Noting:
    """Run `steps` steps in a new folder; without `telemetry` nothing at all is beside the run."""
    made = RunFolder.create(folder)
    config = RunConfig.model_validate(
        {
            "run": {"steps": steps},
            "model": {"path": "none"},
            "data": {"kind": "generated", "size": (steps + 8) * PER_STEP},
            "environment": {"kind": "none"},
            "scheduler": {"groups_per_step": PER_STEP, "max_staleness": 2},
            "rollout": {"group_size": SIZE, "max_tokens": 64},
            "checkpoint": {"at_end": False},
            "telemetry": telemetry or OFF,
        }
    )
    learner = Noting()
    learner.seconds = step_s
    ports = Ports(
        clock=SystemClock(),
        engines=[InstantEngine(16)],
        learner=learner,
        environments=InstantEnvironment,
        prompts=NumberedPrompts(config.data.size or 1),
        renderer=InstantRenderer(),
        artifacts=SimulatedArtifacts(),
    )

    async def whole(bus: Bus, payloads: PayloadStore) -> None:
        run = Run(config, ports, bus, payloads)
        async with asyncio.TaskGroup() as beside:
            if telemetry is not None:
                beside.create_task(Telemetry(run, made).tell())
            outcome = await run.conduct(asyncio.Event())
            bus.close()
        assert outcome.outcome == "completed", outcome.message

    with made.lock(), closing(PayloadStore(made.payloads)) as payloads:
        writer = LogWriter(
            made.events, run="run", epoch=made.epoch, first_seq=0, segment_bytes=2**26,
            before_commit=(payloads.sync,),
        )  # fmt: skip
        with closing(writer):
            asyncio.run(whole(Bus(SystemClock(), writer), payloads))
    return learner


# use


def use(quick: bool) -> None:
    """Print utilisation by phase."""
    from _utilisation import SCRAPE_S, compare

    truth, ours, sampled = compare(60 if quick else 250)
    print(f"utilisation of the learner by phase, in percent; Prometheus scrapes every {SCRAPE_S:g} s of the run")
    print(f"{'phase':22}{'truth':>8}{'counters':>10}{'error':>8}{'sampled':>10}{'error':>8}   limit: error <= 0.5")
    for phase, true in truth.items():
        own, other = ours[phase], sampled.get(phase)
        seen = f"{100 * other:>10.1f}{100 * (other - true):>+8.1f}" if other is not None else f"{'never seen':>18}"
        print(f"{phase:22}{100 * true:>8.1f}{100 * own:>10.2f}{100 * (own - true):>+8.2f}{seen}")
    print("sampled: a gauge of the phase and one of the GPU, as of Ray's reports every 10 s (GPU asked every 5 s)\n")


# cost


def cost(quick: bool) -> None:
    """Print what one event costs with telemetry and without."""
    steps, rounds = (40, 2) if quick else (120, 5)
    spent: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(rounds):
        for name, section in (("off", None), ("on", ON)):  # taken in turns: the machine is not ours alone
            gc.collect()
            with tempfile.TemporaryDirectory() as base:
                learner = conduct(Path(base) / "run", steps, section)
                records = LogReader(Path(base) / "run" / "events").records()
                events = sum(record.actor != "telemetry" for record in records)
            first, last = 4, steps - 4
            share = (last - first) / steps
            spent[name].append((learner.cpu_s[last] - learner.cpu_s[first]) / (events * share) * 1e6)
    off, on = median(spent["off"]), median(spent["on"])
    fold, kinds = fold_us(quick)
    print(f"CPU time of one event of the run, all threads: {off:.1f} us without telemetry, {on:.1f} us with it")
    print(f"  of it the fold of the metrics {fold:.2f} us (limit 2 us; a log of {kinds:,} events)")
    print(
        f"  at {RATE:,} events/s {RATE * (on - off) / 1e4:+.2f} % of a core"
        f" (limit 1 %), beside {RATE * off / 1e4:.1f} % for the run's own events\n"
    )


def fold_us(quick: bool) -> tuple[float, int]:
    """Return the CPU microseconds that the metrics take for an event, and the events of the log."""
    records = long_log(20_000 if quick else 100_000)
    best = float("inf")
    for _ in range(3):
        meter = Meter()
        began = time.process_time()
        for record in records:
            meter.apply(record)
        best = min(best, time.process_time() - began)
    return best / len(records) * 1e6, len(records)


def long_log(events: int) -> list[Record]:
    """Return the log of a simulated run of about `events` events."""
    with tempfile.TemporaryDirectory() as base:
        write_log(Path(base) / "run", events)
        return list(LogReader(Path(base) / "run" / "events").records())


# holds


def holds(quick: bool) -> None:
    """Print how long the largest single computations on the event loop take."""
    draw = random.Random(0)
    rollouts = [Rollout(draw.random(), tuple(draw.random() for _ in TRAJECTORY_PARTS)) for _ in range(8_192)]
    step = Window(0, 0, end_ns=10**9, rollouts=rollouts)
    track = Track("0")
    for place in range(INTERVALS_MAX):
        track.enter(str(place % 10), 1_000 * place)
    end_ns = 1_000 * INTERVALS_MAX

    print("what holds up the event loop, median of its times")
    for name, limit_ms, compute in (
        ("figures of a step of 8,192 trajectories", 10.0, lambda: step.figures(1)),
        ("samples of 8 devices over 8,192 changes", 1.0, lambda: [track.shares(0, end_ns + n) for n in range(8)]),
    ):
        took = []
        for _ in range(5 if quick else 50):
            began = time.perf_counter()
            compute()
            took.append(time.perf_counter() - began)
        print(f"  {name}: {1e3 * median(took):.2f} ms (limit {limit_ms:g} ms)")
    print()


# spans


def spans(quick: bool) -> None:
    """Print how fast spans are built."""
    records = long_log(20_000 if quick else 100_000)
    began, count, batch = time.process_time(), 0, []
    builder = TraceBuilder(Sampling(1.0, 2))
    for record in records:
        batch += builder.apply(record)
        if len(batch) >= 512:
            encoded(batch)
            count += len(batch)
            batch = []
    seconds = time.process_time() - began
    print(f"spans: {len(records) / seconds:,.0f} events a CPU second folded and encoded, {count / seconds:,.0f} spans")
    print("  (limit 50,000 events/s; bench_traces.py has the whole following process, and the SDK)\n")


# scrape


def scrape(quick: bool) -> None:
    """Print what the page of a large run takes."""
    print("the metrics page, median and 90 % of scrapes over loopback (limit 30 ms, 2,000 series)")
    for flying in (8, 4_096):
        live = LiveMetrics(TelemetrySection(prometheus_port=0), SystemClock())
        live.start()
        try:
            live.apply_batch(in_flight(flying))
            took, series = [], 0
            for _ in range(20 if quick else 100):
                began = time.perf_counter()
                with urllib.request.urlopen(f"http://127.0.0.1:{live.port}/metrics", timeout=10) as answer:
                    text = answer.read()
                took.append(time.perf_counter() - began)
                series = sum(not line.startswith(b"#") for line in text.splitlines())
        finally:
            live.close(2.0)
        took.sort()
        print(
            f"  {flying:>6,} trajectories in flight: {1e3 * median(took):.1f} ms, "
            f"{1e3 * took[int(len(took) * 0.9)]:.1f} ms, {series} series, {len(text):,} bytes"
        )
    print()


def in_flight(count: int) -> list[Record]:
    """Return a simulated log, and behind it the start of `count` trajectories, each with a call."""
    records = [record for record in long_log(5_000) if type(record.event).__name__ != "RunFinished"]
    last = records[-1]
    for number in range(count):
        name = f"90000/{number}"
        for event in (
            TrajectoryStarted(trajectory=name, group=90000),
            LlmCallStarted(trajectory=name, turn=0, engine="engine-0", prompt_tokens=9, max_tokens=9),
        ):
            records.append(last._replace(seq=records[-1].seq + 1, event=event))
    return records


# sinks


@contextmanager
def receiving(answer: Callable[[], int]) -> Iterator[str]:
    """Yield the URL of a receiver."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(answer())
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@contextmanager
def gone() -> Iterator[str]:
    """Yield the URL of a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


def sinks(quick: bool) -> None:
    """Print step times with receivers of all kinds."""
    steps, step_s = (40, 0.05) if quick else (120, 0.1)
    hanging = threading.Event()

    def hang() -> int:
        hanging.wait(60)
        return 200

    kinds = (
        ("works", lambda: receiving(lambda: 200)),
        ("hangs", lambda: receiving(hang)),
        ("answers 500", lambda: receiving(lambda: 500)),
        ("is gone", gone),
    )
    print(f"seconds of a step, median and 90 %, while the learner takes {step_s} s; nothing beside the run first")
    base = step_times(steps, step_s, None)
    print(f"  {'no receiver':14}{base[0]:>8.4f}{base[1]:>8.4f}")
    for name, made in kinds:
        with made() as url:
            section = {**ON, "otlp_endpoint": url, "otlp_interval_s": 1.0, "otlp_timeout_s": 1.0}
            middle, high, drops = step_times(steps, step_s, section)
            hanging.set() if name == "hangs" else None
        said = ", ".join(f"{signal} {count}" for signal, count in sorted(drops.items())) or "nothing"
        print(f"  {name:14}{middle:>8.4f}{high:>8.4f}   x {middle / base[0]:.3f}   in the log as dropped: {said}")
    print()


def step_times(
    steps: int, step_s: float, section: dict[str, Any] | None
) -> tuple[float, float, Counter[str]]:
    """Return the median and the 90 % of step times, and what the log says was dropped."""
    with tempfile.TemporaryDirectory() as base:
        conduct(Path(base) / "run", steps, section, step_s)
        ends, drops = [], Counter[str]()
        for record in LogReader(Path(base) / "run" / "events").records():
            if isinstance(record.event, StepCompleted):
                ends.append(record.mono)
            elif isinstance(record.event, TelemetryDropped):
                drops[f"{record.event.signal} ({record.event.reason})"] += record.event.count
    took = sorted((after - before) / 1e9 for before, after in itertools.pairwise(ends[2:]))
    return median(took), took[int(len(took) * 0.9)], drops


TABLES: Sequence[tuple[str, Callable[[bool], None]]] = (
    ("use", use),
    ("cost", cost),
    ("holds", holds),
    ("spans", spans),
    ("scrape", scrape),
    ("sinks", sinks),
)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description="What telemetry costs, and whether it tells the truth."
    )
    parser.add_argument("--quick", action="store_true", help="smaller runs")
    parser.add_argument("--only", choices=[name for name, _ in TABLES], help="one of the tables")
    arguments = parser.parse_args()
    settle()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}\n")
    for name, table in TABLES:
        if arguments.only in (None, name):
            table(arguments.quick)


if __name__ == "__main__":
    main()
