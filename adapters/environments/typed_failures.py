"""Give every environment the one error that the port allows, whatever its author raises."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from ...core.ports import Action, Environment, EnvironmentFailed, Message, PortError, StepOutcome

T = TypeVar("T")


class TypedFailures:
    """Passes calls on to `inner`; its exceptions and impossible answers become `EnvironmentFailed`.

    So a mistake in an environment is a counted failure of one trajectory, with the exception's words, and never
    a reward of zero. Cancellation passes through untouched.
    """

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self._name = type(inner).__name__

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Begin; the opening must be at least one `Message`."""
        messages = await self._call("reset", self._inner.reset(item, seed))
        self._require_messages("reset", messages)
        if not messages:
            raise EnvironmentFailed(
                f"{self._name}.reset returned no message: the policy would have nothing to read"
            )
        return messages

    async def step(self, action: Action) -> StepOutcome:
        """Answer the action with a `StepOutcome`."""
        outcome = await self._call("step", self._inner.step(action))
        if not isinstance(outcome, StepOutcome):
            raise EnvironmentFailed(
                f"{self._name}.step returned {type(outcome).__name__}, expected StepOutcome"
            )
        self._require_messages("step", outcome.messages)
        return outcome

    async def reward(self) -> float:
        """Return the reward, a finite number."""
        reward = await self._call("reward", self._inner.reward())
        try:
            number = float(reward)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise EnvironmentFailed(f"{self._name}.reward returned {reward!r:.80}, expected a finite number")
        return number

    async def _call(self, method: str, awaitable: Awaitable[T]) -> T:
        try:
            return await awaitable
        except (PortError, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            # What is no Exception, such as SystemExit or a panic in a library of Rust, would end the event loop under
            # the run's feet. A Ctrl-C of the user never gets here: it is a signal handler's.
            words = " ".join(str(error).split()) or "without a message"
            raise EnvironmentFailed(
                f"{self._name}.{method} raised {type(error).__name__}: {words:.300}"
            ) from error

    def _require_messages(self, method: str, messages: object) -> None:
        if not isinstance(messages, Sequence) or not all(
            isinstance(message, Message) for message in messages
        ):
            raise EnvironmentFailed(
                f"{self._name}.{method} returned {messages!r:.80}, expected a list of Message"
            )
