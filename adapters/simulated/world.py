"""Ports without weight: what tests, planning and the simulator put in the place of torch.

Everything is deterministic: latencies and outcomes are functions of the request, given by whoever makes the world.
The engine is in `engine`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.ports import (
    Action,
    Clock,
    LearnerGone,
    LearnerInfo,
    Message,
    StepOutcome,
    TrainBatch,
    TrainResult,
    Weights,
    WrittenFile,
    WrittenWeights,
)
from ...events.types import PayloadRef

Hook = Callable[..., Awaitable[None]]

TENSORS, BUCKETS = 3, 2
"""Of simulated weights."""


async def nothing(*_: object) -> None:
    """Do nothing: the hook of a world without faults."""


def simulated_weights(version: int) -> Weights:
    """Return weights as `SimulatedLearner` publishes them."""
    return Weights(version, f"weights/{version}", TENSORS, BUCKETS, f"digest of {version}")


class Use:
    """How long a device has worked, and on how much at once: integrals over the time of `clock`."""

    def __init__(self, clock: Clock, slots: int = 1) -> None:
        self.busy_ns = 0
        """Time with any work."""
        self.work_ns = 0.0
        """Time weighted by the share of the slots that were in use."""
        self._clock = clock
        self._slots = slots
        self._work = 0
        self._since_ns: int | None = None  # its clock may not run yet

    def set(self, work: int) -> None:
        """Work on `work` things from now on."""
        self.settle()
        self._work = work

    def settle(self) -> None:
        """Count up to now."""
        now_ns = self._clock.mono_ns()
        if self._work and self._since_ns is not None:
            self.busy_ns += now_ns - self._since_ns
            self.work_ns += (now_ns - self._since_ns) * min(1.0, self._work / self._slots)
        self._since_ns = now_ns


@dataclass
class SimulatedLearner:
    """A learner whose steps take `seconds` and change nothing but the version."""

    clock: Clock
    seconds: float = 2.0
    start_s: float = 1.0
    on_train: Hook = nothing
    on_checkpoint: Hook = nothing
    on_publish: Hook = nothing
    version: int = 0
    batches: list[TrainBatch] = field(default_factory=list)
    """What its weights are made of: one batch for each version since the model as loaded."""
    saved: dict[str, list[TrainBatch]] = field(default_factory=dict)
    """Checkpoints, which outlive it where the dictionary does."""

    def __post_init__(self) -> None:
        self.use = Use(self.clock)

    async def start(self, checkpoint: str | None) -> LearnerInfo:
        """Come up, with what the checkpoint holds."""
        await self.clock.sleep(self.start_s)
        self.batches = list(self.saved[checkpoint]) if checkpoint is not None else []
        self.version = len(self.batches)
        return LearnerInfo(self.version, 1, "simulated")

    async def train(self, batch: TrainBatch) -> TrainResult:
        """Take time and count. Raises `LearnerGone` on a batch that is not for the version it holds."""
        if batch.version != self.version:
            raise LearnerGone(f"a batch for version {batch.version}, and the learner holds {self.version}")
        await self.on_train(batch)
        self.use.set(1)
        try:
            await self.clock.sleep(self.seconds)
        finally:
            self.use.set(0)
        self.batches.append(batch)
        self.version += 1
        return TrainResult(0.5, {"grad_norm": 1.0}, {})

    async def publish(self, path: str) -> WrittenWeights:
        """Name the weights."""
        await self.on_publish(path)
        weights = simulated_weights(self.version)
        return WrittenWeights(path, 1, weights.tensors, weights.buckets, weights.digest)

    async def checkpoint(self, path: str) -> WrittenFile:
        """Save the checkpoint."""
        await self.on_checkpoint(path)
        self.saved[path] = list(self.batches)
        return WrittenFile(path, 1)

    async def close(self) -> None:
        """End."""


@dataclass
class SimulatedEnvironment:
    """`turns` turns of `seconds` each; the reward is a function of item and seed."""

    clock: Clock
    turns: int = 1
    seconds: float = 0.1
    score: Callable[[Mapping[str, Any], int], float] = lambda item, seed: float(seed % 2)
    on_step: Hook = nothing
    _item: Mapping[str, Any] = field(default_factory=dict)
    _seed: int = 0
    _turn: int = 0

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Begin."""
        self._item, self._seed = item, seed
        return [Message("user", str(item))]

    async def step(self, action: Action) -> StepOutcome:
        """Answer."""
        self._turn += 1
        await self.on_step(self._item, self._seed, self._turn)
        await self.clock.sleep(self.seconds)
        return StepOutcome([Message("user", "go on")], done=self._turn >= self.turns)

    async def reward(self) -> float:
        """Score."""
        return self.score(self._item, self._seed)


@dataclass(frozen=True)
class NumberedPrompts:
    """Items ``{"number": index}`` in their own order."""

    count: int

    def __len__(self) -> int:
        return self.count

    def item(self, epoch: int, position: int) -> tuple[int, Mapping[str, Any]]:
        """Return item `position`, the same in every epoch."""
        return position, {"number": position}


class SimulatedRenderer:
    """Three tokens for every message."""

    stop_token_ids: Sequence[int] = (2,)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Return three tokens a message."""
        return [5] * 3 * len(messages)

    def reply(self, messages: Sequence[Message], *, after_stop: bool) -> list[int]:
        """Return three tokens a message."""
        return [6] * 3 * len(messages)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the ids, as text."""
        return " ".join(map(str, token_ids))


@dataclass
class SimulatedArtifacts:
    """Paths that lead nowhere, and the list of what was dropped."""

    dropped: list[str] = field(default_factory=list)
    saved: dict[str, list[TrainBatch]] = field(default_factory=dict)
    """Checkpoints that are there; shared with the learner."""

    def weights(self, version: int) -> str:
        """Return a name."""
        return f"weights/{version}"

    def checkpoint(self, step: int) -> str:
        """Return a name."""
        return f"checkpoints/{step}"

    def absolute(self, path: str) -> str:
        """Return it unchanged."""
        return path

    def drop(self, path: str) -> None:
        """Note it."""
        self.dropped.append(path)
        self.saved.pop(path, None)


@dataclass
class SimulatedPayloads:
    """Payloads in memory."""

    stored: list[bytes] = field(default_factory=list)

    def put(self, data: bytes) -> PayloadRef:
        """Keep `data`."""
        self.stored.append(data)
        return PayloadRef(digest="", length=len(data), pack=1, offset=len(self.stored) - 1)

    def get(self, ref: PayloadRef) -> bytes:
        """Return it."""
        return self.stored[ref.offset]
