"""The learner's weights on their way to the engines: gathered from all ranks and written bucket by bucket.

No rank holds more than one bucket of whole tensors at a time. Rank 0 alone writes; the others take part in the
gathering.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from ...core.ports import WrittenWeights
from ..weights.file import Bytes, TensorSpec, WeightsWriter
from .progress import Progress
from .rank_group import RankGroup
from .weights import TYPES, WeightsNotWritten, flush

NAMES = {dtype: name for name, dtype in TYPES.items()}
"""Of types, in safetensors."""


def own_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the state of `model` by name, each rank's slices of it; of tied parameters only the first."""
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def gather_weights(
    model: PreTrainedModel,
    path: Path,
    bucket_bytes: int,
    group: RankGroup,
    progress: Progress,
    *,
    durable: bool,
) -> WrittenWeights:
    """Write the weights of `model` to the file `path`, under its name only once it is whole.

    To be called by all ranks. `durable` waits for the disk: a checkpoint has to, weights on their way to an engine do
    not, since a run that is resumed begins with a checkpoint. Raises `WeightsNotWritten`, or `PeerFailed` on the ranks
    that do not write, and leaves nothing of it behind: on a full disk the log needs the room.
    """
    tensors = own_tensors(model)
    specs = [TensorSpec(name, NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()]
    writer, writes, size = WeightsWriter(path, specs, bucket_bytes), group.rank == 0, 0
    try:
        with ExitStack() as stack:
            with group.together():
                if writes:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(writer)
            for number, bucket in enumerate(writer.buckets):
                progress.mark(f"gather {number + 1}/{len(writer.buckets)}")
                gathered = [whole(tensors[spec.name]) for spec in bucket]
                with group.together():
                    if writes:
                        writer.write([bytes_of(tensor) for tensor in gathered])
            progress.mark("finish weights")
            with group.together():
                if writes:
                    size = writer.finish(durable=durable)
                    if durable:
                        flush(path.parent)
    except OSError as error:
        raise WeightsNotWritten(f"{path} could not be written: {error}") from error
    return WrittenWeights(str(path), size, len(specs), len(writer.buckets), writer.digest if writes else "")


def whole(tensor: Tensor) -> Tensor:
    """Return `tensor`, gathered from all ranks where it is spread over them."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def bytes_of(tensor: Tensor) -> Bytes:
    """Return the bytes of all elements; on a CPU, without a copy."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data
