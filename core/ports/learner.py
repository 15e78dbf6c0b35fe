"""The learner: it holds weights and optimizer, and makes steps, weights for engines, and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One trajectory of a batch. Arrays are little-endian bytes, all of the same length T (tokens)."""

    trajectory: str
    tokens: bytes
    """int32[T]: the whole conversation."""
    sampled: bytes
    """uint8[T]: 1 where the policy sampled the token (and it may be trained), 0 where the environment wrote it."""
    logprobs: bytes
    """float32[T]: behaviour log-prob of sampled tokens, 0 elsewhere."""
    versions: bytes
    """int32[T]: weight version that sampled the token, -1 elsewhere."""
    advantage: float


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """All rows of one step."""

    step: int
    version: int
    """Version that the learner holds before the step."""
    rows: Sequence[TrainRow]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What one optimizer step gave."""

    loss: float
    metrics: Mapping[str, float]
    """For example ``grad_norm``, ``clip_share``, ``entropy``, ``kl``, ``lr``; all finite."""
    seconds: Mapping[str, float]
    """Seconds of the step's parts, for example ``forward_backward``, ``optimizer``."""


@dataclass(frozen=True, slots=True)
class LearnerInfo:
    """What the learner says of itself once it is up."""

    version: int
    parameters: int
    device: str
    ranks: int = 1
    nodes: Sequence[str] = ()
    """Of its ranks, in their order; empty: not known."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file or folder that an adapter wrote, whole."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """Weights that the learner wrote for the engines; see `Weights` for the last three."""

    path: str
    size_bytes: int
    tensors: int
    buckets: int
    digest: str


class Learner(Protocol):
    """The holder of weights and optimizer. All calls are made one after another."""

    async def start(self, checkpoint: str | None) -> LearnerInfo:
        """Load the model, or everything from the checkpoint folder; return when a batch may come."""
        ...

    async def train(self, batch: TrainBatch) -> TrainResult:
        """Make one optimizer step. Raises `LearnerGone`. Not to be retried: cancelled, its effect is unknown."""
        ...

    async def publish(self, path: str) -> WrittenWeights:
        """Write the current weights to the safetensors file `path` for the engines; it need not survive a crash."""
        ...

    async def checkpoint(self, path: str) -> WrittenFile:
        """Write weights, optimizer and schedule to folder `path`, whole or not at all, and flush it.

        Raises `CheckpointError`.
        """
        ...

    async def close(self) -> None:
        """End the learner. Idempotent; never raises `PortError`."""
        ...
