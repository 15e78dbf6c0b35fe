"""The inside of a rank of the learner: the weights, the optimizer, and one step after another.

The objective is in `grpo`, the cutting into micro-batches in `batches`; here they meet the model. With several ranks
each has its slices of the weights (`sharding`) and its rows of the batch, and all are called with the same method at
the same time: every pass through the model is one that they make together. With one nothing is exchanged. Everything is
deterministic but for the order of floating-point sums: dropout is off (`eval` mode), because the engines that sampled
the tokens had none either and the importance weights compare the two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from ...core.config import AlgorithmSection, LearnerSection
from ...core.ports import CheckpointError
from .batches import BatchUnusable, MicroBatch, Row, decode_row, empty_micro_batch, micro_batches
from .checkpoint import FORMAT, read_checkpoint, read_state, write_checkpoint
from .grpo import Clip, sampled_logprobs, token_terms
from .optimizer import NamedAdamW, learning_rate
from .progress import IDLE, Progress, Where
from .publishing import gather_weights, whole
from .rank_group import RankGroup, rank_device
from .sharded_checkpoint import read_sharded, write_sharded
from .sharding import shard
from .weights import WeightsNotWritten, model_of_folder, pretrained_model, resolve_device


class NotFinite(Exception):
    """Loss or gradient became NaN or infinite; no optimizer step was made with it."""


class LearnerSettings(msgspec.Struct, frozen=True):
    """What a rank's process is started with."""

    model_path: str
    init: str
    section: dict[str, Any]
    algorithm: dict[str, Any]
    seed: int
    steps: int
    temperature: float
    rank: int = 0
    timeout_s: float = 600.0
    """How long ranks wait for each other; a second line, since the controller watches them."""


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
        self._progress = Progress()
        ranks = self._section.ranks
        self._device = rank_device(resolve_device(self._section.device), settings.rank, ranks)
        self._group = RankGroup(settings.rank, ranks, self._device, settings.timeout_s)
        torch.set_num_threads(self._section.threads)

    async def where(self) -> Where:
        """Return what this rank does now; answered while it computes, and while it waits for another rank."""
        return self._progress.now

    def offer(self, *, local: bool) -> str:
        """Open the place where the ranks meet, and return its address; of rank 0 alone."""
        return self._group.offer(local=local)

    def join(self, address: str) -> None:
        """Meet the other ranks at `address`."""
        self._progress.mark("join")
        self._group.join(address)

    def start(self, checkpoint: str | None) -> dict[str, Any]:
        """Load the model, or the checkpoint. Raises `WeightsUnusable`."""
        self._progress.mark("load model")
        with self._group.together():
            self._model = self._loaded(fresh=checkpoint is not None)
        if self._group.mesh is not None:
            self._progress.mark("shard")
            shard(self._model, self._group.mesh)
        self._optimizer = NamedAdamW(self._model, self._section)
        self._version = 0
        if checkpoint is not None:
            self._progress.mark("read checkpoint")
            with self._group.together():
                self._version = self._restored(Path(checkpoint))
        parameters = sum(parameter.numel() for parameter in self._model.parameters())
        self._progress.mark(IDLE)
        return {"version": self._version, "parameters": parameters, "device": str(self._device)}

    def train(self, step: int, version: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make one optimizer step. Raises `BatchUnusable` and `NotFinite`, both before the weights change.

        `rows` are those of this rank.
        """
        began = time.perf_counter()
        self._progress.mark("batch")
        with self._group.together():
            decoded = self._decoded(step, version, rows)
        tokens = int(self._group.total(torch.tensor(sum(int(row.sampled.sum()) for row in decoded))))
        if tokens == 0:
            raise BatchUnusable(f"the batch of step {step} has no sampled token to train on")
        parts = micro_batches(decoded, self._section.micro_batch_tokens, self._device)
        # A pass through a model that is spread over ranks is one that all of them make.
        passes = int(self._group.largest(len(parts)))
        parts += [empty_micro_batch(self._device)] * (passes - len(parts))
        ready = time.perf_counter()
        sums = self._accumulate(step, parts, tokens)
        grad_norm = self._clipped_gradient(step)
        differentiated = time.perf_counter()
        lr = learning_rate(self._section, step, self._settings.steps)
        self._progress.mark("optimizer")
        self._optimizer.step(lr)
        self._version += 1
        done = time.perf_counter()
        self._progress.mark(IDLE)
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
        """Write the weights to the safetensors file `path`. Raises `WeightsNotWritten`."""
        bucket_bytes = self._section.bucket_bytes
        written = gather_weights(
            self._model, Path(path), bucket_bytes, self._group, self._progress, durable=False
        )
        self._progress.mark(IDLE)
        return asdict(written)

    def checkpoint(self, path: str) -> dict[str, Any]:
        """Write a checkpoint folder. Raises `CheckpointError`."""
        try:
            size = self._write_checkpoint(Path(path))
        except WeightsNotWritten as error:
            raise CheckpointError(str(error)) from error
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} could not be written: {error}") from error
        self._progress.mark(IDLE)
        return {"path": path, "size_bytes": size}

    def _loaded(self, *, fresh: bool) -> PreTrainedModel:
        """Return the whole model; a checkpoint is read into a `fresh` one."""
        # Each rank loads it where there is room for all of it, and then keeps its slices.
        device = self._device if self._group.ranks == 1 else torch.device("cpu")
        folder = Path(self._settings.model_path)
        # float32 everywhere: AdamW's small updates vanish in bfloat16 weights.
        if self._settings.init == "random" or fresh:
            torch.manual_seed(self._settings.seed)
            model = model_of_folder(folder, device, torch.float32)
        else:
            model = pretrained_model(folder, device, torch.float32)
        model.train(False)
        return model

    def _restored(self, checkpoint: Path) -> int:
        """Put `checkpoint` into model and optimizer; return its version."""
        if self._group.ranks == 1 and read_state(checkpoint).format == FORMAT:
            return read_checkpoint(checkpoint, self._model, self._optimizer)
        return read_sharded(checkpoint, self._model, self._optimizer)

    def _write_checkpoint(self, path: Path) -> int:
        folder = Path(self._settings.model_path)
        if self._group.ranks == 1:
            return write_checkpoint(path, self._model, self._optimizer, self._version, folder)
        return write_sharded(
            path,
            self._model,
            self._optimizer,
            self._version,
            folder,
            self._section.bucket_bytes,
            self._group,
            self._progress,
        )

    def _decoded(self, step: int, version: int, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
        if version != self._version:
            raise BatchUnusable(
                f"step {step} is of version {version}, but the learner holds version {self._version}"
            )
        vocabulary = self._model.config.get_text_config().vocab_size
        return [decode_row(row, vocabulary) for row in rows]

    def _accumulate(self, step: int, parts: Sequence[MicroBatch], tokens: int) -> dict[str, float]:
        """Add the whole batch's gradient to the parameters; return the loss and the means of the metrics.

        Every micro-batch is divided by `tokens`, the sampled tokens of the whole batch: so the sum of their
        gradients, over micro-batches and ranks, is that of one big batch, however it was cut.
        """
        means = torch.zeros(len(_MEANS), dtype=torch.float64)
        importance_max = 0.0
        for number, part in enumerate(parts, 1):
            self._progress.mark(f"forward_backward {number}/{len(parts)}")
            loss, terms = self._loss(part, tokens)
            with self._group.together():
                self._require_finite(step, loss)
            loss.backward()  # type: ignore[no-untyped-call]
            means += terms.double().sum(dim=1).cpu() / tokens
            if terms.numel():
                importance_max = max(importance_max, terms[_MEANS.index("importance_mean")].max().item())
        means, importance_max = self._group.total(means), self._group.largest(importance_max)
        return {**dict(zip(_MEANS, means.tolist(), strict=True)), "importance_max": importance_max}

    def _require_finite(self, step: int, loss: Tensor) -> None:
        if not math.isfinite(loss.item()):
            self._optimizer.clear()
            raise NotFinite(
                f"step {step}: the loss is {loss.item()}; no optimizer step was made. "
                "A lower learner.lr or learner.grad_clip may help"
            )

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
        self._progress.mark("clip")
        parameters = list(self._model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        total = whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(parameters, self._section.grad_clip, total)
        norm = total.item()
        if not math.isfinite(norm):
            self._optimizer.clear()
            raise NotFinite(f"step {step}: the norm of the gradient is {norm}; no optimizer step was made")
        return norm


_MEANS = ("loss", "entropy", "kl", "clip_share", "importance_mean", "truncated_share", "stale_token_share")
"""Means over the sampled tokens of a batch, in the order in which `LearnerProcess._loss` returns them."""


def make(settings: dict[str, Any]) -> LearnerProcess:
    """Return what the worker process serves."""
    return LearnerProcess(msgspec.convert(settings, LearnerSettings))
