"""The whole of a run in a Ray cluster: several of everything, two deaths in the middle, and a resume without Ray."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from ray_controllers import ENDED_S, below, wait_ended

from eventrain.core.projections.accounting import Ledger
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.types import (
    EngineLost,
    EngineRestarted,
    EngineUp,
    EnvironmentWorkerLost,
    EnvironmentWorkerRestarted,
    EnvironmentWorkerUp,
    LearnerUp,
    StepCompleted,
    TrajectoryFailed,
)

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(400)]
PROGRAM = [sys.executable, "-m", "eventrain.adapters.cli"]
STEPS = 40
"""So many that both that are killed are back long before the last one."""
SETTINGS = [
    f"run.steps={STEPS}",
    "rollout.group_size=6",
    "scheduler.groups_per_step=6",
    "engine.count=2",
    "learner.ranks=2",
    "environment.workers=2",
    "cluster.kind=ray",
    "cluster.engine_cpus=0.1",
    "cluster.learner_cpus=0.1",
    "cluster.environment_cpus=0.1",
]
ENV = {**os.environ, "RAY_AUTH_MODE": "disabled"}
E = TypeVar("E")


def of(log: list[Record], kind: type[E]) -> list[E]:
    """Return the events of one kind."""
    return [record.event for record in log if isinstance(record.event, kind)]


def set_to(settings: list[str]) -> Iterator[str]:
    """Yield the options that change these settings."""
    for setting in settings:
        yield from ("--set", setting)


def said(*arguments: str | Path, timeout_s: float = 120) -> str:
    """Return what a command prints; it has to go well."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], env=ENV, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def writing_to(pids: list[int], log: Path) -> int:
    """Return the process whose output goes to `log`."""
    (pid,) = [pid for pid in pids if log.samefile(Path(f"/proc/{pid}/fd/1"))]
    return pid


def run_and_kill(run: Path) -> list[int]:
    """Carry out the run, kill an engine in step 1 and an environment worker in step 3; return all processes of it."""
    command = [*PROGRAM, "demo", "--run-dir", str(run), *set_to(SETTINGS)]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as controller:
        pids: list[int] = []
        try:
            for record in LogReader(run / "events").follow(poll_s=0.05):
                event = record.event
                if isinstance(event, StepCompleted) and event.step in (1, 3):
                    pids = below(controller.pid)
                    victim = "engine-0" if event.step == 1 else "environment-1"
                    os.kill(writing_to(pids, run / "logs" / f"{victim}.log"), signal.SIGKILL)
                    if event.step == 3:
                        break
            _, told = controller.communicate(timeout=300)
        except BaseException:
            controller.kill()
            raise
    assert controller.returncode == 0, told
    return pids


def test_a_run_in_a_cluster_survives_its_dead_and_goes_on_without_it(tmp_path: Path) -> None:
    """An engine and a worker of environments die and come back, the books close, and one rank here goes on."""
    run = tmp_path / "run"
    wait_ended(run_and_kill(run), ENDED_S)
    log = list(LogReader(run / "events").records())
    assert [event.step for event in of(log, StepCompleted)] == list(range(STEPS))
    assert all(math.isfinite(event.reward_mean) for event in of(log, StepCompleted))
    (learner,) = of(log, LearnerUp)
    assert learner.ranks == 2
    (lost,), (back,) = of(log, EngineLost), of(log, EngineRestarted)
    assert (lost.engine, back.engine) == ("engine-0", "engine-0")
    assert "engine-0 (pid " in lost.message
    assert "ended" in lost.message
    assert [event.engine for event in of(log, EngineUp)].count("engine-0") == 2
    (gone,), (again,) = of(log, EnvironmentWorkerLost), of(log, EnvironmentWorkerRestarted)
    assert (gone.worker, again.worker) == ("environment-1", "environment-1")
    assert [event.worker for event in of(log, EnvironmentWorkerUp)].count("environment-1") == 2
    assert {event.blame for event in of(log, TrajectoryFailed)} <= {"engine", "infrastructure", "nobody"}
    require_whole(run, log)

    said("run", "--resume", run, *set_to([f"run.steps={STEPS + 2}", "learner.ranks=1", "cluster.kind=local"]))
    log = list(LogReader(run / "events").records())
    assert [event.step for event in of(log, StepCompleted)] == list(range(STEPS + 2))
    assert of(log, LearnerUp)[-1].ranks == 1
    require_whole(run, log)


def require_whole(run: Path, log: list[Record]) -> None:
    """Fail unless every law holds, the folder is whole, and the run would decide the same again."""
    ledger = Ledger()
    for record in log:
        ledger.apply(record)
    assert ledger.breaches == []
    assert ": clean: " in said("log", "verify", run)
    assert "decisions agree" in said("replay", run, "--check")
