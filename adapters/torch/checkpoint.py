"""Checkpoint folders of one rank: what a learner needs to go on, and an ordinary model folder for everybody else.

    model.safetensors       weights
    optimizer.safetensors   Adam's moments, ``exp_avg/NAME`` and ``exp_avg_sq/NAME``
    learner.json            version and optimizer steps
    config.json, ...        copies of the model folder's configuration and tokenizer

Nothing is pickled, and no code is copied. A folder appears under its name only when everything in it is on the disk.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
from safetensors.torch import save_file
from transformers import PreTrainedModel

from .optimizer import NamedAdamW
from .weights import WeightsUnusable, flush, put_weights, read_weights, write_weights

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
LEARNER = "learner.json"
FORMAT = 1
FORMATS = (FORMAT, 2)
"""1 is of one rank, 2 is of several: see `sharded_checkpoint`."""

_COPIED_SUFFIXES = (".json", ".jinja", ".txt", ".model")
"""Configuration, chat template, vocabulary and merges, sentencepiece model."""
_COPIED_BYTES_MAX = 64 * 2**20


class LearnerState(msgspec.Struct, frozen=True):
    """The scalars of a checkpoint."""

    format: int
    version: int
    optimizer_steps: int


def write_checkpoint(
    path: Path, model: PreTrainedModel, optimizer: NamedAdamW, version: int, model_folder: Path
) -> int:
    """Write the checkpoint folder `path`, in the place of one that is there; return its bytes.

    Whole or not at all: what fails half-way (OSError, SafetensorError, WeightsNotWritten) leaves nothing under `path`
    but what was there.
    """
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        copy_model_files(model_folder, partial)
        write_weights(model, partial / MODEL, durable=True)
        save_file(optimizer.tensors(), partial / OPTIMIZER)
        state = LearnerState(FORMAT, version, optimizer.steps)
        (partial / LEARNER).write_bytes(msgspec.json.encode(state))
        for file in [*partial.iterdir(), partial]:
            flush(file)
        size = sum(file.stat().st_size for file in partial.iterdir())
        put_in_place(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return size


def read_checkpoint(path: Path, model: PreTrainedModel, optimizer: NamedAdamW) -> int:
    """Put the checkpoint `path` of one rank into `model` and `optimizer`; return its version.

    Raises `WeightsUnusable`.
    """
    state = read_state(path)
    put_weights(model, read_weights(path / MODEL))
    optimizer.restore(state.optimizer_steps, read_weights(path / OPTIMIZER))
    return state.version


def read_state(path: Path) -> LearnerState:
    """Return the scalars of the checkpoint `path`. Raises `WeightsUnusable`."""
    try:
        state = msgspec.json.decode((path / LEARNER).read_bytes(), type=LearnerState)
    except (OSError, msgspec.MsgspecError) as error:
        raise WeightsUnusable(f"{path} is no usable checkpoint: {error}") from error
    if state.format not in FORMATS:
        raise WeightsUnusable(
            f"{path} has checkpoint format {state.format}, this version reads {' and '.join(map(str, FORMATS))}"
        )
    return state


def copy_model_files(source: Path, target: Path) -> None:
    """Copy configuration and tokenizer of the model folder `source`."""
    for file in sorted(source.iterdir()):
        small = file.is_file() and file.stat().st_size <= _COPIED_BYTES_MAX
        # An index names weights that are not copied.
        if small and file.suffix in _COPIED_SUFFIXES and not file.name.endswith(".index.json"):
            shutil.copyfile(file, target / file.name)


def put_in_place(partial: Path, path: Path) -> None:
    """Give `partial` the name `path`. A folder cannot be replaced in one move, so an old one first steps aside."""
    aside = path.with_name(path.name + ".replaced")
    shutil.rmtree(aside, ignore_errors=True)
    if path.exists():
        path.rename(aside)
    partial.rename(path)
    flush(path.parent)
    shutil.rmtree(aside, ignore_errors=True)
