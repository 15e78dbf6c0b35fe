"""How a run with a Ray of its own begins and ends; what happens in between is in runs/test_ray_run.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eventrain.events.reader import LogReader
from eventrain.events.types import EngineUp, RunFinished

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(240)]

SMALL = ["rollout.group_size=4", "scheduler.groups_per_step=3", "checkpoint.at_end=false", "cluster.kind=ray"]
SHARES = ["cluster.engine_cpus=0.1", "cluster.learner_cpus=0.1"]


CONTROLLER = """\
import sys
from pathlib import Path
from eventrain.adapters.cli.config_file import load_config
from eventrain.adapters.cli.demo_command import CONFIG_FILE, with_own_model
from eventrain.adapters.cli.execution import execute
from eventrain.events.folder import RunFolder

folder = RunFolder.create(Path(sys.argv[1]))
config = with_own_model(load_config(CONFIG_FILE, sys.argv[2:], check_paths=False), folder)
outcome = execute(config, folder, CONFIG_FILE.parent)
from ray_controllers import below
import os
print(len([pid for pid in below(os.getpid())]), outcome.outcome)
"""


def controller(path: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """Carry out a run as the command line does."""
    env = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": str(Path(sys.modules["ray_controllers"].__file__ or "").parent),
    }
    return subprocess.run(
        [sys.executable, "-c", CONTROLLER, str(path), *SMALL, *settings],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_run_with_a_ray_of_its_own_ends_it(tmp_path: Path) -> None:
    """The run completes, on as many of its engines as are up by then, and nothing of Ray's is printed or left."""
    done = controller(tmp_path / "run", "run.steps=2", "engine.count=2", *SHARES)
    assert done.stdout.splitlines()[-1] == "0 completed", done.stderr
    assert "ray" not in done.stdout.lower()
    events = [record.event for record in LogReader(tmp_path / "run" / "events").records()]
    assert isinstance(events[-1], RunFinished)
    up = {event.engine for event in events if isinstance(event, EngineUp)}
    assert up
    assert up <= {"engine-0", "engine-1"}


def test_a_run_that_does_not_fit_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    """One line says what was asked and what there is; no log is begun."""
    refused = controller(tmp_path / "run", "cluster.engine_cpus=1000")
    assert refused.returncode == 1
    assert "Ray on this machine: engine-0 asks for 1000 CPUs (cluster.engine_cpus): " in refused.stderr
    assert not list((tmp_path / "run" / "events").glob("*"))
