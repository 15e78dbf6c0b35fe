"""The inside of a worker process: ``python -m eventrain.adapters.worker_serve CHANNEL_FD PARENT_PID``.

Started only by `worker.WorkerProcess`. The loop here does nothing but read messages and start calls, so a cancel is
heard while a method computes: what is no coroutine runs in the process's one worker thread, the making of the
object included.

The process never outlives its parent: it ends when the channel closes, and on Linux the kernel kills it besides,
which holds even while a native call keeps the loop from running.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import importlib
import inspect
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import msgspec

from .worker import LENGTH_BYTES, encode_frame

PR_SET_PDEATHSIG = 1
READ_BYTES = 2**20
EXIT_ORPHAN = 3
EXIT_FAILED = 1

QUIET_KINDS = frozenset({"PromptTooLong", "PromptRefused"})
"""Answers, not accidents: they leave no traceback in the log."""


class Server:
    """Serves one object to the parent at the other end of `channel`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._object: Any = None

    async def run(self) -> NoReturn:
        """Answer messages until the parent asks to close or goes away. Ends the process, never returns."""
        async with asyncio.TaskGroup() as group:
            while (message := await self._receive()) is not None:
                match message:
                    case ["call", number, method, params]:
                        task = group.create_task(self._answer(number, method, params))
                        self._tasks[number] = task
                        task.add_done_callback(partial(self._forget, number))
                    case ["cancel", number]:
                        if number in self._tasks:
                            self._tasks[number].cancel()
                    case ["make", target, settings]:
                        group.create_task(self._make(target, settings))
                    case ["close"]:
                        group.create_task(self._close())
            leave(EXIT_ORPHAN)

    def _forget(self, number: int, _task: asyncio.Task[None]) -> None:
        self._tasks.pop(number, None)

    async def _receive(self) -> list[Any] | None:
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "little")
            message: list[Any] = msgspec.msgpack.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return message

    async def _send(self, message: list[Any]) -> None:
        try:
            frame = encode_frame(message)
        except (TypeError, ValueError) as error:
            if message[0] != "ok":
                raise
            frame = encode_frame(
                ["error", message[1], type(error).__name__, f"result cannot be sent: {error}"]
            )
        self._writer.write(frame)
        await self._writer.drain()

    async def _make(self, target: str, settings: dict[str, Any]) -> None:
        try:
            self._object = await self._in_thread(lambda: resolve(target)(settings))
        except Exception as error:  # noqa: BLE001 - told to the parent, which raises WorkerFailed
            traceback.print_exc()
            await self._send(["failed", type(error).__name__, one_line(error)])
            leave(EXIT_FAILED)
        await self._send(["up"])

    async def _answer(self, number: int, method: str, params: dict[str, Any]) -> None:
        try:
            result = await self._invoke(method, params)
        except asyncio.CancelledError:
            raise  # the parent asked for it and waits for no answer
        except Exception as error:  # noqa: BLE001 - told to the parent, which raises RemoteError
            if type(error).__name__ not in QUIET_KINDS:
                traceback.print_exc()
            await self._send(["error", number, type(error).__name__, one_line(error)])
        else:
            await self._send(["ok", number, result])

    async def _invoke(self, method: str, params: dict[str, Any]) -> Any:
        if method.startswith("_"):
            raise AttributeError(f"'{method}' is not public")
        function = getattr(self._object, method)
        if inspect.iscoroutinefunction(function):
            return await function(**params)
        return await self._in_thread(lambda: function(**params))

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _close(self) -> None:
        try:
            if hasattr(self._object, "close"):
                await self._invoke("close", {})
        except Exception:  # noqa: BLE001 - it ends anyway, and the exit code tells
            traceback.print_exc()
            leave(EXIT_FAILED)
        leave(0)


def resolve(target: str) -> Callable[[dict[str, Any]], Any]:
    """Return the function that ``"package.module:function"`` names."""
    module, _, function = target.partition(":")
    found: Callable[[dict[str, Any]], Any] = getattr(importlib.import_module(module), function)
    return found


def one_line(error: BaseException) -> str:
    """Return the text of `error` without line breaks."""
    return " ".join(str(error).split())


def leave(code: int) -> NoReturn:
    """End the process now, whatever its threads compute."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def bind_to_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent's thread ends, where the kernel can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        leave(EXIT_ORPHAN)  # it went before it could be bound to


async def serve(channel: socket.socket) -> None:
    """Serve the parent at `channel`."""
    reader, writer = await asyncio.open_connection(sock=channel, limit=READ_BYTES)
    await Server(reader, writer).run()


def main() -> None:
    """Serve the channel named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    bind_to_parent(int(sys.argv[2]))
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(channel.fileno(), False)
    channel.setblocking(False)
    asyncio.run(serve(channel))


if __name__ == "__main__":
    main()
