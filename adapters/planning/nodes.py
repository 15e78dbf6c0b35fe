"""The machines that a plan reckons with: those of the configuration, this one, or those of a cluster."""

from __future__ import annotations

import importlib
import os
import socket

from ...core.config import ClusterSection
from ...core.placement import GIB, Node


class NodesUnknown(Exception):
    """The machines cannot be told; the message is one line that says why."""


def nodes_of_config(cluster: ClusterSection) -> list[Node]:
    """Return the machines that ``[[cluster.nodes]]`` describes, named ``node-0`` and on; none if it is not there."""
    kinds = [kind for kind in cluster.nodes for _ in range(kind.count)]
    return [
        Node(
            f"node-{number}",
            kind.cpus,
            kind.gpus,
            int(kind.memory_gib * GIB),
            int(kind.gpu_memory_gib * GIB),
        )
        for number, kind in enumerate(kinds)
    ]


def this_machine() -> Node:
    """Return this machine: the CPUs that this process may use, its memory, and the GPUs that NVML finds."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = _gpu_memory_bytes()
    return Node(
        socket.gethostname(), float(len(os.sched_getaffinity(0))), len(gpus), memory, min(gpus, default=0)
    )


def nodes_of_ray(cluster: ClusterSection) -> list[Node]:
    """Return the machines of the Ray cluster at `cluster.address`. Raises `NodesUnknown`."""
    raise NodesUnknown(
        f"the Ray cluster at '{cluster.address}' cannot be asked yet: describe its machines as [[cluster.nodes]]"
    )


def _gpu_memory_bytes() -> list[int]:
    """Return the memory of each GPU of this machine; none where NVML, a driver or a GPU is missing."""
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        return [int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles]
    finally:
        nvml.nvmlShutdown()
