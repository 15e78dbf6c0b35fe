"""Real runs that are killed with SIGKILL and resumed from what is left of their folder."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eventrain.core.projections import View
from eventrain.core.projections.accounting import Ledger
from eventrain.events.folder import RunFolder
from eventrain.events.reader import LogReader
from eventrain.events.types import BatchTaken, RunResumed, StepCompleted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PROGRAM = [sys.executable, "-m", "eventrain.adapters.cli"]
STEPS, GROUPS = 8, 3
SMALL = [
    f"run.steps={STEPS}",
    "rollout.group_size=4",
    f"scheduler.groups_per_step={GROUPS}",
    "checkpoint.every_steps=3",
]
EVENTS = 1500
"""About as many as such a run has."""


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def killed_after(process: subprocess.Popen[str], folder: Path, seq: int) -> bool:
    """Kill `process` once event `seq` is in the log; return False if the run ended before."""
    for record in LogReader(folder / "events").follow(poll_s=0.01):
        if record.seq >= seq and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            return True
    process.communicate(timeout=60)
    return False


@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_killed_again_and_again_ends_as_an_unbroken_one(tmp_path: Path, seed: int) -> None:
    """After up to three kills at random events every step is trained once, and the books close."""
    chance, path = random.Random(seed), tmp_path / "run"
    settings = [part for setting in SMALL for part in ("--set", setting)]
    process = start("demo", "--run-dir", path, *settings)
    at, kills = 0, 0
    for _ in range(3):
        at += chance.randrange(EVENTS // 2)
        if not killed_after(process, path, at):
            break
        kills += 1
        process = start("run", "--resume", path)
    out, err = process.communicate(timeout=200)
    assert kills == 0 or process.returncode == 0, err + out
    view, ledger, batches, resumed = View(), Ledger(), {}, 0
    for record in LogReader(path / "events").records():
        view.apply(record)
        ledger.apply(record)
        if isinstance(record.event, RunResumed):
            resumed += 1
            batches = {step: groups for step, groups in batches.items() if step < record.event.step}
        elif isinstance(record.event, BatchTaken):
            batches[record.event.step] = record.event.groups
    assert resumed <= kills  # one may be killed before it has said that it goes on
    assert ledger.breaches == []
    assert view.trainer.version == STEPS
    assert sorted(batches) == list(range(STEPS))
    assert view.prompts.ended["trained"] == ledger.prompts["trained"] == STEPS * GROUPS
    assert len({group for groups in batches.values() for group in groups}) == STEPS * GROUPS
    assert not RunFolder.open(path).is_held()


def test_steps_that_are_rolled_back_give_the_same_weights_again(tmp_path: Path) -> None:
    """Trained again from the payload store, a step has the same loss to the last bit."""
    path = tmp_path / "run"
    settings = [part for setting in [*SMALL, "checkpoint.every_steps=50"] for part in ("--set", setting)]
    process = start("demo", "--run-dir", path, *settings)
    for record in LogReader(path / "events").follow(poll_s=0.01):
        if isinstance(record.event, StepCompleted) and record.event.step == 4:
            process.kill()
            break
    process.communicate(timeout=60)
    assert subprocess.run([*PROGRAM, "run", "--resume", str(path)], timeout=200, check=False).returncode == 0
    losses: dict[int, set[float]] = {}
    trained: dict[int, int] = {}
    for record in LogReader(path / "events").records():
        if isinstance(record.event, StepCompleted):
            losses.setdefault(record.event.step, set()).add(record.event.loss)
            trained[record.event.step] = trained.get(record.event.step, 0) + 1
    assert [step for step, count in trained.items() if count == 2][:4] == [0, 1, 2, 3]
    assert all(len(values) == 1 for values in losses.values())


def test_what_cannot_be_resumed_says_why(tmp_path: Path) -> None:
    """A folder that is no run, a run that is complete, and options that do not go together: one line, exit code 2."""
    nothing = subprocess.run(
        [*PROGRAM, "run", "--resume", str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert nothing.returncode == 2
    assert "is no run" in nothing.stderr
    both = subprocess.run(
        [*PROGRAM, "run", "my.toml", "--resume", "runs/x"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert both.returncode == 2
    assert "give only --set with it" in both.stderr
