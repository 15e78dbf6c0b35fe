"""The demo's task with vLLM as engine: it trains, loses a vLLM in the middle, and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from eventrain.core.projections.accounting import Ledger
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.types import (
    EngineLost,
    EngineRestarted,
    EngineSampled,
    EngineUp,
    RunFinished,
    StepCompleted,
    SyncVerified,
    TrajectoryCompleted,
    TrajectoryFailed,
)

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)]

PROGRAM = [sys.executable, "-m", "eventrain.adapters.cli"]
STEPS = 8
KILLED_AFTER = 2
E = TypeVar("E")


def of(log: list[Record], kind: type[E]) -> list[E]:
    """Return the events of one kind."""
    return [record.event for record in log if isinstance(record.event, kind)]


def vllm_of(controller: int, log: Path) -> psutil.Process:
    """Return the process of the engine whose output goes to `log`; vLLM's own children write there too."""
    children = psutil.Process(controller).children()
    (process,) = [child for child in children if log.samefile(f"/proc/{child.pid}/fd/1")]
    return process


def carried_out(run: Path, settings: dict[str, object], victim: str) -> list[psutil.Process]:
    """Carry out the run; kill the engine `victim` after some steps. Return what had belonged to that engine."""
    command = [*PROGRAM, "demo", "--run-dir", str(run)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    killed: list[psutil.Process] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as controller:
        try:
            for record in LogReader(run / "events").follow(poll_s=0.1):
                event = record.event
                if isinstance(event, StepCompleted) and event.step == KILLED_AFTER:
                    process = vllm_of(controller.pid, run / "logs" / f"{victim}.log")
                    killed = [process, *process.children(recursive=True)]
                    os.kill(process.pid, signal.SIGKILL)
                    break
                if isinstance(event, RunFinished):
                    break
            _, told = controller.communicate(timeout=500)
        except BaseException:
            controller.kill()
            raise
    assert controller.returncode == 0, told[-3000:]
    return killed


@pytest.mark.parametrize("kind", ["vllm", "vllm_server"])
def test_a_run_trains_with_vllm_and_survives_the_death_of_one(kind: str, tmp_path: Path) -> None:
    """Every step is trained, and synced through answers in flight; a killed vLLM is replaced at the current version.

    On the first step vLLM's log-probs are the learner's own. Nothing of the killed one stays.
    """
    run = tmp_path / "run"
    settings: dict[str, object] = {
        "engine.kind": kind,
        "engine.python": os.environ["EVENTRAIN_VLLM_PYTHON"],
        "engine.count": 2 if kind == "vllm" else 1,
        "run.steps": STEPS,
        "rollout.group_size": 4,
        "scheduler.groups_per_step": 3,
        "telemetry.engine_interval_s": 0.2,
        "checkpoint.at_end": "false",
    }
    killed = carried_out(run, settings, "engine-0")
    assert killed
    assert psutil.wait_procs(killed, timeout=20)[1] == []
    log = list(LogReader(run / "events").records())
    ledger = Ledger()
    for record in log:
        ledger.apply(record)
    assert ledger.breaches == []
    steps = of(log, StepCompleted)
    assert [event.step for event in steps] == list(range(STEPS))
    assert steps[0].metrics["importance_mean"] == pytest.approx(1, abs=1e-3)
    (lost,) = of(log, EngineLost)
    assert lost.engine == "engine-0"
    if kind == "vllm":  # a server's connections may break before its end is known
        assert "SIGKILL" in lost.message
    if kind == "vllm_server":  # it was the only one: nothing went on without it
        assert [event.engine for event in of(log, EngineRestarted)] == ["engine-0"]
        assert of(log, EngineUp)[-1].version >= KILLED_AFTER
    assert {event.blame for event in of(log, TrajectoryFailed)} <= {"engine", "nobody"}
    assert of(log, SyncVerified)
    assert any(event.sampled_tokens for event in of(log, EngineSampled))
    sampled = {version for event in of(log, TrajectoryCompleted) for version, _ in event.version_spans}
    assert sampled >= {0, 1, STEPS - 3, STEPS - 2}  # those that came while it was away may have sampled nothing
    for command, word in (("verify", ": clean: "), ("check", "decisions agree")):
        arguments = ["log", "verify", str(run)] if command == "verify" else ["replay", str(run), "--check"]
        said = subprocess.run(
            [*PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        assert said.returncode == 0, said.stderr
        assert word in said.stdout
