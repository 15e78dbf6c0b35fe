"""The machines that a plan reckons with: those of the configuration, this one, or those of a cluster."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
from typing import Any

from ...core.config import ClusterSection
from ...core.placement import GIB, Node
from ..telemetry.devices.nvidia import visible_gpus
from ..telemetry.devices.source import SourceFailed


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


def this_machine(library: Any = None) -> Node:
    """Return this machine: the CPUs that this process may use, its memory, and the GPUs that CUDA shows it.

    `library` is the pynvml module, or a double of it. Raises `NodesUnknown` where GPUs are visible that NVML does not
    know.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = _gpu_memory_bytes(library)
    cpus = float(len(os.sched_getaffinity(0)))
    return Node(socket.gethostname(), cpus, len(gpus), memory, min(gpus, default=0))


def nodes_of_ray(cluster: ClusterSection) -> list[Node]:
    """Return the machines of the Ray cluster at `cluster.address`; nothing is left there.

    Raises `NodesUnknown`, also where there is no answer within `cluster.connect_s`.
    """
    from ..ray import ClusterRefused  # a plan of described machines does without
    from ..ray.nodes import nodes_there

    try:
        return asyncio.run(nodes_there(cluster))
    except ClusterRefused as error:
        raise NodesUnknown(str(error)) from error


def _gpu_memory_bytes(library: Any) -> list[int]:
    """Return the memory of each GPU of this machine; none where NVML, a driver or a GPU is missing."""
    try:
        nvml = library or importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return [int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in visible_gpus(nvml)]
    except SourceFailed as error:
        raise NodesUnknown(str(error)) from error
    finally:
        nvml.nvmlShutdown()
