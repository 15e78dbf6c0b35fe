"""CPU use of real processes, and the rules on processes that nobody can start at will."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from worlds import config

from eventrain.adapters.engine_setup import EngineSetup
from eventrain.adapters.telemetry.devices import HasProcess, sources_for
from eventrain.adapters.telemetry.devices.processes import TICK_S, ProcessSource, Watched
from eventrain.adapters.telemetry.devices.source import SourceAbsent
from eventrain.adapters.torch.engine import TorchEngine
from eventrain.adapters.torch.learner import TorchLearner

WORKER = """
import sys, time
print("up", flush=True)
for line in sys.stdin:
    until = time.process_time() + float(line)
    while time.process_time() < until:
        pass
    print("done", flush=True)
"""
"""Burns as many CPU seconds as each line says."""
PARENT = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Yield a list of processes, which are ended with the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.stdin.close()  # type: ignore[union-attr]
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def start(started: list[subprocess.Popen[str]], *code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", *code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def burn(process: subprocess.Popen[str], seconds: float) -> None:
    """Have the worker use so much CPU time, and wait until it has."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def test_a_busy_process_is_told_from_an_idle_one(started: list[subprocess.Popen[str]]) -> None:
    """Shares are CPU seconds over seconds times threads, and memory is what psutil says."""
    busy, idle = start(started, WORKER), start(started, WORKER)
    source = ProcessSource(
        [
            Watched("cpu:engine-0", "engine", 1, lambda: busy.pid),
            Watched("cpu:engine-1", "engine", 4, lambda: busy.pid + 10**6),
            Watched("cpu:learner", "learner", 1, lambda: idle.pid),
        ]
    )
    source.open()
    burn(busy, 0.3)
    engine, learner = source.sample()
    assert engine.device == "cpu:engine-0"
    assert engine.utilization * engine.window_s == pytest.approx(0.3, abs=0.05)
    assert learner.utilization < 0.05
    assert 2**20 < learner.memory_bytes < learner.memory_total_bytes


def test_children_count_for_the_worker_that_started_them(started: list[subprocess.Popen[str]]) -> None:
    """What a learner's child uses is the learner's, and not the controller's above both."""
    learner = start(started, PARENT, WORKER)
    source = ProcessSource(
        [
            Watched("cpu:controller", "controller", 1, os.getpid),
            Watched("cpu:learner", "learner", 1, lambda: learner.pid),
        ]
    )
    source.open()
    burn(learner, 0.2)
    found = {reading.device: reading for reading in source.sample()}
    assert found["cpu:learner"].utilization * found["cpu:learner"].window_s >= 0.18
    own_bytes = psutil.Process().memory_info().rss
    assert found["cpu:controller"].memory_bytes == pytest.approx(own_bytes, rel=0.1)


def test_an_engine_that_is_restarted_is_followed(started: list[subprocess.Popen[str]]) -> None:
    """No reading while there is no process; all that the new one used since it began is in the window."""
    pid: int | None = start(started, WORKER).pid
    source = ProcessSource([Watched("cpu:engine-0", "engine", 1, lambda: pid)])
    source.open()
    pid = None
    assert source.sample() == []
    fresh = start(started, WORKER)
    pid = fresh.pid
    burn(fresh, 0.2)
    (reading,) = source.sample()
    assert reading.utilization * reading.window_s >= 0.19


def test_cpu_time_that_does_not_fit_a_short_window_is_the_next_ones(
    started: list[subprocess.Popen[str]],
) -> None:
    """Up to one step of the kernel's clock is carried over; what more threads than configured use is not."""
    process, now_s = start(started, WORKER), 0.0
    source = ProcessSource([Watched("cpu:engine-0", "engine", 1, lambda: process.pid)], now=lambda: now_s)
    source.open()
    burn(process, 0.2)
    now_s += 0.1
    assert source.sample()[0].utilization == 1.0
    now_s += 0.1
    assert source.sample()[0].utilization == pytest.approx(TICK_S / 0.1)


def test_the_controller_counts_itself(started: list[subprocess.Popen[str]]) -> None:
    """Work in this very process is seen."""
    source = ProcessSource([Watched("cpu:controller", "controller", 1, os.getpid)])
    source.open()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    (reading,) = source.sample()
    assert reading.utilization * reading.window_s >= 0.18


def test_without_psutil_there_is_nothing_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optional library is missing: the source is absent, not failed."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(SourceAbsent):
        ProcessSource([]).open()


def test_engines_and_learner_have_a_process() -> None:
    """The torch ones are of the optional kind whose processes can be watched."""
    settings = config()
    path = Path("model")
    engine = TorchEngine(
        EngineSetup("engine-0", path, settings.engine, settings.rollout, path, settings.deadlines)
    )
    learner = TorchLearner(
        path, settings.model, settings.learner, settings.algorithm, 0, 1, 1.0, path, settings.deadlines
    )
    for part in (engine, learner):
        assert isinstance(part, HasProcess)
        assert part.pid is None


@dataclass
class InProcess:
    """An engine without a process of its own."""

    name: str


@dataclass
class Elsewhere(InProcess):
    pid: int | None = None


def test_sources_are_what_the_configuration_asks_for() -> None:
    """'auto' watches the parts that have processes, 'off' nothing of this machine, and Ray's pages are always named."""
    parts = SimpleNamespace(engines=[InProcess("engine-0"), Elsewhere("engine-1", 7)], learner=Elsewhere("l"))
    pages = ("http://10.0.0.7:8080/metrics",)
    sources = sources_for(config(telemetry={"ray_metrics": pages}), parts)  # type: ignore[arg-type]
    assert [source.name for source in sources] == ["processes", "nvml", "ray 10.0.0.7:8080"]
    watched = sources[0]._watched  # type: ignore[attr-defined]
    assert [one.device for one in watched] == ["cpu:controller", "cpu:engine-1", "cpu:learner"]
    parts.engines[1].pid = 8
    assert watched[1].pid() == 8
    off = sources_for(config(telemetry={"devices": "off", "ray_metrics": pages}), parts)  # type: ignore[arg-type]
    assert [source.name for source in off] == ["ray 10.0.0.7:8080"]


def test_each_rank_of_a_learner_is_watched() -> None:
    """With several ranks each process is a device of its own; before they start there is none."""
    settings = config(learner={"ranks": 2})
    learner = TorchLearner(
        Path("model"),
        settings.model,
        settings.learner,
        settings.algorithm,
        0,
        1,
        1.0,
        Path("log"),
        settings.deadlines,
    )
    parts = SimpleNamespace(engines=[], learner=learner)
    watched = sources_for(settings, parts)[0]._watched  # type: ignore[arg-type, attr-defined]
    assert [one.device for one in watched[1:]] == ["cpu:learner-0", "cpu:learner-1"]
    assert watched[2].pid() is None
    learner._ranks = SimpleNamespace(pids=[11, 12])  # type: ignore[assignment]
    assert [one.pid() for one in watched[1:]] == [11, 12]
