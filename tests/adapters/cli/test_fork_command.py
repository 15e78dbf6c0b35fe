"""`eventrain fork` and `run --resume --set`, in real processes with simulated parts and checkpoints that are files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from simulated_program import eventrain, write_settings

from eventrain.adapters.cli.verify_report import verify
from eventrain.core.config import RunConfig
from eventrain.core.projections import View
from eventrain.core.replay import Agreement, check
from eventrain.core.resume import Past
from eventrain.events.folder import RunFolder
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.segment import read_frames, segment_name, segment_numbers
from eventrain.events.types import CheckpointCommitted, PolicyChanged, RunResumed, StepCompleted


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished run of six steps, ``run``, that no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    write_settings(folder, steps=6, size=60, seconds=0.002, every=2, keep=3)
    done = eventrain(folder, "run", "sim.toml", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished run's folder; the model stays where the log says it is."""
    shutil.copytree(finished / "run", tmp_path / "run")
    return tmp_path


def records(path: Path) -> Sequence[Record]:
    return list(LogReader(path / "events").records())


def clean(path: Path) -> bool:
    return verify(RunFolder.open(path), with_payloads=True, being_written=False).clean


def test_a_fork_goes_on_from_the_checkpoint_in_a_folder_of_its_own(folder: Path) -> None:
    """Its log begins with the other's, up to the commit; the other may go, and its steps trained by then stay."""
    before = [path.read_bytes() for path in sorted((folder / "run" / "events").iterdir())]
    done = eventrain(
        folder, "fork", "run", "--at", "step:5", "--run-dir", "new", "--set", "run.name=other", "--set",
        "run.steps=8", "--set", "learner.lr=0.5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "other: step 5 has no checkpoint; the newest before it is step 4\n" in done.stderr
    assert f"other: forked from {folder / 'run'} at step 4, from checkpoints/step-000004\n" in done.stderr
    assert "  learner.lr = 0.5, was 1e-06\n" in done.stderr
    assert [path.read_bytes() for path in sorted((folder / "run" / "events").iterdir())] == before
    shutil.rmtree(folder / "run")
    assert clean(folder / "new")
    log = records(folder / "new")
    resumed = next(record for record in log if isinstance(record.event, RunResumed))
    committed = log[resumed.seq - 1].event
    assert isinstance(committed, CheckpointCommitted)
    assert committed.version == 4
    assert isinstance(resumed.event, RunResumed)
    assert resumed.event.forked_from == str(folder / "run")
    assert resumed.event.config is not None
    assert RunConfig.model_validate(resumed.event.config).learner.lr == 0.5
    assert {r.event.key for r in log if isinstance(r.event, PolicyChanged)} == {
        "run.name", "run.steps", "learner.lr"
    }  # fmt: skip
    assert [r.event.step for r in log if isinstance(r.event, StepCompleted)] == list(range(8))
    view = View()
    for record in log:
        view.apply(record)
    assert (view.trainer.steps_total, view.prompts.ended["trained"]) == (8, 16)
    assert isinstance(check(log), Agreement)  # what comes behind the change is decided by the new settings
    status = eventrain(folder, "status", "new").stdout
    assert "other  completed" in status
    assert "forked" in status


def test_a_fork_can_be_resumed_and_forked_again(folder: Path) -> None:
    """Its changed settings hold for everything that comes later, without being given again."""
    steps = ("--set", "run.steps=7")
    assert eventrain(folder, "fork", "run", "--at", "step:2", "--run-dir", "a", *steps).returncode == 0
    assert eventrain(folder, "fork", "a", "--at", "step:6", "--run-dir", "b").returncode == 0
    log = records(folder / "b")
    assert [r.event.step for r in log if isinstance(r.event, StepCompleted)] == list(range(7))
    assert sum(isinstance(r.event, RunResumed) for r in log) == 2
    assert Past.of(log).config.run.steps == 7
    assert clean(folder / "b")
    complete = eventrain(folder, "run", "--resume", "b")
    assert complete.returncode == 2
    assert "the run is complete: 7 of 7 steps are trained" in complete.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--at", "step:1"), "no committed checkpoint at or before step 1; there are step:2, step:4, step:6"),
        (("--at", "step:6"), "all of its 6 steps are trained at step 6: --set run.steps=7 or more would do"),
        (("--at", "4"), "--at 4: must be step:K, for example --at step:40"),
        (
            ("--at", "step:4", "--set", "run.seed=1"),
            "run.seed = 1: cannot change in a run that has begun with 0: the prompts that are drawn follow from it",
        ),
        (
            ("--at", "step:4", "--set", "scheduler.max_staleness=0"),
            "scheduler.max_staleness = 0: can be raised, not lowered: the groups that are kept may lag by 1",
        ),
        (("--at", "step:4", "--set", "run.steps=4"), "must be more than the 4 steps that the run goes on from"),
        (("--at", "step:4", "--set", "learner.lrr=1"), "unknown key; did you mean learner.lr?"),
    ],
)
def test_what_cannot_be_forked_is_one_line_and_no_folder(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    """Exit code 2 says which checkpoint or setting it is, and what would do."""
    done = eventrain(folder, "fork", "run", *arguments, "--run-dir", "new")
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "new").exists()


