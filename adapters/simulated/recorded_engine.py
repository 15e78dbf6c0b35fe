"""The engine of a log: it serves, answers, updates and fails when and as the recorded one did."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...core.ports import (
    EngineError,
    EngineGone,
    EngineInfo,
    GenerateRequest,
    Generation,
    Receipt,
    SyncMode,
    Weights,
)
from ...events.types import (
    EngineLost,
    EngineUp,
    LlmCallFinished,
    SyncFailed,
    SyncRetried,
    TrajectoryFailed,
    VersionSpans,
)
from .recorded_calls import Answer
from .recorded_errors import OF_PROMPT, error_of_text
from .recorded_world import RecordedWorld

OF_ENGINE = {**OF_PROMPT, "engine_lost": EngineGone}
WRONG_WEIGHTS = "answered with weights "


@dataclass
class RecordedEngine:
    """An engine of the log."""

    name: str
    world: RecordedWorld
    version: int = -1
    _starts: int = 0
    _announced: Weights | None = None
    _lease: int = -1
    _attempt: int = 0

    async def prepare(self) -> None:
        """Have nothing to prepare: the start takes all the time."""

    async def start(self, weights: Weights) -> EngineInfo:
        """Serve, when the recorded one did."""
        number, self._starts = self._starts, self._starts + 1
        self.world.newest = max(self.world.newest, weights.version)
        answer = await self.world.answers.get(("start", self.name, number))
        event = answer.event
        if not isinstance(event, EngineUp):
            raise EngineGone(event.message if isinstance(event, EngineLost) else "lost while it started")
        self.version = weights.version
        return EngineInfo(event.context_tokens, event.slots, event.device, event.node)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Answer or fail as the recorded call did, whichever engine that went to."""
        call, _, part = request.request.partition(".")
        path, _, attempt = call.partition("+")
        trajectory, _, turn = path.rpartition("/")
        oldest = self.version
        answer = await self.world.answers.get(("llm", trajectory, int(attempt or 0), int(turn), int(part or 0)))
        event = answer.event
        assert isinstance(event, LlmCallFinished)
        if answer.outcome != "completed":
            return _failed(event, answer, here=event.engine == self.name)
        count = min(event.tokens, request.max_tokens)
        spans = within(event.version_spans, count, oldest, self.world.newest)
        return Generation([0] * count, [-1.0] * count, spans, event.finish_reason or "stop", event.queue_s)

    async def fetch(self, weights: Weights) -> None:
        """Take no time."""

    async def pause(self, mode: SyncMode) -> None:
        """Take no time: the end of the update takes it all."""

    async def begin_update(self, weights: Weights, lease: int) -> None:
        """Take no time."""
        self._attempt = self._attempt + 1 if lease == self._lease else 1
        self._announced, self._lease = weights, lease
        self.world.newest = max(self.world.newest, weights.version)

    async def transfer(self, bucket: int, lease: int) -> None:
        """Take no time."""

    async def finish_update(self, lease: int) -> Receipt:
        """Serve new weights when the recorded one did, or fail as it did."""
        weights = self._announced
        assert weights is not None
        if self.name in self.world.bus.serving:  # what it takes before it serves is part of the recorded start
            answer = await self.world.answers.get(("load", self.name, weights.version, self._attempt))
            if isinstance(answer.event, SyncFailed):
                raise EngineGone(answer.event.message)
            if isinstance(answer.event, SyncRetried):
                raise EngineError(answer.event.message)
        self.version = weights.version
        return Receipt(weights.version, weights.tensors, weights.digest)

    async def resume(self) -> None:
        """Take no time."""

    async def close(self) -> None:
        """Take no time."""


def _failed(event: LlmCallFinished, answer: Answer, *, here: bool) -> Generation:
    """Raise what the recorded call raised; return what it answered if that was wrong."""
    if event.message.startswith(WRONG_WEIGHTS):
        text = event.message.removeprefix(WRONG_WEIGHTS).partition(", was to serve")[0]
        spans: VersionSpans = ast.literal_eval(text)
        count = sum(number for _, number in spans)
        return Generation([0] * count, [-1.0] * count, spans, "stop", 0.0)
    failure = answer.failure
    if event.outcome == "lost":
        raise EngineGone(event.message) if here else EngineError(event.message)
    if isinstance(failure, TrajectoryFailed):
        if failure.failure == "defect":
            raise error_of_text(failure.message)
        raise OF_ENGINE.get(failure.failure, EngineError)(event.message)
    raise EngineError(event.message)


def within(spans: VersionSpans, count: int, oldest: int, newest: int) -> VersionSpans:
    """Return the versions of `count` tokens, none outside what an engine can serve in this run's way."""
    result: list[tuple[int, int]] = []
    for sampled_by, sampled in spans:
        tokens, version = min(sampled, count), min(max(sampled_by, oldest), newest)
        count -= tokens
        if not tokens:
            continue
        if result and result[-1][0] == version:
            result[-1] = (version, result[-1][1] + tokens)
        else:
            result.append((version, tokens))
    return tuple(result)
