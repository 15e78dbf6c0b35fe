"""The large files of a run folder: published weights and checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path


class FolderArtifacts:
    """`eventrain.core.ports.Artifacts` in a run folder."""

    def __init__(self, folder: Path, on_drop: Callable[[str], None] = lambda path: None) -> None:
        self.folder = folder
        self._on_drop = on_drop
        """Told of every path that was removed, from the root of the file system."""

    def weights(self, version: int) -> str:
        """Return ``weights/v000012.safetensors``."""
        return f"weights/v{version:06d}.safetensors"

    def checkpoint(self, step: int) -> str:
        """Return ``checkpoints/step-000012``."""
        return f"checkpoints/step-{step:06d}"

    def absolute(self, path: str) -> str:
        """Return the path from the root of the file system."""
        return str((self.folder / path).absolute())

    def drop(self, path: str) -> None:
        """Remove the file or folder; only what lies in ``weights`` or ``checkpoints`` can be named."""
        target = self.folder / path
        if target.parent.parent != self.folder or target.parent.name not in ("weights", "checkpoints"):
            raise ValueError(f"{path} is not an artifact of this run")
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        self._on_drop(self.absolute(path))


def keep_weights_at(weights: Path, place: Path) -> None:
    """Have the run's folder `weights` lead to a folder of its own in `place`; what a former life left there is removed.

    Raises ValueError, with one line, where that cannot be made.
    """
    target = place.absolute() / _name_of(weights)
    try:
        forget_weights(weights)
        shutil.rmtree(target, ignore_errors=True)  # of a run in a folder of this name, which was removed
        target.mkdir()
        weights.rmdir()
        weights.symlink_to(target, target_is_directory=True)
    except OSError as error:
        raise ValueError(f"learner.weights_folder = '{place}' cannot be used: {error}") from error


def forget_weights(weights: Path) -> None:
    """Empty the run's folder `weights`, and what it leads to; it is an ordinary folder then. Raises OSError."""
    if weights.is_symlink():
        if weights.readlink().name == _name_of(weights):  # the link of a copied run folder leads to another run's
            shutil.rmtree(weights.readlink(), ignore_errors=True)
        weights.unlink()
    elif weights.exists():
        shutil.rmtree(weights)
    weights.mkdir(parents=True)


def _name_of(weights: Path) -> str:
    """Return the name of the folder that is this run's, in a place that several runs use."""
    return f"eventrain-{blake2b(str(weights.absolute()).encode(), digest_size=6).hexdigest()}"
