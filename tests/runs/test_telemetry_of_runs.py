"""Real runs with their telemetry on: what a scraper, a receiver and the trackers get, and what they cannot hurt."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from metric_runs import samples
from otlp_receiver import receiving

from eventrain.adapters.telemetry.metrics.meter import Meter
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.types import (
    DeviceSampled,
    LlmCallStarted,
    RunFinished,
    RunResumed,
    StepCompleted,
    TelemetryDegraded,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PROGRAM = [sys.executable, "-m", "eventrain.adapters.cli"]
STEPS = 8
SMALL = [f"run.steps={STEPS}", "rollout.group_size=4", "scheduler.groups_per_step=3", "checkpoint.every_steps=3"]


class Running:
    """A run as a process, whose log lines are read while it goes on."""

    def __init__(self, arguments: Sequence[str | Path], settings: Sequence[str]) -> None:
        chosen = [part for setting in settings for part in ("--set", setting)]
        command = [*PROGRAM, *map(str, arguments), *chosen]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[dict] = []
        self.told = threading.Condition()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.told:
                self.lines.append(json.loads(line) if line.startswith("{") else {"event": line})
                self.told.notify_all()

    def line(self, event: str, **fields: object) -> dict:
        """Wait for a log line."""

        def found() -> list[dict]:
            wanted = {"event": event, **fields}
            return [line for line in self.lines if wanted.items() <= line.items()]

        with self.told:
            assert self.told.wait_for(found, 200), self.lines
            return found()[0]

    def ended(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(300)
        self._reading.join(20)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def read(url: str) -> dict:
    """Return the samples of a page."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return samples(answer.read().decode())


def log_of(path: Path) -> list[Record]:
    """Return the whole log."""
    return list(LogReader(path / "events").records())


def of(log: list[Record], kind: type) -> list:
    """Return the events of one kind."""
    return [record.event for record in log if isinstance(record.event, kind)]


def test_a_run_is_seen_by_everybody_who_looks(tmp_path: Path) -> None:
    """A page with one phase, spans and metrics at the receiver, devices in the log, rows for every step."""
    path = tmp_path / "run"
    with receiving() as traces:
        settings = [
            *SMALL,
            "telemetry.prometheus_port=0",
            f"telemetry.otlp_endpoint={traces.url}",
            'telemetry.trackers=["tensorboard"]',
            "telemetry.device_interval_s=0.2",
        ]
        running = Running(["demo", "--run-dir", path], settings)
        page = running.line("metrics_served")["url"]
        running.line("step_completed", step=STEPS // 2)
        seen = read(page)
        assert running.ended() == 0
        traces.problems = [problem for problem in traces.problems if "/v1/metrics" not in problem]
        spans = traces.spans()
    log = log_of(path)
    assert sum(value for (name, _), value in seen.items() if name == "rl_trainer_phase") == 1
    (steps,) = [value for (name, _), value in seen.items() if name == "rl_steps_total"]
    assert STEPS // 2 <= steps <= STEPS  # the page has what is on disk, the log line what has happened
    assert isinstance(log[-1].event, RunFinished)
    assert Counter(span.name for span in spans)["rl.step"] == STEPS
    calls = {call.trace_parent.split("-")[2] for call in of(log, LlmCallStarted)}
    chats = {span.span_id.hex() for span in spans if span.name.startswith("chat ")}
    assert chats
    assert chats <= calls
    used = Counter(sample.pool for sample in of(log, DeviceSampled) if sample.utilization > 0)
    assert set(used) >= {"engine", "learner", "controller"}
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert all("generate/trajectory_llm_time_mean" in row for row in rows)
    assert list((path / "tensorboard").glob("events.out.tfevents.*"))


def test_what_is_missing_is_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    """A taken port and a receiver that is gone are an event each, with what still works; all steps are trained."""
    path = tmp_path / "run"
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        socket.create_server(("127.0.0.1", 0)) as nobody,
    ):
        port, away = taken.getsockname()[1], nobody.getsockname()[1]
        nobody.close()
        settings = [
            *SMALL,
            "run.steps=40",
            f"telemetry.prometheus_port={port}",
            f"telemetry.otlp_endpoint=http://127.0.0.1:{away}",
            "telemetry.otlp_interval_s=0.5",
        ]
        running = Running(["demo", "--run-dir", path], settings)
        assert running.ended() == 0
    log = log_of(path)
    degraded = of(log, TelemetryDegraded)
    assert len(of(log, StepCompleted)) == 40
    assert isinstance(log[-1].event, RunFinished)
    said = [f"{event.part}: {event.missing}" for event in degraded]
    said += [f"{line['part']}: {line['missing']}" for line in running.lines if line["event"] == "telemetry_degraded"]
    for part, words in (("metrics", str(port)), ("metrics", str(away)), ("traces", str(away))):
        assert any(one.startswith(part) and words in one for one in said), said
    assert len(degraded) == len({event.missing for event in degraded})
    assert all(event.works for event in degraded)


def test_counters_go_on_where_a_killed_run_stopped(tmp_path: Path) -> None:
    """After a kill and a resume the page counts all steps of both lives, as the fold of the whole log does."""
    path = tmp_path / "run"
    first = Running(["demo", "--run-dir", path], [*SMALL, "telemetry.prometheus_port=0"])
    page = first.line("metrics_served")["url"]
    first.line("step_completed", step=STEPS // 2)
    shown = read(page)
    first.process.send_signal(signal.SIGKILL)
    first.ended()
    before = len(of(log_of(path), StepCompleted))
    second = Running(["run", "--resume", path], [])
    page = second.line("metrics_served")["url"]
    again_shown = read(page)
    second.line("step_completed", step=STEPS - 2)
    seen = read(page)
    assert second.ended() == 0
    counters = [key for key in shown if key[0].endswith(("_total", "_bucket", "_count", "_sum"))]
    assert len(counters) > 100
    back = {key: (shown[key], again_shown.get(key)) for key in counters if again_shown.get(key, -1.0) < shown[key]}
    assert not back, "a counter that goes back is a reset to Prometheus, which adds all of it again"
    log = log_of(path)
    (steps,) = [value for (name, _), value in seen.items() if name == "rl_steps_total"]
    resumed_at = next(record.seq for record in log if isinstance(record.event, RunResumed))
    again = [record for record in log if record.seq > resumed_at and isinstance(record.event, StepCompleted)]
    assert before < steps <= before + len(again)
    meter = Meter()
    for record in log:
        meter.apply(record)
    (total,) = meter.snapshot(meter.last_mono).values["rl_steps_total"].values()
    assert total == before + len(again)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(STEPS))
