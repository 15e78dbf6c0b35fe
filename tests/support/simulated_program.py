"""The command line in a process of its own, with simulated parts in place of engines and learner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("simulated_main.py")


def eventrain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder` to its end."""
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def write_settings(folder: Path, *, steps: int, size: int, seconds: float, every: int, keep: int = 2) -> None:
    """Write ``sim.toml``, and the model folder that it names: `steps` steps of two groups of two trajectories.

    A turn takes `seconds`; a checkpoint is saved `every` so many steps, and `keep` of them are kept. The log's segments
    are short, so that a run has several.
    """
    (folder / "model").mkdir()
    (folder / "sim.toml").write_text(
        f"""
[run]
name = "sim"
steps = {steps}
[model]
path = "model"
[data]
kind = "generated"
size = {size}
[environment]
kind = "simulated"
options = {{ seconds = {seconds} }}
[rollout]
group_size = 2
max_turns = 2
[scheduler]
groups_per_step = 2
[checkpoint]
every_steps = {every}
keep = {keep}
[log]
segment_bytes = 4096
"""
    )
