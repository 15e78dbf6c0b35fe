"""The machines that a plan reckons with."""

from __future__ import annotations

import os
import socket

import pytest

from eventrain.adapters.planning.nodes import NodesUnknown, nodes_of_config, nodes_of_ray, this_machine
from eventrain.adapters.ray.nodes import nodes_told
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


def test_a_cluster_that_nobody_carries_is_not_known():
    """Without anything at its address the line says so, whatever is installed."""
    pytest.importorskip("ray")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"  # bound, and nobody listens
        with pytest.raises(NodesUnknown, match=rf"^the Ray cluster at '{address}' cannot be reached: "):
            nodes_of_ray(ClusterSection(kind="ray", address=address))


def test_nodes_of_a_cluster_have_names_of_their_own():
    """Two nodes of one machine are told apart, a dead one is not reckoned with, and GPUs have no known memory."""

    def told(number: int, name: str, alive: bool = True, **resources: float) -> dict[str, object]:
        return {
            "Alive": alive,
            "NodeID": f"{number:x}" * 56,
            "NodeName": name,
            "NodeManagerAddress": "10.0.0.9",
            "Resources": {"node:x": 1.0, **resources},
        }

    assert nodes_told(
        [
            told(10, "10.0.0.1", CPU=8.0, GPU=2.0, memory=4e9),
            told(11, "10.0.0.2", CPU=4.0),
            told(12, "10.0.0.2"),
            told(13, "10.0.0.3", alive=False, CPU=64.0),
        ]
    ) == [
        Node("10.0.0.1", 8, 2, 4 * 10**9, 0),
        Node("10.0.0.2/bbbbbbbb", 4),
        Node("10.0.0.2/cccccccc", 0),
    ]
