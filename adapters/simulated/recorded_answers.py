"""When a reproduced run gets its answers: those of the log at their recorded times, others by a model of it.

While the run goes the recorded way, a call ends at the recorded instant, so that outcomes come in the recorded order.
Once it goes another way it takes as long as it was recorded to take. A call that the log does not know, or whose end
it does not know because it was cancelled, takes the answer of some recorded call of its kind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVarTuple

from ...events.bus import Bus
from ...events.record import Record
from ...events.types import (
    CheckpointCommitted,
    CheckpointStarted,
    EngineLost,
    EngineUp,
    EnvironmentWorkerLost,
    EnvironmentWorkerUp,
    Event,
    StepStarted,
    TrajectoryStarted,
    WeightsPublished,
)
from .decisions import Comparison
from .recorded_calls import Answer, Key
from .recording import Recording, durable_key
from .virtual_time import VirtualClock, VirtualTimeLoop

Ts = TypeVarTuple("Ts")

BOUNDED = ("llm", "reset", "step", "reward", "start", "worker_start")
"""Calls of which there are many at once, each asked in the task that sets its deadline."""
SAME_S = 1e-9
"""Times that differ by less are the same: floating point."""


class RecordedClock(VirtualClock):
    """Virtual time that goes on from the recorded beginning, at 0 of the loop."""

    def __init__(self, first: Record) -> None:
        self.first = first

    def utc_ns(self) -> int:
        """Return UTC nanoseconds, as if the run had been then."""
        return self.first.ts + super().mono_ns()

    def mono_ns(self) -> int:
        """Return monotonic nanoseconds that compare with the recorded ones."""
        return self.first.mono + super().mono_ns()


class RecordedLoop(VirtualTimeLoop):
    """Virtual time in which a deadline that was recorded to expire does so at the recorded instant."""

    def __init__(self) -> None:
        super().__init__()
        self._expiries: dict[asyncio.Task[Any] | None, float] = {}

    def expire_at(self, at_s: float) -> None:
        """Let the next deadline that the running task sets expire at `at_s`: that of the call that it begins now."""
        self._expiries[asyncio.current_task()] = at_s

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at `when`, or at the recorded instant."""
        if self._expiries and isinstance(getattr(callback, "__self__", None), asyncio.Timeout):
            when = self._expiries.pop(asyncio.current_task(), when)
        return super().call_at(when, callback, *args, context=context)


async def never() -> NoReturn:
    """Never return."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody resolves this")


@dataclass
class Answers:
    """The answers of a recording, each at its time."""

    recording: Recording
    comparison: Comparison
    asked: int = 0
    modelled: int = 0
    hung: int = 0
    _waiting: dict[float, list[tuple[int, asyncio.Future[None]]]] = field(default_factory=dict)
    _seconds: dict[object, list[float]] = field(default_factory=dict)
    _asked_before: set[Key] = field(default_factory=set)

    async def get(self, key: Key) -> Answer:
        """Return the answer to the call that `key` is about, when it is due. Never returns where it never came.

        Cancelling forgets the call.
        """
        self.asked += 1
        answer = self.recording.answer(key)
        if answer is None or key in self._asked_before:
            return await self._model(key)
        self._asked_before.add(key)
        if answer.outcome == "cancelled":
            return await self._model(key, beyond_s=answer.seconds)
        if answer.outcome in ("hangs", "expired"):
            self.hung += 1
            self._expire(answer)
            await never()
        await self.due(answer)
        return answer

    def _expire(self, answer: Answer) -> None:
        """Let the caller's deadline expire in its recorded turn: the loop keeps no order among equal times."""
        loop = asyncio.get_running_loop()
        if answer.instant is None or answer.key[0] not in BOUNDED or self.comparison.difference is not None:
            return
        if isinstance(loop, RecordedLoop) and answer.instant.at_s > loop.time():
            loop.expire_at(answer.instant.at_s)

    async def due(self, answer: Answer) -> None:
        """Return when `answer` is due."""
        if answer.at_once:
            return
        assert answer.instant is not None
        if self.comparison.difference is not None:
            await asyncio.sleep(answer.seconds)
            return
        at_s, loop = answer.instant.at_s, asyncio.get_running_loop()
        if at_s <= loop.time() + SAME_S:
            return
        if at_s not in self._waiting:
            self._waiting[at_s] = []
            loop.call_at(at_s, self._fire, at_s)
        due: asyncio.Future[None] = loop.create_future()
        self._waiting[at_s].append((answer.seq, due))
        await due

    def _fire(self, at_s: float) -> None:
        for _, due in sorted(self._waiting.pop(at_s), key=lambda pair: pair[0]):
            if not due.done():
                due.set_result(None)

    async def _model(self, key: Key, beyond_s: float = -1.0) -> Answer:
        """Return the answer of a recorded call of this kind that took longer than `beyond_s`; hang if none did.

        Weights and checkpoints are written and loaded at once where the log has no example of it.
        """
        candidates = self.recording.calls.by_kind.get(key[0], [])
        if not candidates and beyond_s < 0 and key[0] in ("load", "publish", "checkpoint"):
            self.modelled += 1
            return Answer(key, -1, 0.0, "completed")
        if beyond_s >= 0:
            candidates = [answer for answer in candidates if answer.seconds > beyond_s]
        if not candidates:
            self.hung += 1
            await never()
        answer = random.Random(repr(key)).choice(candidates)
        await asyncio.sleep(answer.seconds)
        self.modelled += 1
        return answer


