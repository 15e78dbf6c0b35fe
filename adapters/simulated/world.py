"""Ports without weight: what tests, planning and the simulator put in the place of torch.

Everything is deterministic: latencies and outcomes are functions of the request, given by whoever makes the world.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from ...core.ports import (
    Action,
    Clock,
    EngineError,
    EngineGone,
    EngineInfo,
    GenerateRequest,
    Generation,
    LearnerGone,
    LearnerInfo,
    Message,
    PromptTooLong,
    Receipt,
    StepOutcome,
    SyncMode,
    TrainBatch,
    TrainResult,
    Weights,
    WrittenFile,
    WrittenWeights,
)
from ...events.types import PayloadRef, VersionSpans

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
class SimulatedEngine:
    """An engine that answers after `seconds(request)` with `length(request)` tokens.

    The tokens are sampled evenly over that time, each by the version that is served then; a pause stops sampling. It
    answers `slots` requests at a time; the others queue, first come first served.
    """

    name: str
    clock: Clock
    seconds: Callable[[GenerateRequest], float] = lambda request: 1.0
    length: Callable[[GenerateRequest], int] = lambda request: 3
    context_tokens: int = 1000
    slots: int = 64
    on_generate: Hook = nothing
    """Awaited before each answer, with the request; may raise a `PortError` or never return."""
    on_load: Hook = nothing
    """Awaited in the middle of each update, with the version: new weights have arrived and are not served yet."""
    on_start: Hook = nothing
    version: int = -1
    alive: bool = False
    _running: asyncio.Event = field(default_factory=asyncio.Event)
    _past: list[tuple[int, int, bool]] = field(default_factory=list)
    """(nanosecond, version from then on, whether it samples from then on) of every change, oldest first."""
    _in_flight: int = 0
    _died: asyncio.Event = field(default_factory=asyncio.Event)
    _places: asyncio.Semaphore = field(default_factory=asyncio.Semaphore)
    _sampling: int = 0
    _passing: dict[asyncio.Future[bool], None] = field(default_factory=dict)
    """What an abort ends, in order of arrival."""
    _lease: int = -1
    _announced: Weights | None = None
    _taken: dict[int, bool] = field(default_factory=dict)
    """Buckets of the update that is under way, and whether each is undamaged."""
    _receipts: dict[int, Receipt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.use = Use(self.clock, self.slots)

    async def prepare(self) -> None:
        """Have nothing to prepare."""

    async def start(self, weights: Weights) -> EngineInfo:
        """Serve with `weights`."""
        await self.on_start(weights.version)
        self.alive, self.version = True, weights.version
        self._lease, self._announced = -1, None
        self._taken.clear()
        self._receipts.clear()
        self._running.set()
        self._changed()
        self._died, self._places = asyncio.Event(), asyncio.Semaphore(self.slots)
        return EngineInfo(self.context_tokens, self.slots, "simulated")

    def die(self) -> None:
        """Lose everything that is in flight, as a killed process would."""
        self.alive = False
        self._died.set()

    async def generate(self, request: GenerateRequest) -> Generation:
        """Answer, or fail as the hook says."""
        if not self.alive:
            raise EngineGone(f"{self.name} is not running")
        if len(request.prompt_ids) >= self.context_tokens:
            raise PromptTooLong(f"{len(request.prompt_ids)} tokens do not fit {self.context_tokens}")
        self._in_flight += 1
        try:
            async with asyncio.TaskGroup() as tasks:
                answer = tasks.create_task(self._in_turn(request))
                died = tasks.create_task(self._died.wait())
                await asyncio.wait({answer, died}, return_when=asyncio.FIRST_COMPLETED)
                died.cancel()
                answer.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._in_flight -= 1
        if answer.cancelled():
            raise EngineGone(f"{self.name} died")
        return answer.result()

    async def _in_turn(self, request: GenerateRequest) -> Generation:
        since_ns = self.clock.mono_ns()
        async with self._places:
            return await self._answer(request, since_ns)

    async def _answer(self, request: GenerateRequest, since_ns: int) -> Generation:
        queue_s = (self.clock.mono_ns() - since_ns) / 1e9
        await self._running.wait()
        await self.on_generate(request)
        seconds, count = self.seconds(request), min(self.length(request), request.max_tokens)
        parts, aborted = await self._sample(seconds)
        if aborted:
            count = int(count * sum(part for _, part in parts) / (seconds * 1e9))
        engine_s = (self.clock.mono_ns() - since_ns) / 1e9
        reason: Literal["stop", "abort"] = "abort" if aborted else "stop"
        return Generation([7] * count, [-1.0] * count, spread(parts, count), reason, queue_s, engine_s)

    async def _sample(self, seconds: float) -> tuple[list[tuple[int, int]], bool]:
        """Sample for `seconds`, pauses not counted, or until an abort.

        Return the nanoseconds of every version, in order, and whether there was one.
        """
        self._sampling += 1
        self._changed_use()
        try:
            return await self._sampled(seconds)
        finally:
            self._sampling -= 1
            self._changed_use()

    def _changed_use(self) -> None:
        self.use.set(self._sampling if self._running.is_set() else 0)

    async def _sampled(self, seconds: float) -> tuple[list[tuple[int, int]], bool]:
        place, since_ns = len(self._past) - 1, self.clock.mono_ns()
        left_ns = round(seconds * 1e9)
        while True:
            await self._running.wait()
            aborted = await self._pass(left_ns / 1e9)
            now_ns = self.clock.mono_ns()
            parts: list[tuple[int, int]] = []
            changes = [*self._past[place:], (now_ns, self.version, False)]
            for (from_ns, version, sampling), (to_ns, _, _) in pairwise(changes):
                if sampling and to_ns > max(from_ns, since_ns):
                    parts.append((version, to_ns - max(from_ns, since_ns)))
            left_ns = round(seconds * 1e9) - sum(part for _, part in parts)
            if left_ns <= 0 or aborted:
                return parts or [(self.version, 1)], aborted and left_ns > 0

    async def _pass(self, seconds: float) -> bool:
        """Let time pass, until an abort at most; return whether there was one."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(seconds, _settle, over, False)
        self._passing[over] = None
        try:
            return await over
        finally:
            timer.cancel()
            del self._passing[over]

    def _changed(self) -> None:
        self._changed_use()
        self._past.append((self.clock.mono_ns(), self.version, self._running.is_set()))

    async def pause(self, mode: SyncMode) -> None:
        """Stop; ``drain`` waits for what is in flight, ``abort`` ends it with the tokens so far."""
        if mode == "drain":
            while self._in_flight:
                await self.clock.sleep(0.01)
        self._running.clear()
        self._changed()
        if mode == "abort":
            for over in self._passing:
                _settle(over, True)

    async def begin_update(self, weights: Weights, lease: int) -> None:
        """Make ready."""
        self._require(lease)
        self._announced = weights
        self._taken.clear()
        self._receipts.pop(lease, None)

    async def transfer(self, bucket: int, lease: int) -> None:
        """Take a bucket; ``~bucket`` stands for one that was damaged on its way."""
        self._require(lease)
        self._taken[max(bucket, ~bucket)] = bucket >= 0

    async def finish_update(self, lease: int, *, lies: bool = False) -> Receipt:
        """Serve the new weights, or, if it `lies`, say so and go on with the old ones."""
        self._require(lease)
        if lease in self._receipts:
            return self._receipts[lease]
        announced = self._announced
        if announced is None or len(self._taken) < announced.buckets:
            raise EngineError(f"{self.name} was to finish an update of which buckets are missing")
        await self.on_load(announced.version)
        self._require(lease)
        if not all(self._taken.values()):
            raise EngineError(f"{self.name} found a bucket damaged")
        if not lies:
            self.version = announced.version
        self._changed()
        receipt = Receipt(announced.version, announced.tensors, announced.digest)
        self._receipts = {lease: receipt}
        return receipt

    def _require(self, lease: int) -> None:
        if not self.alive:
            raise EngineGone(f"{self.name} is not running")
        if lease < self._lease:
            raise EngineError(f"lease {lease} is over, the newest one is {self._lease}")
        self._lease = lease

    async def resume(self) -> None:
        """Go on."""
        self._running.set()
        self._changed()

    async def close(self) -> None:
        """End."""
        self.die()


def _settle(over: asyncio.Future[bool], aborted: bool) -> None:
    if not over.done():
        over.set_result(aborted)


def spread(parts: Sequence[tuple[int, int]], count: int) -> VersionSpans:
    """Return the versions of `count` tokens that are sampled evenly over `parts`: (version, nanoseconds) each."""
    total, done, given = sum(part for _, part in parts), 0, 0
    spans: list[tuple[int, int]] = []
    for version, part in parts:
        done += part
        upto = round(count * done / total)
        if upto > given and spans and spans[-1][0] == version:
            spans[-1] = (version, spans[-1][1] + upto - given)
        elif upto > given:
            spans.append((version, upto - given))
        given = upto
    return tuple(spans)


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
