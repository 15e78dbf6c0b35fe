"""The inside of the learner's process: the weights, the optimizer, and one step after another.

The objective is in `grpo`, the cutting into micro-batches in `batches`; here they meet the model. Everything is
deterministic but for the order of floating-point sums: dropout is off (`eval` mode), because the engines that sampled
the tokens had none either and the importance weights compare the two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from ...core.config import AlgorithmSection, LearnerSection
from ...core.ports import CheckpointError
from .batches import BatchUnusable, MicroBatch, decode_row, micro_batches
from .checkpoint import read_checkpoint, write_checkpoint
from .grpo import Clip, sampled_logprobs, token_terms
from .optimizer import NamedAdamW, learning_rate
from .weights import WeightsNotWritten, model_of_folder, pretrained_model, publish_weights, resolve_device


class NotFinite(Exception):
    """Loss or gradient became NaN or infinite; no optimizer step was made with it."""


class LearnerSettings(msgspec.Struct, frozen=True):
    """What a learner's process is started with."""

    model_path: str
    init: str
    section: dict[str, Any]
    algorithm: dict[str, Any]
    seed: int
    steps: int
    temperature: float


class LearnerProcess:
    """Answers the calls of `learner.TorchLearner`, one after another."""

    def __init__(self, settings: LearnerSettings) -> None:
        self._settings = settings
        self._section = LearnerSection.model_validate(settings.section)
        self._algorithm = AlgorithmSection.model_validate(settings.algorithm)
        self._clip = Clip(self._algorithm.clip_low, self._algorithm.clip_high, self._algorithm.importance_cap)
        self._version = 0
        self._model: PreTrainedModel
        self._optimizer: NamedAdamW
        torch.set_num_threads(self._section.threads)

    def start(self, checkpoint: str | None) -> dict[str, Any]:
        """Load the model, or the checkpoint. Raises `WeightsUnusable`."""
        folder, device = Path(self._settings.model_path), resolve_device(self._section.device)
        # float32 everywhere: AdamW's small updates vanish in bfloat16 weights.
        if self._settings.init == "random" or checkpoint is not None:
            torch.manual_seed(self._settings.seed)
            self._model = model_of_folder(folder, device, torch.float32)
        else:
            self._model = pretrained_model(folder, device, torch.float32)
        self._model.train(False)
        self._optimizer = NamedAdamW(self._model, self._section)
        self._version = 0
        if checkpoint is not None:
            self._version = read_checkpoint(Path(checkpoint), self._model, self._optimizer)
        parameters = sum(parameter.numel() for parameter in self._model.parameters())
        return {"version": self._version, "parameters": parameters, "device": str(device)}

    def train(self, step: int, version: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make one optimizer step. Raises `BatchUnusable` and `NotFinite`, both before the weights change."""
        if version != self._version:
            raise BatchUnusable(
                f"step {step} is of version {version}, but the learner holds version {self._version}"
            )
        began = time.perf_counter()
        vocabulary = self._model.config.get_text_config().vocab_size
        decoded = [decode_row(row, vocabulary) for row in rows]
        tokens = sum(int(row.sampled.sum()) for row in decoded)
        if tokens == 0:
            raise BatchUnusable(f"the batch of step {step} has no sampled token to train on")
        parts = micro_batches(decoded, self._section.micro_batch_tokens, self._model.device)
        ready = time.perf_counter()
        sums = self._accumulate(step, parts, tokens)
        grad_norm = self._clipped_gradient(step)
        differentiated = time.perf_counter()
        lr = learning_rate(self._section, step, self._settings.steps)
        self._optimizer.step(lr)
        self._version += 1
        done = time.perf_counter()
        return {
            "loss": sums.pop("loss"),
            "metrics": {"grad_norm": grad_norm, "lr": lr, "tokens": float(tokens), **sums},
            "seconds": {
                "batch": ready - began,
                "forward_backward": differentiated - ready,
                "optimizer": done - differentiated,
            },
        }

    def publish(self, path: str) -> dict[str, Any]:
        """Write the weights to the safetensors file `path`. Raises `WeightsNotWritten`, or OSError for its folder."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return publish_weights(self._model, Path(path), self._section.bucket_bytes)

    def checkpoint(self, path: str) -> dict[str, Any]:
        """Write a checkpoint folder. Raises `CheckpointError`."""
        folder = Path(self._settings.model_path)
        try:
            size = write_checkpoint(Path(path), self._model, self._optimizer, self._version, folder)
        except WeightsNotWritten as error:
            raise CheckpointError(str(error)) from error
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} could not be written: {error}") from error
        return {"path": path, "size_bytes": size}

    def _accumulate(self, step: int, parts: Sequence[MicroBatch], tokens: int) -> dict[str, float]:
        """Add the whole batch's gradient to the parameters; return the loss and the means of the metrics.

        Every micro-batch is divided by `tokens`, the sampled tokens of the whole batch: so the sum of their
        gradients is that of one big batch, however it was cut.
        """
        means = torch.zeros(len(_MEANS), dtype=torch.float64)
        importance_max = 0.0
        for part in parts:
            loss, terms = self._loss(part, tokens)
            if not math.isfinite(loss.item()):
                self._optimizer.clear()
                raise NotFinite(
                    f"step {step}: the loss is {loss.item()}; no optimizer step was made. "
                    "A lower learner.lr or learner.grad_clip may help"
                )
            loss.backward()  # type: ignore[no-untyped-call]
            means += terms.double().sum(dim=1).cpu() / tokens
            importance_max = max(importance_max, terms[_MEANS.index("importance_mean")].max().item())
        return {**dict(zip(_MEANS, means.tolist(), strict=True)), "importance_max": importance_max}

    def _loss(self, part: MicroBatch, tokens: int) -> tuple[Tensor, Tensor]:
        """Return this micro-batch's share of the loss, and the per-token values [metrics, n] behind `_MEANS`."""
        # No attention mask: padding is at the right, and causal attention keeps it out of every token before it.
        logits = self._model(input_ids=part.tokens, use_cache=False).logits[:, :-1][part.sampled]
        chosen, entropy = sampled_logprobs(
            logits, part.tokens[:, 1:][part.sampled], self._settings.temperature
        )
        # One step per batch: the policy at the start of the step is the one that is differentiated.
        terms = token_terms(chosen, chosen.detach(), part.logprobs, part.advantages, self._clip)
        objective = terms.objective
        if self._algorithm.entropy_weight:
            objective = objective + self._algorithm.entropy_weight * entropy
        stale = part.versions < self._version
        values = (-objective, entropy, terms.kl, terms.clipped, terms.importance, terms.truncated, stale)
        return -objective.sum() / tokens, torch.stack([value.detach().float() for value in values])

    def _clipped_gradient(self, step: int) -> float:
        """Clip the gradient's global norm; return the norm before."""
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._section.grad_clip).item()
        if not math.isfinite(norm):
            self._optimizer.clear()
            raise NotFinite(f"step {step}: the norm of the gradient is {norm}; no optimizer step was made")
        return norm


_MEANS = ("loss", "entropy", "kl", "clip_share", "importance_mean", "truncated_share", "stale_token_share")
"""Means over the sampled tokens of a batch, in the order in which `LearnerProcess._loss` returns them."""


def make(settings: dict[str, Any]) -> LearnerProcess:
    """Return what the worker process serves."""
    return LearnerProcess(msgspec.convert(settings, LearnerSettings))
