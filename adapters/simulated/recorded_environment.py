"""Environments of a log, the workers that hold them, and the renderer that turns their messages into tokens.

A message is the number of its tokens, or the failure that the recorded one met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.ports import (
    Action,
    EnvironmentFailed,
    EnvironmentWorkerGone,
    EnvironmentWorkerInfo,
    Message,
    StepOutcome,
)
from ...events.record import current_corr
from ...events.types import (
    EnvironmentWorkerLost,
    EnvironmentWorkerUp,
    EnvStepFinished,
    TrajectoryCompleted,
    TrajectoryFailed,
)
from .recorded_answers import RecordedClock, never
from .recorded_calls import TOGETHER_NS, Answer
from .recorded_errors import OF_PROMPT, error_named, error_of_text
from .recorded_world import RecordedWorld

REPLY_TOKENS = 8
"""Of an environment's answer whose length the log does not know."""


@dataclass
class RecordedEnvironment:
    """The environment of one attempt at a trajectory."""

    world: RecordedWorld
    _trajectory: str = ""
    _attempt: int = 0
    _turn: int = 0
    _tokens: int = 0
    """Of the conversation."""
    worker: str = ""
    """That it lives in."""

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

    def drop(self) -> None:
        """Be held no more."""

    async def _ask(self, call: str, turn: int) -> Answer:
        answer = await self.world.answers.get((call, self._trajectory, self._attempt, turn))
        if answer.outcome == "lost":
            here = self.world.recording.homes.get((self._trajectory, self._attempt)) == self.worker
            message = getattr(answer.event, "message", "")
            raise EnvironmentWorkerGone(message) if here else EnvironmentFailed(message)
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
        if known is None and isinstance(failure, TrajectoryCompleted) and failure.stop_reason == "context_full":
            assert self.world.recording.config is not None
            known = self._tokens + self.world.recording.config.rollout.context_tokens
        count = max(0, known - self._tokens) if known is not None else REPLY_TOKENS
        self._tokens += count
        return Message("user", str(count))


@dataclass
class RecordedEnvironmentWorker:
    """A worker of environments of the log. Who asks an environment that it lost finds that out, as then."""

    name: str
    world: RecordedWorld
    clock: RecordedClock
    _starts: int = 0

    async def start(self) -> EnvironmentWorkerInfo:
        """Come up, when the recorded one did."""
        number, self._starts = self._starts, self._starts + 1
        answer = await self.world.answers.get(("worker_start", self.name, number))
        event = answer.event
        if not isinstance(event, EnvironmentWorkerUp):
            raise EnvironmentWorkerGone(
                event.message if isinstance(event, EnvironmentWorkerLost) else "lost while it started"
            )
        return EnvironmentWorkerInfo(event.node, event.pid)

    def make(self) -> RecordedEnvironment:
        """Return the environment of the attempt that asks, in the worker that held the recorded one where that is up.

        So what is lost with a worker is what was lost with it, whatever the order in which attempts of one instant
        come here.
        """
        world, trajectory = self.world, current_corr()
        home = world.recording.homes.get((trajectory, world.bus.attempts.get(trajectory, 0)))
        went_as_recorded = world.answers.comparison.difference is None
        name = home if home in world.bus.serving and went_as_recorded else self.name
        return RecordedEnvironment(world, worker=name or self.name)

    async def ping(self) -> None:
        """Answer at once, but where the recorded one did not."""
        now_ns = self.clock.mono_ns()
        if any(abs(now_ns - asked_ns) < TOGETHER_NS for asked_ns in self.world.recording.unanswered.get(self.name, ())):
            await never()

    async def close(self) -> None:
        """Take no time."""


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
