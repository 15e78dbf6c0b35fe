"""Learners of one rank and of several, on a model whose parts cannot all be spread evenly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from eventrain.adapters.torch.learner import TorchLearner
from eventrain.adapters.torch.learner_process import make
from eventrain.core.config import AlgorithmSection, DeadlineSection, LearnerSection, ModelSection
from eventrain.core.ports import TrainBatch, TrainRow

from .training_rows import row

SETTINGS: dict[str, Any] = {
    "lr": 1e-2,
    "device": "cpu",
    "grad_clip": 0.5,
    "weight_decay": 0.1,
    "schedule": "cosine",
    "micro_batch_tokens": 40,
    "bucket_bytes": 3000,
}
ROWS = (7, 1, 5, 6)
"""Of each step: with one, a rank has none."""


def write_model(folder: Path) -> Path:
    """Write a tied model, of which one projection has two rows and a bias of two elements."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def batch_of(step: int, rows: int | None = None) -> TrainBatch:
    """Return the batch of a step: rows of uneven length."""
    count = ROWS[step] if rows is None else rows
    return TrainBatch(
        step,
        step,
        [TrainRow(**row(100 * step + number, 6 + 5 * number % 37, version=step)) for number in range(count)],
    )


@asynccontextmanager
async def learner_of(ranks: int, model: Path, logs: Path, **settings: Any) -> AsyncIterator[TorchLearner]:
    """Give a learner that is not started, and close it."""
    deadlines = DeadlineSection(start_s=90, close_s=10, rank_silence_s=settings.pop("rank_silence_s", 60))
    learner = TorchLearner(
        model,
        ModelSection(path=str(model)),
        LearnerSection(ranks=ranks, **{**SETTINGS, **settings}),
        AlgorithmSection(entropy_weight=0.01),
        0,
        8,
        1.0,
        logs / f"learner-of-{ranks}.log",
        deadlines,
    )
    try:
        yield learner
    finally:
        await learner.close()


def contents(model: Path, checkpoint: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], int]:
    """Return weights, moments and version of a checkpoint of any number of ranks, as one rank reads it."""
    process = make(
        {
            "model_path": str(model),
            "init": "pretrained",
            "section": LearnerSection(**SETTINGS).model_dump(),
            "algorithm": AlgorithmSection().model_dump(),
            "seed": 0,
            "steps": 8,
            "temperature": 1.0,
        }
    )
    info = process.start(str(checkpoint))
    weights = {name: tensor.detach() for name, tensor in process._model.named_parameters()}
    return weights, process._optimizer.tensors(), info["version"]


def close(
    left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], *, rtol: float = 1e-4, atol: float = 1e-6
) -> bool:
    """Return whether all tensors are equal but for the order of floating-point sums."""
    return left.keys() == right.keys() and all(
        torch.allclose(left[name], right[name], rtol=rtol, atol=atol) for name in left
    )


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Return whether all tensors are equal, bit by bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
