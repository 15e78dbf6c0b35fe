"""The object that a worker holds, and how it is made, called by name, and its calls cancelled.

The same on both ways to a worker: `worker_serve`, behind a socket, and `ray.actor`, behind an actor's methods. The
loop does nothing but start calls, so a cancel is heard while a method computes: what is no coroutine runs in the one
worker thread, the making of the object included.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

QUIET_KINDS = frozenset({"PromptTooLong", "PromptRefused"})
"""Answers, not accidents: they leave no traceback in the log."""

ANSWER_BYTES_MAX = 2**32 - 1

EARLY_MAX = 1024
"""Cancels that are remembered for a call that has not begun; most of them come too late, for one that has ended."""


class HeldObject:
    """One object and the calls that are under way in it. To be used from one event loop."""

    def __init__(self) -> None:
        self._object: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._early: dict[int, None] = {}

    async def make(self, target: str, settings: dict[str, Any]) -> list[Any]:
        """Make the object by ``"package.module:function"``; return ``["up"]``, or ``["failed", kind, text]``.

        Cancelling abandons what is made.
        """
        try:
            self._object = await self._in_thread(lambda: resolve(target)(settings))
        except Exception as error:  # noqa: BLE001 - told to the controller, which raises WorkerFailed
            traceback.print_exc()
            return ["failed", type(error).__name__, one_line(error)]
        return ["up"]

    async def answer(self, number: int, method: str, params: dict[str, Any]) -> list[Any]:
        """Make call `number`; return ``["ok", number, result]`` or ``["error", number, kind, text]``.

        Raises CancelledError once `cancel` was told its number, even before it began; a method that is no coroutine,
        once begun, runs to its end.
        """
        if number in self._early:
            del self._early[number]
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        self._tasks[number] = task
        try:
            return ["ok", number, await self._invoke(method, params)]
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - told to the controller, which raises RemoteError
            if type(error).__name__ not in QUIET_KINDS:
                traceback.print_exc()
            return ["error", number, type(error).__name__, one_line(error)]
        finally:
            self._tasks.pop(number, None)

    def cancel(self, number: int) -> None:
        """Cancel call `number`, under way or yet to begin; nothing if it has ended."""
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()
            return
        self._early[number] = None
        if len(self._early) > EARLY_MAX:
            del self._early[next(iter(self._early))]

    async def close(self) -> bool:
        """Let the object close, if it can; return whether it did so without an error."""
        try:
            if hasattr(self._object, "close"):
                await self._invoke("close", {})
        except Exception:  # noqa: BLE001 - the worker ends anyway, and tells by the answer
            traceback.print_exc()
            return False
        return True

    async def _invoke(self, method: str, params: dict[str, Any]) -> Any:
        if method.startswith("_"):
            raise AttributeError(f"'{method}' is not public")
        function = getattr(self._object, method)
        if inspect.iscoroutinefunction(function):
            return await function(**params)
        return await self._in_thread(lambda: function(**params))

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def encode_answer(message: list[Any]) -> bytes:
    """Return `message` in msgpack; a result that msgpack cannot carry becomes the error that says so."""
    try:
        body = msgspec.msgpack.encode(message)
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError(f"it has {len(body)} bytes, {ANSWER_BYTES_MAX} are the most")  # noqa: TRY301
        return body
    except (TypeError, ValueError) as error:
        if message[0] != "ok":
            raise
        text = f"result cannot be sent: {error}"
        return msgspec.msgpack.encode(["error", message[1], type(error).__name__, text])


def resolve(target: str) -> Callable[[dict[str, Any]], Any]:
    """Return the function that ``"package.module:function"`` names."""
    module, _, function = target.partition(":")
    found: Callable[[dict[str, Any]], Any] = getattr(importlib.import_module(module), function)
    return found


def one_line(error: BaseException) -> str:
    """Return the text of `error` without line breaks."""
    return " ".join(str(error).split())
