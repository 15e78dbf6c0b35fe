"""Checkpoint folders of several ranks, and how any number of ranks reads any of them.

    model.safetensors       weights, whole, as engines are given them: rank 0 writes what all gather, bucket by bucket
    optimizer/              Adam's moments, ``exp_avg/NAME`` and ``exp_avg_sq/NAME``: each rank writes its slices
    learner.json            version and optimizer steps
    config.json, ...        as in `checkpoint`

So the folder is an ordinary model folder, and two thirds of its bytes are written by all ranks at once. The slices are
safetensors too, by torch's distributed checkpoints; nothing in the folder is pickled. (While they write, the ranks send
each other the plan of it, which torch pickles.)

Reading needs no other rank: each reads the slices that it will hold, wherever the files have them.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import PreTrainedModel

from .checkpoint import LEARNER, MODEL, LearnerState, copy_model_files, put_in_place, read_state
from .optimizer import NamedAdamW
from .progress import Progress
from .publishing import gather_weights, own_tensors
from .rank_group import RankGroup
from .weights import WeightsUnusable, flush

OPTIMIZER = "optimizer"
SHARDED = 2
"""Format of a folder whose moments are in slices."""


def write_sharded(
    path: Path,
    model: PreTrainedModel,
    optimizer: NamedAdamW,
    version: int,
    model_folder: Path,
    bucket_bytes: int,
    group: RankGroup,
    progress: Progress,
) -> int:
    """Write the checkpoint folder `path`, in the place of one that is there; return its bytes, 0 but on rank 0.

    To be called by all ranks, for which `path` must be the same folder. Whole or not at all: what fails half-way on
    any rank (OSError, SafetensorError, WeightsNotWritten; `PeerFailed` on the others) leaves nothing under `path` but
    what was there.
    """
    partial, size = path.with_name(path.name + ".partial"), 0
    try:
        progress.mark("checkpoint folder")
        with group.together():
            if group.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
                (partial / OPTIMIZER).mkdir(parents=True)
                copy_model_files(model_folder, partial)
        gather_weights(model, partial / MODEL, bucket_bytes, group, progress, durable=True)
        progress.mark("checkpoint moments")
        _write_moments(partial / OPTIMIZER, optimizer.moments())
        progress.mark("checkpoint flush")
        with group.together():
            if group.rank == 0:
                state = LearnerState(SHARDED, version, optimizer.steps)
                (partial / LEARNER).write_bytes(msgspec.json.encode(state))
                for entry in [*partial.rglob("*"), partial]:
                    flush(entry)
                size = sum(file.stat().st_size for file in partial.rglob("*") if file.is_file())
                put_in_place(partial, path)
    except BaseException:
        if group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return size


def _write_moments(folder: Path, moments: Mapping[str, Tensor]) -> None:
    """Write this rank's slices, flushed. Raises OSError on all ranks when any of them could not."""
    if not moments:
        return
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # newer than one rank needs

    try:
        save(dict(moments), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:  # a BaseException, which would end the process
        raise OSError(_causes(error)) from error


def read_sharded(path: Path, model: PreTrainedModel, optimizer: NamedAdamW) -> int:
    """Put the checkpoint `path` into `model` and `optimizer`; return its version. Raises `WeightsUnusable`.

    Model and optimizer may be whole or spread over ranks, and so may the checkpoint.
    """
    state = read_state(path)
    _read(path, own_tensors(model))
    moments = optimizer.empty_moments() if state.optimizer_steps else {}
    if moments:
        _read(path / OPTIMIZER if state.format == SHARDED else path, moments)
    optimizer.restore(state.optimizer_steps, moments)
    return state.version


def _read(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill `tensors` from the safetensors files in `folder`."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # as above

    try:
        reader = HuggingFaceStorageReader(str(folder))
        with warnings.catch_warnings():
            # That each rank reads for itself is what is meant.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            load(tensors, storage_reader=reader, no_dist=True)
    except (OSError, SafetensorError, CheckpointException) as error:
        cause = _causes(error) if isinstance(error, CheckpointException) else error
        raise WeightsUnusable(f"{folder} does not hold what this model needs: {cause}") from error


def _causes(error: CheckpointException) -> str:
    return "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in sorted(error.failures.items())) or str(
        error
    )
