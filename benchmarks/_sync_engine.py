"""An engine that takes weights and has no model: what `bench_sync.py` starts in worker processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from eventrain.adapters.weights.file import WeightsFile
from eventrain.adapters.weights.update import Updates


class Memory:
    """Holds weights in one piece of memory, as a device would, and copies what arrives into it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._memory = bytearray(settings["size_bytes"])
        self._updates = Updates()
        self._start = 0

    def pause(self) -> None:
        """Have nothing to stop."""

    def resume(self) -> None:
        """Have nothing to start."""

    def fetch(self, weights: str) -> None:
        """Read and verify, as an engine does while it goes on decoding."""
        self._updates.fetch(Path(weights))

    def begin_update(self, weights: str, version: int, lease: int) -> None:
        """Begin."""
        self._updates.begin(Path(weights), version, lease)
        self._start = 0

    def transfer(self, bucket: int, lease: int) -> None:
        """Copy a bucket, which was read and verified."""
        arrived = self._updates.transfer(bucket, lease)
        if arrived is not None:
            memory = memoryview(self._memory)  # or the assignment would copy twice
            memory[self._start : self._start + len(arrived.data)] = arrived.data
            self._start += len(arrived.data)

    def finish_update(self, lease: int) -> dict[str, Any]:
        """Return the receipt."""
        receipt, _ = self._updates.finish(lease)
        return {"version": receipt.version, "tensors": receipt.tensors, "digest": receipt.digest}

    def raw(self, weights: str) -> None:
        """Read the same bytes into the same memory, and nothing else: the limit."""
        with WeightsFile(Path(weights)) as file:
            start, view = file.buckets[0].start, memoryview(self._memory)
        descriptor = os.open(weights, os.O_RDONLY)
        try:
            done = 0
            while done < len(view) and (
                count := os.preadv(descriptor, [view[done : done + 2**26]], start + done)
            ):
                done += count
        finally:
            os.close(descriptor)


def make(settings: dict[str, Any]) -> Memory:
    """Return what the worker serves."""
    return Memory(settings)