def test_a_fork_takes_the_newest_checkpoint_that_is_still_there(folder: Path) -> None:
    """A committed one whose folder is gone is not offered, nor is a folder that was never committed."""
    shutil.rmtree(folder / "run" / "checkpoints" / "step-000004")
    (folder / "run" / "checkpoints" / "step-000003").mkdir()
    done = eventrain(folder, "fork", "run", "--at", "step:5", "--run-dir", "new")
    assert done.returncode == 0, done.stderr
    assert "at step 2, from checkpoints/step-000002" in done.stderr


def test_a_fork_needs_only_what_lies_before_its_checkpoint(folder: Path) -> None:
    """A log that is damaged later on can be forked from before the damage, and resumed no more."""
    path = folder / "run" / "events" / segment_name(segment_numbers(folder / "run" / "events")[-1])
    with path.open("rb") as file:
        ends = [end for end, _ in read_frames(file)]
    content = bytearray(path.read_bytes())
    content[ends[0] + 20] ^= 0xFF
    path.write_bytes(content)
    resumed = eventrain(folder, "run", "--resume", "run", "--set", "run.steps=8")
    assert resumed.returncode == 1
    assert "log damaged in segment" in resumed.stderr
    done = eventrain(folder, "fork", "run", "--at", "step:2", "--run-dir", "new")
    assert done.returncode == 0, done.stderr
    assert clean(folder / "new")


def test_a_finished_run_goes_on_with_more_steps(folder: Path) -> None:
    """A resume with more steps brings the new configuration in its own event, and the log stays one history."""
    changed = ("--set", "run.steps=12", "--set", "scheduler.max_staleness=3")
    done = eventrain(folder, "run", "--resume", "run", *changed)
    assert done.returncode == 0, done.stderr
    assert "  run.steps = 12, was 6\n" in done.stderr
    log = records(folder / "run")
    steps = [r.event for r in log if isinstance(r.event, StepCompleted)]
    assert [step.step for step in steps] == list(range(12))
    assert max(step.lag_max for step in steps[:6]) <= 1 < max(step.lag_max for step in steps[6:])
    assert clean(folder / "run")
    refused = eventrain(folder, "run", "--resume", "run", "--set", "rollout.group_size=4")
    assert refused.returncode == 2
    assert "rollout.group_size = 4: cannot change in a run that has begun with 2" in refused.stderr
    assert len(records(folder / "run")) == len(log)


def test_the_past_of_a_fork_is_that_of_the_run(folder: Path) -> None:
    """Up to the checkpoint the logs are equal, so whatever they tell of prompts, strikes and groups is the same."""
    view, log = View(), records(folder / "run")
    done = eventrain(folder, "fork", "run", "--at", "step:4", "--run-dir", "new")
    assert done.returncode == 0
    new = records(folder / "new")
    resumed = next(record.seq for record in new if isinstance(record.event, RunResumed))
    assert new[:resumed] == log[:resumed]
    for record in new[: resumed + 1]:
        view.apply(record)
    assert view.prompts.ended["trained"] == 8
