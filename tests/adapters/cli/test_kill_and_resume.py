"""``kill -9`` at random moments, in real processes with a real log, and what the resumed run's books say.

How many kills: ``EVENTRAIN_KILLS=200 pytest tests/adapters/cli/test_kill_and_resume.py`` (default 20).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from simulated_program import PROGRAM, write_settings

from eventrain.adapters.cli.verify_report import verify
from eventrain.core.projections import View
from eventrain.core.projections.accounting import Ledger
from eventrain.events.folder import RunFolder
from eventrain.events.reader import LogReader
from eventrain.events.types import BatchTaken, RunFinished, RunResumed, StepCompleted

KILLS = int(os.environ.get("EVENTRAIN_KILLS", "20"))
KILLS_PER_RUN = 5
STEPS, GROUPS = 16, 2

def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with (folder / "stderr").open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), "run", *arguments],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )


def killed_after(process: subprocess.Popen[bytes], path: Path, seq: int) -> bool:
    """Kill the process once event `seq` is seen in the log; return whether the run had not ended before.

    Between what is seen and the kill the run goes on: it may come to its end meanwhile.
    """
    for record in LogReader(path / "events").follow(poll_s=0.001, until_finished=False):
        if isinstance(record.event, RunFinished):
            break
        if record.seq >= seq:
            process.kill()
            process.wait(30)
            *_, last = LogReader(path / "events").records(seq)
            return not isinstance(last.event, RunFinished)
    assert process.wait(60) == 0, (path.parent / "stderr").read_text()[-2000:]
    return False


def accounting(path: Path) -> dict[str, object]:
    """Return the books of a run that has ended, checked against what must hold of any."""
    view, ledger, trained, losses = View(), Ledger(), defaultdict(list), defaultdict(set)
    batches: dict[int, tuple[int, ...]] = {}
    for seq, record in enumerate(LogReader(path / "events").records()):
        assert record.seq == seq
        view.apply(record)
        ledger.apply(record)
        match record.event:
            case RunResumed(step=step):
                for rolled_back in [at for at in trained if at >= step]:
                    del trained[rolled_back], batches[rolled_back]
                batches = {at: groups for at, groups in batches.items() if at < step}
            case BatchTaken(step=step, groups=groups):
                batches[step] = groups
            case StepCompleted(step=step, loss=loss):
                trained[step].append(record.seq)
                losses[step].add(loss)
    assert ledger.breaches == []
    assert all(len(values) == 1 for values in losses.values())  # what is trained again is the same
    groups = [group for batch in batches.values() for group in batch]
    assert len(groups) == len(set(groups))
    return {
        "outcome": view.trainer.outcome,
        "version": view.trainer.version,
        "trained once": sorted(step for step, seqs in trained.items() if len(seqs) == 1),
        "groups": len(groups),
        "prompts": view.prompts.ended["trained"],
        "prompts in the books": ledger.prompts["trained"],
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_at_random_moments_changes_nothing_in_the_books(tmp_path: Path) -> None:
    """However often a run is killed, and wherever: each step is trained once, each prompt counted, no law broken."""
    write_settings(tmp_path, steps=STEPS, size=200, seconds=0.004, every=3)
    assert start(tmp_path, "sim.toml", "--run-dir", "whole").wait(60) == 0
    whole = accounting(tmp_path / "whole")
    assert whole["prompts"] == STEPS * GROUPS
    span = sum(1 for _ in LogReader(tmp_path / "whole" / "events").records())
    dice, kills, runs, uncommitted, torn = random.Random(7), 0, 0, 0, 0
    while kills < KILLS:
        name, seq = f"run-{runs}", 0
        path, runs = tmp_path / name, runs + 1
        for life in range(KILLS_PER_RUN):
            arguments = ("--resume", name) if life else ("sim.toml", "--run-dir", name)
            seq += 1 + dice.randrange(2 * span // KILLS_PER_RUN)
            if not killed_after(start(tmp_path, *arguments), path, seq):
                break
            kills += 1
            left = verify(RunFolder.open(path), with_payloads=True, being_written=False)
            assert (left.survey.damages, left.breaches, left.payloads_bad, left.checkpoints_missing) == ([], [], 0, [])
            uncommitted, torn = uncommitted + bool(left.uncommitted), torn + (left.survey.torn is not None)
            seq = max(seq, left.events)
        else:
            again = start(tmp_path, "--resume", name)
            assert again.wait(60) == 0, (tmp_path / "stderr").read_text()[-2000:]
        assert accounting(path) == whole
        assert verify(RunFolder.open(path), with_payloads=True, being_written=False).clean
    print(f"{kills} kills in {runs} runs; {uncommitted} left a checkpoint without its commit, {torn} a torn write")
