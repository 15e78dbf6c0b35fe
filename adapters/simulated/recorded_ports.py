"""Ports that answer what a log recorded: the outside world of a run, without the world.

Tokens are as many as were recorded, and stand for nothing; what they cost, their versions, rewards and failures are
the recorded ones.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.ports import (
    Action,
    CheckpointError,
    EngineError,
    EngineGone,
    EngineInfo,
    GenerateRequest,
    Generation,
    LearnerGone,
    LearnerInfo,
    Message,
    Ports,
    PromptRefused,
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
from ...events.record import current_corr
from ...events.trajectory import TrajectoryPayload, float32_bytes, int32_bytes
from ...events.types import (
    CheckpointFailed,
    EngineLost,
    EngineUp,
    EnvStepFinished,
    LearnerLost,
    LearnerUp,
    LlmCallFinished,
    PayloadRef,
    RunFailed,
    StepCompleted,
    SyncFailed,
    SyncRetried,
    TrajectoryCompleted,
    TrajectoryFailed,
    VersionSpans,
    WeightsPublished,
)
from .recorded_answers import Answers, RecordedBus, RecordedClock
from .recording import Answer, Recording
from .world import NumberedPrompts, SimulatedArtifacts

OF_PROMPT = {"prompt_too_long": PromptTooLong, "refused": PromptRefused}
OF_ENGINE = {**OF_PROMPT, "engine_lost": EngineGone}
REPLY_TOKENS = 8
"""Of an environment's answer whose length the log does not know."""
WRONG_WEIGHTS = "answered with weights "


@dataclass
class RecordedWorld:
    """What the ports of one reproduced run share."""

    recording: Recording
    answers: Answers
    bus: RecordedBus
    payloads: RecordedPayloads
    newest: int = -1
    """Newest version that an engine was asked to load."""

    def ports(self, clock: RecordedClock) -> Ports:
        """Return the ports."""
        recording = self.recording
        assert recording.config is not None
        assert recording.started is not None
        config = recording.config
        count = recording.started.engines or config.engine.engines
        names = sorted(recording.engines)
        spare = (name for n in range(count) if (name := f"engine-{n}") not in recording.engines)
        while len(names) < count:
            names.append(next(spare))
        evaluating = config.eval.every_steps > 0
        return Ports(
            clock=clock,
            engines=[RecordedEngine(name, self) for name in sorted(names)],
            learner=RecordedLearner(self),
            environments=lambda: RecordedEnvironment(self),
            prompts=RecordedPrompts(recording),
            renderer=RecordedRenderer(),
            artifacts=SimulatedArtifacts(),
            eval_prompts=NumberedPrompts(recording.eval_items or config.eval.prompts) if evaluating else None,
            facts={"code_version": recording.started.code_version, "base": recording.started.base},
        )


def error_named(name: str, message: str) -> Exception:
    """Return an exception of a type of this name, as a defect of an adapter or of a user's code raises one."""
    made: type[Exception] = type(name if name.isidentifier() else "Exception", (Exception,), {})
    return made(message)


def error_of_text(text: str) -> Exception:
    """Return the exception that ``ValueError: what it says`` describes."""
    name, _, message = text.partition(": ")
    return error_named(name, message)


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
        answer = await self.world.answers.get(
            ("llm", trajectory, int(attempt or 0), int(turn), int(part or 0))
        )
        event = answer.event
        assert isinstance(event, LlmCallFinished)
        if answer.outcome != "completed":
            return _failed(event, answer, here=event.engine == self.name)
        count = min(event.tokens, request.max_tokens)
        spans = within(event.version_spans, count, oldest, self.world.newest)
        return Generation([0] * count, [-1.0] * count, spans, event.finish_reason or "stop", event.queue_s)

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
        if (
            self.name in self.world.bus.serving
        ):  # what it takes before it serves is part of the recorded start
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


