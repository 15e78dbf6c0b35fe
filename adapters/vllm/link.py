"""What is asked of a vLLM, whether it is in a process of ours or behind HTTP. Everything else is built on this."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from ...core.ports import EngineError, GenerateRequest, Generation
from .requests import Bounds

PauseMode = Literal["wait", "keep", "abort"]
"""vLLM's words: finish what is in flight, freeze it, or end it."""


class CallRefused(EngineError):
    """The engine's workers refused a call, and nothing of the model was touched by it."""


class Link(Protocol):
    """A vLLM that can be spoken to. Every method raises `EngineError`, or `EngineGone` once vLLM is dead.

    Cancelling any of them leaves its effect unknown, except for `generate`, whose request is aborted.
    """

    bounds: Bounds
    """What the model takes; set once it is known."""
    owner: str
    """Whose weights it is to sample with; an answer of any others raises `EngineGone`."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion; see `Engine.generate`."""
        ...

    async def reach(self, path: str) -> str:
        """Return the path under which vLLM finds a file that the learner has written; see `Worker.reach`."""
        ...

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Stop scheduling; return when nothing is computed any more."""
        ...

    async def resume(self) -> None:
        """Schedule again; without effect when not paused."""
        ...

    async def workers(self, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Call `method` of `transfer.UpdateExtension` in every worker of the engine, and return their answers."""
        ...

    async def set_version(self, version: str) -> None:
        """Have the tokens sampled from now on carry this version of the weights."""
        ...

    async def drop_cache(self) -> bool:
        """Forget all cached keys and values, those of requests in flight too; return whether that was done."""
        ...

    async def metrics(self) -> str:
        """Return vLLM's metrics, as Prometheus would read them."""
        ...

    async def check_alive(self) -> None:
        """Raise `EngineGone` if vLLM itself says, or shows, that it is dead."""
        ...

    async def close(self) -> None:
        """End the link, and what it started. Idempotent; never raises `PortError`."""
        ...


async def ask_each(link: Link, method: str, request: dict[str, Any]) -> list[Any]:
    """Return what each worker answers. Raises `EngineError` if one refuses or fails."""
    answers = await link.workers(method, request)
    for answer in answers:
        if "ok" not in answer:
            raise EngineError(answer.get("error") or answer.get("refused") or f"{method}: {answer}")
    return [answer["ok"] for answer in answers]


async def ask_workers(link: Link, method: str, request: dict[str, Any]) -> Any:
    """Return what all workers answer alike.

    Raises `CallRefused` if all of them refuse, `EngineError` if one fails or if they differ.
    """
    answers = await link.workers(method, request)
    for answer in answers:
        if "error" in answer:
            raise EngineError(answer["error"])
    if not answers or any(answer != answers[0] for answer in answers):
        raise EngineError(f"{method}: the workers of this engine answered differently: {answers}")
    if "refused" in answers[0]:
        raise CallRefused(answers[0]["refused"])
    return answers[0]["ok"]
