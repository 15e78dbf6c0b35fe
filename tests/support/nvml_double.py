"""What NVML does, as far as the sampler of GPUs asks it: the pynvml module's own types, without a driver.

Functions have the names and arguments of pynvml's, which a test compares with the installed module.
"""

# ruff: noqa: N803 - the arguments have the names that pynvml gives them

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml


@dataclass
class Gpu:
    """One GPU. `busy` and `active` are percent from second to second, by the double's clock."""

    uuid: str = "GPU-0"
    has_counters: bool = False
    has_ring: bool = True
    rate: int = 0
    ring: list[tuple[int, int]] = field(default_factory=list)
    """(microseconds, percent)"""
    busy: Callable[[float], float] = lambda second: 0.0
    active: Callable[[float], float] = lambda second: 0.0
    used: int = 0
    total: int = 80 * 2**30
    lost: bool = False


class Nvml:
    """A double of the pynvml module on `gpus`."""

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus
        self.now_s = 0.0
        self.opened = 0
        self.counters = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            raise AttributeError(f"the double has no {name}")
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle: Gpu) -> str:
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu, version: Any = None) -> Any:
        return SimpleNamespace(used=handle.used, total=handle.total)

    def nvmlDeviceGetUtilizationRates(self, handle: Gpu) -> Any:
        if handle.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(gpu=handle.rate)

    def nvmlDeviceGetSamples(self, device: Gpu, sampling_type: int, timeStamp: int) -> tuple[int, list[Any]]:
        assert sampling_type == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        if not device.has_ring:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        samples = []
        for at_us, percent in device.ring:
            if at_us > timeStamp:
                sample = pynvml.c_nvmlSample_t()
                sample.timeStamp, sample.sampleValue.uiVal = at_us, percent
                samples.append(sample)
        if not samples:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, samples

    def nvmlGpmQueryDeviceSupport(self, device: Gpu) -> Any:
        if self.gpus and not device.has_counters and not device.has_ring:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)  # an old driver
        return SimpleNamespace(isSupportedDevice=int(device.has_counters))

    def nvmlGpmSampleAlloc(self) -> Any:
        self.counters += 1
        return pynvml.c_nvmlGpmSample_t(pynvml.struct_c_nvmlGpmSample_t())

    def nvmlGpmSampleFree(self, gpmSample: Any) -> None:
        self.counters -= 1

    def nvmlGpmSampleGet(self, device: Gpu, gpmSample: Any) -> Any:
        _READ_AT[_address(gpmSample)] = (device, self.now_s)
        return gpmSample

    def nvmlGpmMetricsGet(self, metricsGet: Any) -> Any:
        assert isinstance(metricsGet, pynvml.c_nvmlGpmMetricsGet_t)
        assert metricsGet.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        gpu, since = _READ_AT[_address(metricsGet.sample1)]
        _, until = _READ_AT[_address(metricsGet.sample2)]
        assert since < until
        for place in range(metricsGet.numMetrics):
            metric = metricsGet.metrics[place]
            curve = {1: gpu.busy, 2: gpu.active}[metric.metricId]
            ticks = [since + (until - since) * (n + 0.5) / 1000 for n in range(1000)]
            metric.value, metric.nvmlReturn = sum(map(curve, ticks)) / 1000, pynvml.NVML_SUCCESS
        return metricsGet


_READ_AT: dict[int, tuple[Gpu, float]] = {}


def _address(sample: Any) -> int:
    import ctypes

    return ctypes.addressof(sample.contents)
