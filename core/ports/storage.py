"""Storage: where tokens and texts, weights and checkpoints go."""

from __future__ import annotations

from typing import Protocol

from ...events.types import PayloadRef


class Payloads(Protocol):
    """Where tokens and texts go; `eventrain.events.payload.PayloadStore` is the real one."""

    def put(self, data: bytes) -> PayloadRef:
        """Store `data`; it is on disk before the first event that names the reference."""
        ...

    def get(self, ref: PayloadRef) -> bytes:
        """Return what was stored. Raises when it is missing or damaged."""
        ...


class Artifacts(Protocol):
    """Names and removes the large files of a run: published weights and checkpoints."""

    def weights(self, version: int) -> str:
        """Return the path for weights `version`, relative to the run folder."""
        ...

    def checkpoint(self, step: int) -> str:
        """Return the path for the checkpoint before step `step`, relative to the run folder."""
        ...

    def absolute(self, path: str) -> str:
        """Return `path`, which is relative to the run folder, as the other ports need it."""
        ...

    def drop(self, path: str) -> None:
        """Remove a file or folder named by this port; missing is fine."""
        ...
