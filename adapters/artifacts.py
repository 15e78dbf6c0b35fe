"""The large files of a run folder: published weights and checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path


class FolderArtifacts:
    """`eventrain.core.ports.Artifacts` in a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

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
