"""The machines that a plan reckons with."""

from __future__ import annotations

import os

import pytest

from eventrain.adapters.planning.nodes import NodesUnknown, nodes_of_config, nodes_of_ray, this_machine
from eventrain.core.config import ClusterSection
from eventrain.core.placement import GIB, Node


def test_nodes_of_a_configuration_are_numbered_through():
    """Machines of several kinds become one list, sizes in bytes."""
    cluster = ClusterSection.model_validate(
        {
            "nodes": [
                {"count": 2, "cpus": 8, "memory_gib": 16},
                {"cpus": 96, "memory_gib": 960, "gpus": 8, "gpu_memory_gib": 80},
            ]
        }
    )
    assert nodes_of_config(cluster) == [
        Node("node-0", 8, 0, 16 * GIB, 0),
        Node("node-1", 8, 0, 16 * GIB, 0),
        Node("node-2", 96, 8, 960 * GIB, 80 * GIB),
    ]


@pytest.mark.parametrize(("visible", "count"), [(None, 2), ("1", 1), ("", 0)])
def test_gpus_are_those_that_cuda_shows(monkeypatch, visible, count):
    """This machine has the GPUs of CUDA_VISIBLE_DEVICES, with the memory that NVML gives the smallest of them."""
    pytest.importorskip("pynvml")
    from nvml_double import Gpu, Nvml

    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvml = Nvml(Gpu("GPU-0", total=80 * GIB), Gpu("GPU-1", total=40 * GIB))
    node = this_machine(nvml)
    assert (node.gpus, node.gpu_memory_bytes) == (count, 40 * GIB if count else 0)
    assert node.cpus == len(os.sched_getaffinity(0))
    assert node.memory_bytes > 0
    assert nvml.opened == 0


def test_a_slice_of_a_gpu_is_not_known(monkeypatch):
    """NVML does not tell the memory of what is visible: that is said, not guessed."""
    pytest.importorskip("pynvml")
    from nvml_double import Gpu, Nvml

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    with pytest.raises(NodesUnknown, match="slice of a GPU"):
        this_machine(Nvml(Gpu()))


def test_a_ray_cluster_cannot_be_asked_yet():
    """The line says what to write instead."""
    with pytest.raises(NodesUnknown, match=r"'10.0.0.1:6379' cannot be asked yet: .* \[\[cluster.nodes\]\]$"):
        nodes_of_ray(ClusterSection(kind="ray", address="10.0.0.1:6379"))
