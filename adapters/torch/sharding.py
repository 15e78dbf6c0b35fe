"""A model spread over ranks: each holds a slice of every parameter, of its gradient and of its moments (FSDP2).

The whole of a layer is there only while it computes (arXiv 2304.11277; torch's `fully_shard`).
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import PreTrainedModel


def shard(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Spread `model`, which every rank has whole, over `mesh`, in place and onto the mesh's devices.

    Gradients are summed over the ranks, not averaged: each rank's loss is its share of the whole batch's already.
    """
    for layer in layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo can only add up, and for a factor of 1 nothing else is needed anywhere.
            module.set_force_sum_reduction_for_comms(enable=True)


def layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the parts of `model` that are gathered one at a time: those that transformers does not split either."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]
