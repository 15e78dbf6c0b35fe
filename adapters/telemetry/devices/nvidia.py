"""NVIDIA GPUs, by the best means that the chip has.

1. GPM (H100 and newer): counters whose difference between two reads is exact for that window. ``GRAPHICS_UTIL`` is the
   share of time in which any kernel ran, ``SM_UTIL`` the mean share of multiprocessors that had work.
2. The driver's ring of samples, averaged over the window.
3. The driver's last figure, over a window that it chooses, up to a second long.

2 and 3 count a kernel that only spins in a collective as work. Numbers are those of the run: with
``CUDA_VISIBLE_DEVICES=3,2`` device ``cuda:0`` is the machine's GPU 3. NVML counts GPUs by their place on the bus, as
CUDA does with ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` and, among equal ones, without.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

from .source import Reading, SourceAbsent, SourceFailed, share_of

GPM_READ_S_MIN = 0.1
"""Closer reads of the counters join the next window: over less, their difference is mostly rounding."""


class NvidiaSource:
    """Use and memory of every GPU that this run can see. `library` is the pynvml module, or a double of it."""

    name = "nvml"
    exact = True

    def __init__(self, library: Any = None, now: Callable[[], float] = time.monotonic) -> None:
        self._nvml = library
        self._now = now
        self._gpus: list[_Gpu] = []

    def open(self) -> None:
        """Find the GPUs. Raises `SourceAbsent` without the library, without a driver, and without a visible GPU."""
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ModuleNotFoundError as error:
                raise SourceAbsent("nvidia-ml-py is not installed") from error
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded) as error:
            raise SourceAbsent("no NVIDIA driver") from error
        try:
            now = self._now()
            self._gpus = [
                _Gpu(nvml, f"cuda:{number}", handle, now) for number, handle in enumerate(_visible(nvml))
            ]
        except BaseException:
            nvml.nvmlShutdown()
            raise
        if not self._gpus:
            nvml.nvmlShutdown()
            raise SourceAbsent("no GPU is visible")

    def sample(self) -> list[Reading]:
        """Return a reading of each GPU. Raises what NVML raises: a GPU that is lost, for one."""
        readings = (gpu.read(self._now()) for gpu in self._gpus)
        return [reading for reading in readings if reading is not None]

    def close(self) -> None:
        """Free the counters and leave the driver."""
        for gpu in self._gpus:
            gpu.close()
        if self._gpus:
            self._gpus = []
            self._nvml.nvmlShutdown()


def _visible(nvml: Any) -> list[Any]:
    """Return the handles of the GPUs that CUDA shows this process, in its order."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    count: int = nvml.nvmlDeviceGetCount()
    if listed is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    handles = []
    for entry in (part.strip() for part in listed.split(",")):
        if entry.isdecimal() and int(entry) < count:
            handles.append(nvml.nvmlDeviceGetHandleByIndex(int(entry)))
        elif entry.startswith("GPU-"):
            handles.append(_by_uuid(nvml, entry, count))
        elif entry.startswith("MIG-"):
            raise SourceFailed(
                "CUDA_VISIBLE_DEVICES names a slice of a GPU (MIG), whose use NVML does not tell"
            )
        else:
            break  # as CUDA does: what stands behind an invalid entry is not visible
    return handles


def _by_uuid(nvml: Any, start: str, count: int) -> Any:
    """Return the GPU whose id begins with `start`: CUDA takes abbreviations."""
    for index in range(count):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if nvml.nvmlDeviceGetUUID(handle).startswith(start):
            return handle
    raise SourceFailed(f"CUDA_VISIBLE_DEVICES names {start}, which NVML does not know")


class _Gpu:
    """One GPU, the way it is measured, and what the last read left behind."""

    def __init__(self, nvml: Any, device: str, handle: Any, now: float) -> None:
        self._nvml = nvml
        self._device = device
        self._handle = handle
        self._since = now
        self._counters: list[Any] = []
        self._newest_us = 0
        self._rings = True
        if self._has_counters():
            self._counters = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            nvml.nvmlGpmSampleGet(handle, self._counters[0])
        else:
            self._ring()  # what it holds by now is of before

    def read(self, now: float) -> Reading | None:
        """Return its use since the last reading; None where that is too short ago."""
        nvml, window_s = self._nvml, now - self._since
        source, sm_active = "nvml", None
        if self._counters:
            if window_s < GPM_READ_S_MIN:
                return None
            source = "gpm"
            utilization, sm_active = self._counted()
        else:
            share = self._ring()
            if share is None:
                share = share_of(nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
            utilization = share
        self._since = now
        memory = nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return Reading(
            self._device, None, utilization, memory.used, window_s, source, sm_active, memory.total
        )

    def close(self) -> None:
        """Free the counters."""
        for counter in self._counters:
            self._nvml.nvmlGpmSampleFree(counter)
        self._counters = []

    def _has_counters(self) -> bool:
        try:
            return bool(self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except self._nvml.NVMLError:  # of before GPM: the driver does not know the question
            return False

    def _counted(self) -> tuple[float, float | None]:
        """Return busy share and share of active multiprocessors between the counters' last read and now."""
        nvml, (before, after) = self._nvml, self._counters
        nvml.nvmlGpmSampleGet(self._handle, after)
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
        asked.sample1, asked.sample2 = before, after
        asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_GRAPHICS_UTIL
        asked.metrics[1].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        nvml.nvmlGpmMetricsGet(asked)
        self._counters = [after, before]
        busy, active = asked.metrics[0], asked.metrics[1]
        if busy.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(busy.nvmlReturn)
        return share_of(busy.value), share_of(
            active.value
        ) if active.nvmlReturn == nvml.NVML_SUCCESS else None

    def _ring(self) -> float | None:
        """Return the mean of the driver's samples since the last look; None where it keeps none, or has no new one."""
        nvml = self._nvml
        if not self._rings:
            return None
        try:
            _, samples = nvml.nvmlDeviceGetSamples(
                self._handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, self._newest_us
            )
        except nvml.NVMLError_NotFound:  # none is newer
            return None
        except nvml.NVMLError_NotSupported:
            self._rings = False
            return None
        fresh = [sample for sample in samples if sample.timeStamp > self._newest_us]
        if not fresh:
            return None
        self._newest_us = max(sample.timeStamp for sample in fresh)
        return share_of(sum(sample.sampleValue.uiVal for sample in fresh) / len(fresh))
