"""Environments: the worlds of trajectories, and the workers that may hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class Action:
    """What the policy answered in one turn."""

    text: str
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What an environment answers to an action: messages for the policy to read next, or the end."""

    messages: Sequence[Message] = ()
    done: bool = False


class Environment(Protocol):
    """The world of one trajectory; a fresh one is made for each."""

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Begin with dataset `item`; return the opening messages. `seed` differs between trajectories."""
        ...

    async def step(self, action: Action) -> StepOutcome:
        """Answer the policy's action."""
        ...

    async def reward(self) -> float:
        """Return the finite reward of the trajectory as it stands; called once, at its end."""
        ...


class HeldEnvironment(Environment, Protocol):
    """An environment that a worker holds. Cancelling a call of it cancels that call where it lives."""

    worker: str
    """Name of the worker."""

    def drop(self) -> None:
        """Let it go, whatever it is at. Idempotent, waits for nothing, and never raises.

        It may lie where it is until its holder is asked for something else.
        """
        ...


class EnvironmentFactory(Protocol):
    """Makes environments."""

    def __call__(self) -> Environment:
        """Return a fresh environment. Cheap: what is expensive belongs in `Environment.reset`."""
        ...


class EnvironmentWorker(Protocol):
    """A process that holds environments, so that their work is not the controller's."""

    name: str

    async def start(self) -> EnvironmentWorkerInfo:
        """Start, or start anew, and return when it can make environments. Raises `EnvironmentWorkerGone`."""
        ...

    def make(self) -> HeldEnvironment:
        """Return a fresh environment that lives in the worker, to be dropped by whoever asked for it.

        Its calls raise `EnvironmentFailed`, or `EnvironmentWorkerGone` once the worker has ended.
        """
        ...

    async def ping(self) -> None:
        """Return once the worker answers, which it does not while an environment blocks it.

        Raises `EnvironmentWorkerGone`.
        """
        ...

    async def close(self) -> None:
        """End the worker and what it holds. Idempotent; never raises `PortError`."""
        ...


@dataclass(frozen=True, slots=True)
class EnvironmentWorkerInfo:
    """What a worker says of itself once it is up."""

    node: str = ""
    pid: int | None = None
