"""An engine without weights: it queues, samples, pauses and updates in virtual time, as a real one would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from ...core.ports import (
    Clock,
    EngineError,
    EngineGone,
    EngineInfo,
    GenerateRequest,
    Generation,
    PromptTooLong,
    Receipt,
    SyncMode,
    Weights,
)
from ...events.types import VersionSpans
from .world import Hook, Use, nothing


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

    async def fetch(self, weights: Weights) -> None:
        """Take no time: `on_load` takes it all."""

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
