"""A whole run whose engine is vLLM: learner, log and all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eventrain.adapters.demo.model import build_model_folder
from eventrain.events.folder import RunFolder
from eventrain.events.reader import LogReader
from eventrain.events.types import (
    RunFinished,
    StepCompleted,
    SyncAcknowledged,
    SyncVerified,
    TrajectoryCompleted,
)

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(400)]

STEPS = 5


@pytest.mark.parametrize("kind", ["vllm", "vllm_server"])
def test_a_run_trains_with_vllm(kind: str, tmp_path: Path) -> None:
    """Every step is trained and synced in flight, and on the first one vLLM's log-probs are the learner's own."""
    python = os.environ.get("EVENTRAIN_VLLM_PYTHON")
    if not python:
        pytest.skip("EVENTRAIN_VLLM_PYTHON is not set")
    model = tmp_path / "model"
    build_model_folder(model)
    settings = json.loads((model / "config.json").read_text())
    settings |= {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }  # vLLM's CPU kernels need 32
    (model / "config.json").write_text(json.dumps(settings))
    changes = {
        "model.path": model,
        "engine.kind": kind,
        "engine.python": python,
        "run.steps": STEPS,
        "rollout.group_size": 4,
        "scheduler.groups_per_step": 3,
        "checkpoint.at_end": "false",
    }
    command = [sys.executable, "-m", "eventrain.adapters.cli", "demo", "--run-dir", str(tmp_path / "run")]
    for key, value in changes.items():
        command += ["--set", f"{key}={value}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=390, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    events = [record.event for record in LogReader(RunFolder.open(tmp_path / "run").events).records()]
    assert any(isinstance(event, RunFinished) for event in events)
    steps = [event for event in events if isinstance(event, StepCompleted)]
    assert len(steps) == STEPS
    assert steps[0].metrics["importance_mean"] == pytest.approx(1, abs=1e-3)
    assert sum(isinstance(event, SyncVerified) for event in events) >= STEPS - 1
    synced = [event.version for event in events if isinstance(event, SyncAcknowledged)]
    assert synced == sorted(synced)
    assert len(synced) >= STEPS - 1
    trajectories = [event for event in events if isinstance(event, TrajectoryCompleted)]
    assert {version for event in trajectories for version, _ in event.version_spans} >= set(range(STEPS - 2))
