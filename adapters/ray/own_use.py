"""What a worker uses of its machine, measured by itself: the controller can look at its own machine alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..telemetry.devices.nvidia import NvidiaSource
from ..telemetry.devices.source import Pool, Reading

POOLS: dict[str, Pool] = {"engine": "engine", "learner": "learner"}
"""By the role that stands in front of a worker's number; others work for nobody alone."""


class OwnUse:
    """CPU and memory of this process, and the GPUs that it was given.

    `threads` are the CPU threads that it is to use: all of them busy is a utilisation of 1. The first window begins
    when it is made.
    """

    def __init__(
        self,
        worker: str,
        node: str,
        threads: float,
        gpus: NvidiaSource | None = None,
        now: Callable[[], float] = time.monotonic,
        used_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._worker = worker
        self._node = node
        self._threads = threads
        self._now = now
        self._used_s = used_s
        self._since, self._used = now(), used_s()
        self._gpus = gpus

    @classmethod
    def begun(cls, worker: str, node: str, threads: float) -> OwnUse:
        """Return one that measures GPUs too, if this process was given some. Blocks while the driver is asked."""
        if not os.environ.get("CUDA_VISIBLE_DEVICES"):
            return cls(worker, node, threads)
        gpus = NvidiaSource()
        try:
            gpus.open()
        except Exception:  # noqa: BLE001 - absent or broken: CPU and memory are measured nevertheless
            return cls(worker, node, threads)
        return cls(worker, node, threads, gpus)

    def sample(self) -> list[dict[str, Any]]:
        """Return the fields of a ``device_sampled`` for each device, over the window since the last call."""
        now, used = self._now(), self._used_s()
        window_s, busy_s = now - self._since, used - self._used
        if window_s <= 0:
            return []
        self._since, self._used = now, used
        share = min(1.0, busy_s / (window_s * self._threads))
        device = f"{self._node}/cpu:{self._worker}"
        mine = Reading(device, self._pool, share, _resident_bytes(), window_s, "process")
        return [_fields(reading, self._pool) for reading in (mine, *self._of_gpus())]

    @property
    def _pool(self) -> Pool:
        return POOLS.get(self._worker.partition("-")[0], "shared")

    def _of_gpus(self) -> Iterator[Reading]:
        """Yield a reading of each GPU, under the number that it has on its machine."""
        if self._gpus is None:
            return
        machine = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        with suppress(Exception):  # a driver that fails now may answer the next time
            for reading in self._gpus.sample():
                number = int(reading.device.removeprefix("cuda:"))
                device = f"{self._node}/gpu{machine[number]}"
                yield Reading(
                    device,
                    self._pool,
                    reading.utilization,
                    reading.memory_bytes,
                    reading.window_s,
                    reading.source,
                    reading.sm_active,
                    reading.memory_total_bytes,
                )


def _fields(reading: Reading, pool: Pool) -> dict[str, Any]:
    return {
        "device": reading.device,
        "pool": pool,
        "utilization": reading.utilization,
        "memory_bytes": reading.memory_bytes,
        "window_s": reading.window_s,
        "source": reading.source,
        "sm_active": reading.sm_active,
        "memory_total_bytes": reading.memory_total_bytes,
    }


def _resident_bytes() -> int:
    """Return what of this process lies in memory; 0 where the kernel does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
