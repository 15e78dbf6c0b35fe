"""Where weights on their way to the engines lie, and that nothing of them stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventrain.adapters.artifacts import FolderArtifacts, forget_weights, keep_weights_at


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return the weights folder of a new run, and another place."""
    weights, place = tmp_path / "run" / "weights", tmp_path / "memory"
    weights.mkdir(parents=True)
    place.mkdir()
    return weights, place


def test_weights_lie_elsewhere_under_the_same_name(tmp_path: Path) -> None:
    """What is written to the run's folder is in the other place, and is removed there by its name in the run."""
    weights, place = folders(tmp_path)
    keep_weights_at(weights, place)
    told: list[str] = []
    artifacts = FolderArtifacts(tmp_path / "run", told.append)
    path = artifacts.weights(3)
    Path(artifacts.absolute(path)).write_text("weights")
    assert [found.read_text() for found in place.rglob("v*")] == ["weights"]
    artifacts.drop(path)
    assert list(place.rglob("v*")) == []
    assert told == [artifacts.absolute(path)]


def test_nothing_stays_when_the_run_has_ended_or_goes_on(tmp_path: Path) -> None:
    """Both the end of a run and its next life, after a kill, begin with an empty folder and leave no other."""
    weights, place = folders(tmp_path)
    for _ in range(2):  # the second life finds what the first one left
        keep_weights_at(weights, place)
        assert list(weights.iterdir()) == []
        (weights / "v000001.safetensors").write_text("weights")
        assert len(list(place.iterdir())) == 1
    forget_weights(weights)
    assert list(place.iterdir()) == []
    assert weights.is_dir()
    assert not weights.is_symlink()


def test_two_runs_do_not_meet(tmp_path: Path) -> None:
    """Each run has a folder of its own in the place."""
    place = tmp_path / "memory"
    place.mkdir()
    for name in ("one", "two"):
        weights = tmp_path / name / "weights"
        weights.mkdir(parents=True)
        keep_weights_at(weights, place)
        (weights / name).touch()
    assert sorted(path.name for path in place.rglob("*") if path.is_file()) == ["one", "two"]


def test_a_copy_of_a_run_does_not_take_the_weights_of_the_run(tmp_path: Path) -> None:
    """Its link leads to the other's folder, which stays; it gets one of its own."""
    weights, place = folders(tmp_path)
    keep_weights_at(weights, place)
    (weights / "v000001.safetensors").touch()
    copied = tmp_path / "copy" / "weights"
    copied.parent.mkdir()
    copied.symlink_to(weights.readlink(), target_is_directory=True)
    keep_weights_at(copied, place)
    assert [path.name for path in weights.iterdir()] == ["v000001.safetensors"]
    assert list(copied.iterdir()) == []


def test_a_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """One line names the setting and the folder, and the run's own folder stays an ordinary one."""
    weights, _ = folders(tmp_path)
    with pytest.raises(ValueError, match=r"learner\.weights_folder = '.*nowhere' cannot be used"):
        keep_weights_at(weights, tmp_path / "nowhere")
    assert not weights.is_symlink()