@dataclass
class RecordedLearner:
    """The learner of the log."""

    world: RecordedWorld
    version: int = 0

    async def start(self, checkpoint: str | None) -> LearnerInfo:
        """Come up, when the recorded one did."""
        answer = await self.world.answers.get(("learner_start",))
        if not isinstance(answer.event, LearnerUp):
            raise LearnerGone(answer.event.message if isinstance(answer.event, LearnerLost) else "lost")
        self.version = answer.event.version
        return LearnerInfo(answer.event.version, answer.event.parameters, answer.event.device)

    async def train(self, batch: TrainBatch) -> TrainResult:
        """Make the recorded step."""
        answer = await self.world.answers.get(("train", batch.step))
        event = answer.event
        if not isinstance(event, StepCompleted):
            raise _of_learner(answer)
        self.version = batch.step + 1
        parts_s = {name: value for name, value in event.parts_s.items() if name not in ("convert", "train")}
        return TrainResult(event.loss, event.metrics, parts_s)

    async def publish(self, path: str) -> WrittenWeights:
        """Write weights, as quickly as the recorded one."""
        answer = await self.world.answers.get(("publish", self.version))
        event = answer.event
        if isinstance(event, LearnerLost):
            raise LearnerGone(event.message)
        if not isinstance(event, WeightsPublished):
            return WrittenWeights(path, 0, 0, 1, "")
        return WrittenWeights(path, event.size_bytes, event.tensors, event.buckets, event.digest)

    async def checkpoint(self, path: str) -> WrittenFile:
        """Write a checkpoint, as quickly as the recorded one, or fail as it did."""
        answer = await self.world.answers.get(("checkpoint", self.version))
        if isinstance(answer.event, CheckpointFailed):
            raise CheckpointError(answer.event.message) if answer.failure is None else _of_learner(answer)
        return WrittenFile(path, getattr(answer.event, "size_bytes", 0))

    async def close(self) -> None:
        """Take no time."""


def _of_learner(answer: Answer) -> Exception:
    """Return what the learner raised."""
    message = getattr(answer.event, "message", "")
    if isinstance(answer.failure, RunFailed):
        return error_named(answer.failure.error, answer.failure.message)
    return LearnerGone(message)


@dataclass
class RecordedEnvironment:
    """The environment of one attempt at a trajectory."""

    world: RecordedWorld
    _trajectory: str = ""
    _attempt: int = 0
    _turn: int = 0
    _tokens: int = 0
    """Of the conversation."""

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Begin as the recorded one."""
        self._trajectory = current_corr()
        self._attempt = self.world.bus.attempts.get(self._trajectory, 0)
        answer = await self._ask("reset", -1)
        return [self._words(answer, 0)]

    async def step(self, action: Action) -> StepOutcome:
        """Answer as the recorded one."""
        turn, self._turn = self._turn, self._turn + 1
        self._tokens += len(action.token_ids)
        answer = await self._ask("step", turn)
        assert isinstance(answer.event, EnvStepFinished)
        done = answer.event.done
        return StepOutcome([] if done else [self._words(answer, turn + 1)], done)

    async def reward(self) -> float:
        """Return the recorded reward."""
        return (await self._ask("reward", self._turn)).reward

    async def _ask(self, call: str, turn: int) -> Answer:
        answer = await self.world.answers.get((call, self._trajectory, self._attempt, turn))
        if answer.outcome != "completed":
            if isinstance(answer.failure, TrajectoryFailed):
                raise error_of_text(answer.failure.message)
            raise error_named("Exception", getattr(answer.event, "message", ""))
        return answer

    def _words(self, answer: Answer, turn: int) -> Message:
        """Return a message of as many tokens as were read before `turn`, or that does what the recorded one did."""
        failure = answer.failure
        known = self.world.recording.prompt_tokens.get((self._trajectory, self._attempt, turn))
        if known is None and isinstance(failure, TrajectoryFailed) and failure.failure in OF_PROMPT:
            return Message("user", f"{failure.failure}:{failure.message}")
        if (
            known is None
            and isinstance(failure, TrajectoryCompleted)
            and failure.stop_reason == "context_full"
        ):
            assert self.world.recording.config is not None
            known = self._tokens + self.world.recording.config.rollout.context_tokens
        count = max(0, known - self._tokens) if known is not None else REPLY_TOKENS
        self._tokens += count
        return Message("user", str(count))


class RecordedRenderer:
    """As many tokens as the message says."""

    stop_token_ids: Sequence[int] = (2,)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of the opening, or raise as the recorded template did."""
        return [0] * sum(map(_tokens_of, messages))

    def reply(self, messages: Sequence[Message], *, after_stop: bool) -> list[int]:
        """Return the tokens of a reply, or raise as the recorded template did."""
        return [0] * sum(map(_tokens_of, messages))

    def text(self, token_ids: Sequence[int]) -> str:
        """Return nothing: nobody reads it."""
        return ""


