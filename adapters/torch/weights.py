"""Models and weights: a Hugging Face causal LM from a folder, and safetensors files of its state.

Learner and engines exchange weights as one safetensors file with the whole state dict of the model, named as
transformers names it. Nothing here unpickles: a folder without safetensors is refused, and code that lies in a
model folder is never run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ..weights.file import Bucket, TensorSpec, WeightsWriter


class WeightsUnusable(Exception):
    """A weights file or model folder is missing, damaged, or not of this model."""


class WeightsNotWritten(Exception):
    """A weights file could not be written: a full or read-only disk, say."""


def resolve_device(device: str) -> torch.device:
    """Return the torch device that a configuration's `device` means; ``"auto"`` is CUDA where there is one.

    Raises ValueError with one line when PyTorch on this machine has no such device.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        backend = torch.get_device_module(found)
    except RuntimeError:
        raise ValueError(f"'{device}' is no device: expected 'auto', 'cpu', 'cuda', 'cuda:1', ...") from None
    count = backend.device_count() if backend.is_available() else 0
    if count == 0:
        raise ValueError(
            f"'{device}': PyTorch {torch.__version__} finds no {found.type} device on this machine"
        )
    if (found.index or 0) >= count:
        raise ValueError(f"'{device}': the {found.type} devices of this machine are 0 to {count - 1}")
    return found


def model_of_folder(
    model_path: Path, device: torch.device, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """Return a model of the folder's config.json with fresh random weights, drawn from torch's global generator.

    `dtype` None is float32 on a CPU (where bfloat16 is slow) and the config's own elsewhere.
    Raises `WeightsUnusable`.
    """
    try:
        config = AutoConfig.from_pretrained(model_path, local_files_only=True, trust_remote_code=False)
        chosen = dtype or _default_dtype(device, config.dtype)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=chosen, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise WeightsUnusable(f"{model_path} is no usable model folder: {error}") from error
    model.to(device)  # type: ignore[arg-type]
    return model


def pretrained_model(
    model_path: Path, device: torch.device, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """Return the folder's model with the folder's own weights (safetensors only). Raises `WeightsUnusable`."""
    try:
        config = AutoConfig.from_pretrained(model_path, local_files_only=True, trust_remote_code=False)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            model_path,
            dtype=dtype or _default_dtype(device, config.dtype),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise WeightsUnusable(f"{model_path} is no usable model folder: {error}") from error
    model.to(device)  # type: ignore[arg-type]
    return model


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, on the CPU. Raises `WeightsUnusable`."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise WeightsUnusable(f"{path} is no usable weights file: {error}") from error


TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""Types of tensors by their names in safetensors."""


def tensors_of(bucket: Bucket, data: bytearray) -> dict[str, torch.Tensor]:
    """Return the tensors of a bucket, on the CPU; they share the memory of its bytes, `data`."""
    return {
        spec.name: torch.frombuffer(part, dtype=TYPES[spec.dtype]).reshape(spec.shape)
        if part
        else torch.empty(spec.shape, dtype=TYPES[spec.dtype])
        for spec, part in bucket.split(data)
    }


@torch.no_grad()
def put_weights(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy `tensors` into `model`, in place and in the model's own dtype and device.

    A tied parameter may be missing (it follows the one it is tied to). Everything is checked before the first
    copy: `WeightsUnusable` is raised for a missing, unknown or differently shaped tensor and leaves the model as it
    was.
    """
    state = model.state_dict()
    present = {state[name].data_ptr() for name in tensors if name in state}
    missing = [
        name for name, tensor in state.items() if name not in tensors and tensor.data_ptr() not in present
    ]
    unknown = [name for name in tensors if name not in state]
    if missing or unknown:
        raise WeightsUnusable(f"not the weights of this model: missing {missing[:3]}, unknown {unknown[:3]}")
    for name, tensor in tensors.items():
        if state[name].shape != tensor.shape:
            raise WeightsUnusable(
                f"{name} has shape {list(tensor.shape)}, the model's has {list(state[name].shape)}"
            )
    for name, tensor in tensors.items():
        state[name].copy_(tensor)


def write_weights(model: PreTrainedModel, path: Path, *, durable: bool) -> int:
    """Write the state of `model` to `path`, under its name only once it is whole; return its bytes.

    `durable` waits for the disk: a checkpoint has to, weights on their way to an engine do not, since a run that
    is resumed begins with a checkpoint. Of tied parameters only the first is written.

    Raises `WeightsNotWritten`, and then leaves nothing of it behind: on a full disk the log needs the room.
    """
    seen: set[int] = set()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        tensors[name] = tensor.detach().cpu().contiguous()
    partial = path.with_name(path.name + ".partial")
    try:
        save_file(tensors, partial)
        size = partial.stat().st_size
        if durable:
            flush(partial)
        partial.replace(path)
        if durable:
            flush(path.parent)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            partial.unlink()
        raise WeightsNotWritten(f"{path} could not be written: {error}") from error
    return size


def publish_weights(model: PreTrainedModel, path: Path, bucket_bytes: int) -> dict[str, Any]:
    """Write the state of `model` to `path` for the engines, and return what `WrittenWeights` holds.

    Raises `WeightsNotWritten`, and then leaves nothing of it behind.
    """
    names = {dtype: name for name, dtype in TYPES.items()}
    tensors = {tensor.data_ptr(): (name, tensor) for name, tensor in reversed(model.state_dict().items())}
    state = {name: tensor.detach() for name, tensor in reversed(tensors.values())}
    specs = [TensorSpec(name, names[tensor.dtype], tuple(tensor.shape)) for name, tensor in state.items()]
    try:
        with WeightsWriter(path, specs, bucket_bytes) as writer:
            for bucket in writer.buckets:
                writer.write([_bytes_of(state[spec.name]) for spec in bucket])
            size = writer.finish()
    except OSError as error:
        raise WeightsNotWritten(f"{path} could not be written: {error}") from error
    return {
        "path": str(path),
        "size_bytes": size,
        "tensors": len(specs),
        "buckets": len(writer.buckets),
        "digest": writer.digest,
    }


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    array: NDArray[np.uint8] = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return array.data


def flush(path: Path) -> None:
    """Wait until the file or folder `path` is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _default_dtype(device: torch.device, configured: torch.dtype | None) -> torch.dtype:
    return torch.float32 if device.type == "cpu" or configured is None else configured
