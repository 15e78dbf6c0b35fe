"""Rows of a batch to padded tensors, cut into micro-batches that fit the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class BatchUnusable(ValueError):
    """A batch cannot be trained: its arrays do not fit together, or hold what is no log-prob or token."""


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory, decoded. All arrays have its length T."""

    tokens: NDArray[np.int64]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    advantage: float


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B trajectories padded at the right to the longest, T tokens."""

    tokens: Tensor
    """int64 [B, T]; padding is token 0."""
    sampled: Tensor
    """bool [B, T - 1]: whether token t + 1 is one that the policy sampled, aligned with the logits at t."""
    logprobs: Tensor
    """float32 [n]: behaviour log-probs of the n sampled tokens, row by row."""
    versions: Tensor
    """int32 [n]"""
    advantages: Tensor
    """float32 [n]"""


def decode_row(row: Mapping[str, Any], vocabulary: int) -> Row:
    """Return the arrays of one `TrainRow` as it came over the wire. Raises `BatchUnusable`, naming the trajectory."""
    name = row["trajectory"]
    decoded = Row(
        tokens=np.frombuffer(row["tokens"], "<i4").astype(np.int64),
        sampled=np.frombuffer(row["sampled"], np.uint8).astype(np.bool_),
        logprobs=np.frombuffer(row["logprobs"], "<f4").astype(np.float32),
        versions=np.frombuffer(row["versions"], "<i4").astype(np.int32),
        advantage=float(row["advantage"]),
    )
    lengths = {len(decoded.tokens), len(decoded.sampled), len(decoded.logprobs), len(decoded.versions)}
    if len(lengths) != 1 or lengths == {0}:
        raise BatchUnusable(
            f"trajectory {name}: arrays have lengths {sorted(lengths)}, they must be one and not 0"
        )
    if decoded.sampled[0]:
        raise BatchUnusable(
            f"trajectory {name}: its first token is marked as sampled, but nothing stands before it"
        )
    if decoded.tokens.min() < 0 or decoded.tokens.max() >= vocabulary:
        raise BatchUnusable(f"trajectory {name}: a token is outside the vocabulary of {vocabulary}")
    if not np.isfinite(decoded.logprobs[decoded.sampled]).all():
        raise BatchUnusable(f"trajectory {name}: a sampled token has a behaviour log-prob that is not finite")
    if not np.isfinite(decoded.advantage):
        raise BatchUnusable(f"trajectory {name}: its advantage is {decoded.advantage}")
    return decoded


def micro_batches(rows: Sequence[Row], tokens_max: int, device: torch.device) -> list[MicroBatch]:
    """Return `rows` as micro-batches of at most `tokens_max` padded tokens, shortest rows first.

    Sorting by length keeps padding small. A row without any token to train is left out, and one that is longer than
    `tokens_max` is a micro-batch of its own.
    """
    ordered = sorted((row for row in rows if row.sampled.any()), key=lambda row: len(row.tokens))
    parts: list[list[Row]] = []
    for row in ordered:
        # The newest row is the longest so far: it sets the padded length of the part that it joins.
        if parts and (len(parts[-1]) + 1) * len(row.tokens) <= tokens_max:
            parts[-1].append(row)
        else:
            parts.append([row])
    return [_padded(part, device) for part in parts]


def empty_micro_batch(device: torch.device) -> MicroBatch:
    """Return a micro-batch that trains nothing, for a rank that has to pass as often as another one does."""
    return MicroBatch(
        tokens=torch.zeros((1, 2), dtype=torch.int64, device=device),
        sampled=torch.zeros((1, 1), dtype=torch.bool, device=device),
        logprobs=torch.zeros(0, device=device),
        versions=torch.zeros(0, dtype=torch.int32, device=device),
        advantages=torch.zeros(0, device=device),
    )


def _padded(rows: Sequence[Row], device: torch.device) -> MicroBatch:
    longest = len(rows[-1].tokens)
    tokens = np.zeros((len(rows), longest), np.int64)
    sampled = np.zeros((len(rows), longest), np.bool_)
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = row.tokens
        sampled[index, : len(row.tokens)] = row.sampled
    advantages = [np.full(int(row.sampled.sum()), row.advantage, np.float32) for row in rows]
    return MicroBatch(
        tokens=torch.from_numpy(tokens).to(device),
        sampled=torch.from_numpy(sampled[:, 1:].copy()).to(device),
        logprobs=torch.from_numpy(np.concatenate([row.logprobs[row.sampled] for row in rows])).to(device),
        versions=torch.from_numpy(np.concatenate([row.versions[row.sampled] for row in rows])).to(device),
        advantages=torch.from_numpy(np.concatenate(advantages)).to(device),
    )