def _tokens_of(message: Message) -> int:
    kind, _, text = message.content.partition(":")
    if kind in OF_PROMPT:
        raise OF_PROMPT[kind](text)
    return int(message.content)


class RecordedPrompts:
    """The data order as far as the log knows it; what it does not know are the other items, in their order."""

    def __init__(self, recording: Recording) -> None:
        assert recording.started is not None
        self._count = recording.started.prompts
        self._drawn = recording.drawn
        self._last = max(recording.drawn, default=-1)
        self._quarantined = recording.quarantined
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return self._count

    def item(self, epoch: int, position: int) -> tuple[int, Mapping[str, Any]]:
        """Return the item at `position` of `epoch`."""
        if epoch not in self._orders:
            self._orders[epoch] = self._order(epoch)
        index = self._orders[epoch][position]
        return index, {"number": index}

    def _order(self, epoch: int) -> list[int]:
        """Return a permutation; what was passed over in the log are items in quarantine."""
        first = epoch * self._count
        known = [self._drawn.get(first + position) for position in range(self._count)]
        left = dict.fromkeys(range(self._count))
        for index in known:
            if index is not None:
                left.pop(index, None)
        passed_over = [index for index in dict.fromkeys(self._quarantined) if index in left]
        order: list[int] = []
        for position, index in enumerate(known):
            if index is not None:
                order.append(index)
                continue
            passed = first + position < self._last and passed_over
            order.append(passed_over.pop(0) if passed else next(iter(left)))
            left.pop(order[-1])
        return order


@dataclass
class RecordedPayloads:
    """Payloads in memory; those of lives before this one are made up, of the recorded lengths."""

    before: dict[PayloadRef, TrajectoryCompleted] = field(default_factory=dict)
    _stored: list[bytes] = field(default_factory=list)

    PACK = 2**31
    """Of the payloads of this run."""

    def put(self, data: bytes) -> PayloadRef:
        """Keep `data`."""
        self._stored.append(data)
        return PayloadRef(digest="", length=len(data), pack=self.PACK, offset=len(self._stored) - 1)

    def get(self, ref: PayloadRef) -> bytes:
        """Return it."""
        if ref.pack == self.PACK:
            return self._stored[ref.offset]
        return made_up(self.before[ref])


def made_up(event: TrajectoryCompleted) -> bytes:
    """Return a payload with as many tokens of each version as `event` says."""
    read, wrote = event.prompt_tokens, event.completion_tokens
    versions = [-1] * read + [version for version, count in event.version_spans for _ in range(count)]
    return TrajectoryPayload(
        tokens=int32_bytes([0] * (read + wrote)),
        sampled=bytes(read) + b"\x01" * wrote,
        logprobs=float32_bytes([0.0] * (read + wrote)),
        versions=int32_bytes(versions),
        opening=[],
        turns=[],
        reward=event.reward,
    ).encode()