class RecordedBus(Bus):
    """A bus whose events are on disk at once, but for those that the recorded trainer waited for."""

    def __init__(self, clock: VirtualClock, answers: Answers, *, next_seq: int, unsaved_max: int) -> None:
        super().__init__(clock, None, next_seq=next_seq)
        self.answers = answers
        self.unsaved_max = unsaved_max + 1
        self.attempts: dict[str, int] = {}
        """Latest attempt at each trajectory."""
        self.serving: set[str] = set()
        """Engines and workers of environments that have come up and are not lost."""
        self._held: dict[int, Answer] = {}

    @property
    def durable_seq(self) -> int:
        """Highest seq on disk, -1 if none."""
        return min(self._held) - 1 if self._held else self.next_seq - 1

    def publish(
        self, actor: str, event: Event, *, cause: int | None = None, corr: str | None = None
    ) -> Record:
        """Append `event`; hold it back from the disk as the recorded one was."""
        record = super().publish(actor, event, cause=cause, corr=corr)
        if isinstance(event, TrajectoryStarted):
            self.attempts[event.trajectory] = event.attempt
        elif isinstance(event, EngineUp):
            self.serving.add(event.engine)
        elif isinstance(event, EngineLost):
            self.serving.discard(event.engine)
        elif isinstance(event, EnvironmentWorkerUp):
            self.serving.add(event.worker)
        elif isinstance(event, EnvironmentWorkerLost):
            self.serving.discard(event.worker)
        elif isinstance(event, StepStarted | WeightsPublished | CheckpointStarted | CheckpointCommitted):
            answer = self.answers.recording.answer(durable_key(event))
            if answer is not None:
                self._held[record.seq] = answer
        return record

    @property
    def unsaved(self) -> int:
        """Number of events that are published and not yet durable; many where the recorded collector waited for it."""
        answers = self.answers
        if answers.comparison.difference is None:
            wait = answers.recording.answer(("behind", answers.comparison.made_by("collector")))
            if wait is not None and wait.instant is not None:
                loop = asyncio.get_running_loop()
                if wait.instant.at_s > loop.time() + SAME_S:
                    loop.call_at(wait.instant.at_s, self._schedule_tick)
                    return self.next_seq + self.unsaved_max
        return self.next_seq - 1 - self.durable_seq

    async def durable(self, seq: int) -> None:
        """Wait until event `seq` is on disk, as long as the recorded run did. Cancelling ends the wait."""
        answer = self._held.get(seq)
        try:
            if answer is not None and answer.outcome != "completed":
                await never()
            if answer is not None:
                await self.answers.due(answer)
        finally:
            self._held.pop(seq, None)
            self._schedule_tick()  # predicates may ask about `unsaved`
