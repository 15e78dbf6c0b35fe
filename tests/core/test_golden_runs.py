"""Whole runs of released versions fold to the same state for ever, and their decisions are made the same again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from golden_runs import GOLDEN, make, summary

from eventrain.core.replay import Agreement, check
from eventrain.events.reader import LogReader

RUNS = sorted(path.name for path in GOLDEN.glob("run_*"))


def test_there_is_a_run_of_this_version() -> None:
    """The runs are found where they lie."""
    assert "run_0_1" in RUNS


@pytest.mark.parametrize("name", RUNS)
def test_a_golden_run_folds_to_the_same_state(name: str) -> None:
    """What its log folds to is what its release folded it to."""
    expected = json.loads((GOLDEN / name / "expected.json").read_text(encoding="utf-8"))
    assert summary(LogReader(GOLDEN / name / "events").records()) == expected["state"]


@pytest.mark.parametrize("name", RUNS)
def test_the_decisions_of_a_golden_run_agree(name: str) -> None:
    """Every decision but those that were changed on purpose, and say so, is the recorded one."""
    ignored = json.loads((GOLDEN / name / "expected.json").read_text(encoding="utf-8"))["ignore_kinds"]
    found = check(LogReader(GOLDEN / name / "events").records(), ignore_kinds=ignored)
    assert isinstance(found, Agreement), found
    assert sum(found.decisions.values()) > 300


@pytest.mark.parametrize("name", RUNS)
def test_a_golden_run_is_small_and_has_a_little_of_everything(name: str) -> None:
    """It holds what a log may hold, in less than 100 kB."""
    files = [path for path in (GOLDEN / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100_000
    counts = json.loads((GOLDEN / name / "expected.json").read_text(encoding="utf-8"))["state"]["events"]
    assert {
        "checkpoint_committed",
        "engine_restarted",
        "eval_completed",
        "group_evicted",
        "group_failed",
        "group_filtered",
        "group_restored",
        "prompt_quarantined",
        "retry_scheduled",
        "run_finished",
        "run_resumed",
        "trajectory_dropped",
    } <= set(counts)


def test_a_golden_run_is_never_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script makes a new one, and refuses a name that is taken."""
    monkeypatch.setattr("golden_runs.GOLDEN", tmp_path)
    make("run_new")
    assert isinstance(check(LogReader(tmp_path / "run_new" / "events").records()), Agreement)
    with pytest.raises(FileExistsError):
        make("run_new")
