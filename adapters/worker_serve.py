"""The inside of a worker process: ``python -m eventrain.adapters.worker_serve CHANNEL_FD PARENT_PID``.

Started only by `worker.WorkerProcess`. What is here is the channel and the process; the object, and its calls, are in
`worker_object`.

The process never outlives its parent: it ends when the channel closes, and on Linux the kernel kills it besides,
which holds even while a native call keeps the loop from running.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import signal
import socket
import sys
from typing import Any, NoReturn

import msgspec

from .worker import LENGTH_BYTES, framed
from .worker_object import HeldObject, encode_answer

PR_SET_PDEATHSIG = 1
READ_BYTES = 2**20
EXIT_ORPHAN = 3
EXIT_FAILED = 1


class Server:
    """Serves one object to the parent at the other end of `channel`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._held = HeldObject()

    async def run(self) -> NoReturn:
        """Answer messages until the parent asks to close or goes away. Ends the process, never returns."""
        async with asyncio.TaskGroup() as group:
            while (message := await self._receive()) is not None:
                match message:
                    case ["call", number, method, params]:
                        group.create_task(self._answer(number, method, params))
                    case ["cancel", number]:
                        self._held.cancel(number)
                    case ["make", target, settings]:
                        group.create_task(self._make(target, settings))
                    case ["close"]:
                        group.create_task(self._close())
            leave(EXIT_ORPHAN)

    async def _receive(self) -> list[Any] | None:
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "little")
            message: list[Any] = msgspec.msgpack.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return message

    async def _send(self, body: bytes) -> None:
        self._writer.write(framed(body))
        await self._writer.drain()

    async def _make(self, target: str, settings: dict[str, Any]) -> None:
        said = await self._held.make(target, settings)
        await self._send(encode_answer(said))
        if said[0] == "failed":
            leave(EXIT_FAILED)

    async def _answer(self, number: int, method: str, params: dict[str, Any]) -> None:
        # Cancelled, it ends without an answer: the parent asked for that, and waits for none.
        await self._send(encode_answer(await self._held.answer(number, method, params)))

    async def _close(self) -> None:
        leave(0 if await self._held.close() else EXIT_FAILED)


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
