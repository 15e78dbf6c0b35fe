"""A child process that does heavy work behind a message channel, seen from the parent.

The engine and the learner each live in one. This is not a process pool: a worker holds one object, for as long as
the run needs it, and the parent calls the object's methods by name. The other side is `worker_serve`.

A message is a four-byte little-endian length and a msgpack list, over a socket pair that the child inherits:

    parent to child   ["call", number, method, params]   ["cancel", number]   ["close"]
    child to parent   ["up"]   ["failed", kind, message]   ["ok", number, result]   ["error", number, kind, message]

Nothing is pickled, so neither side can make the other run code, and bytes pass through untouched. The child has a
session of its own: a terminal's Ctrl-C reaches the parent alone, which then decides. POSIX only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 2**32 - 1
MESSAGES_A_TURN = 16
"""Answers handed over in one turn of the event loop; a rollout's turn takes a fraction of a millisecond."""
TAIL_BYTES = 4096
"""How much of the child's output is read to say why it ended."""
TAIL_LINES = 3
REAP_S = 0.05
"""A dying child closes its channel some microseconds before it can be reaped; this long is waited for that."""
POLL_S = 0.005

_NO_ENV: Mapping[str, str] = {}


class WorkerFailed(Exception):
    """The child did not come up. `kind` is the class name of what was raised in it, or ``""``."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class WorkerGone(Exception):
    """The child ended, or was never there to answer; every call to it ends in this."""


class RemoteError(Exception):
    """A method in the child raised an exception of class `kind` with text `message`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message


def encode_frame(message: list[Any]) -> bytes:
    """Return `message` as one length-prefixed frame. Raises TypeError for what msgpack cannot carry."""
    return framed(msgspec.msgpack.encode(message))


def framed(body: bytes) -> bytes:
    """Return `body` with its length before it. Raises ValueError if it is too long for that."""
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"a message has at most {FRAME_BYTES_MAX} bytes, this one has {len(body)}")
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


class WorkerProcess:
    """One child process and the calls that are under way in it.

    Made by `start`, ended by `close`. To be used from the event loop that started it.
    """

    node = ""
    gpus: Sequence[int] | None = None

    def __init__(self, name: str, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._output = output
        self._transport: asyncio.WriteTransport | None = None
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._calls = 0
        self._gone: str | None = None
        self._gone_waiters: set[asyncio.Future[str]] = set()
        self._up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(
        cls,
        target: str,
        settings: dict[str, Any],
        *,
        name: str,
        log_path: Path | None,
        deadline_s: float,
        env: Mapping[str, str] = _NO_ENV,
        python: str | None = None,
    ) -> WorkerProcess:
        """Start a child, have it make its object, and return when it answers.

        `target` is ``"package.module:function"``; the function is called in the child with `settings` (what
        msgpack can carry) and returns the object whose public methods `call` reaches. Standard output and error
        are appended to `log_path`. `env` is laid over the parent's environment. `python` is the interpreter, by
        default the parent's own; eventrain must be installed beside it.

        Raises `WorkerFailed` with the child's own error if it does not come up within `deadline_s`. Cancelled or
        failed, it leaves no process behind.
        """
        process, channel, output = _spawn(target, settings, name, log_path, env, python or sys.executable)
        worker = cls(name, process, output)
        try:
            loop = asyncio.get_running_loop()
            worker._transport, _ = await loop.create_connection(
                lambda: _Channel(worker._take, worker._ended), sock=channel
            )
            worker._transport.write(encode_frame(["make", target, settings]))
            async with asyncio.timeout(deadline_s):
                await worker._up
        except TimeoutError:
            await worker._kill()
            raise WorkerFailed(f"{name} was not up within {deadline_s:g} s") from None
        except BaseException:
            await worker._kill()
            raise
        return worker

    async def call(self, method: str, /, *, deadline_s: float | None = None, **params: Any) -> Any:
        """Call `method` of the child's object and return its result, as msgpack brings it (tuples become lists).

        Calls run concurrently: async methods on the child's loop, others one after another in a thread there.
        Raises `RemoteError` for what the method raised, `WorkerGone` once the child has ended, `TimeoutError`
        after `deadline_s`. Cancelled or expired, it asks the child to cancel that call and does not wait for it;
        a method that is no coroutine, once begun, runs to its end and its result is dropped.
        """
        if self._gone is not None or self._transport is None:
            raise WorkerGone(self._gone or f"{self.name} is not connected")
        number = self._calls
        frame = encode_frame(["call", number, method, params])
        self._calls += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        self._transport.write(frame)
        answered = False
        try:
            async with asyncio.timeout(deadline_s):
                result = await answer
            answered = True
            return result
        except (RemoteError, WorkerGone):
            answered = True
            raise
        finally:
            self._pending.pop(number, None)
            _read(answer)
            if not answered and self._gone is None:
                self._transport.write(encode_frame(["cancel", number]))

    @property
    def alive(self) -> bool:
        """Whether the child is not known to have ended."""
        return self._gone is None

    async def reach(self, path: str) -> str:
        """Return `path`: the child has the files of this machine."""
        return path

    async def wait_gone(self) -> str:
        """Wait until the child has ended; return how, in one line. Cancelling changes nothing."""
        if self._gone is not None:
            return self._gone
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._gone_waiters.add(waiter)
        try:
            return await waiter
        finally:
            self._gone_waiters.discard(waiter)

    async def close(self, deadline_s: float) -> None:
        """End the child: ask, and send SIGTERM, then SIGKILL, if it does not go. Idempotent.

        Asking has half of `deadline_s`, SIGTERM a quarter. Calls under way end in `WorkerGone`. Cancelling kills
        the child at once.
        """
        try:
            if self._gone is None and self._transport is not None:
                self._transport.write(encode_frame(["close"]))
            if not await self._exited(deadline_s / 2):
                self._signal(signal.SIGTERM)
                await self._exited(deadline_s / 4)
        finally:
            await self._kill()

    # What the channel reports

    def _take(self, message: list[Any]) -> None:
        match message:
            case ["ok", number, result]:
                answer = self._pending.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(result)
            case ["error", number, kind, text]:
                answer = self._pending.get(number)
                if answer is not None and not answer.done():
                    answer.set_exception(RemoteError(kind, text))
            case ["up"]:
                if not self._up.done():
                    self._up.set_result(None)
            case ["failed", kind, text]:
                if not self._up.done():
                    self._up.set_exception(WorkerFailed(f"{self.name} did not start: {kind}: {text}", kind))
                    _read(self._up)

    def _ended(self) -> None:
        """Fail what is pending; called once, when the channel has closed."""
        if self._gone is not None:
            return
        with suppress(subprocess.TimeoutExpired):  # it closed its channel and lives on: close() ends it
            self._process.wait(REAP_S)
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # what it has started, and has not taken with it
        self._gone = self._epitaph()
        if not self._up.done():
            self._up.set_exception(WorkerFailed(self._gone))
            _read(self._up)
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(WorkerGone(self._gone))
        for waiter in self._gone_waiters:
            if not waiter.done():
                waiter.set_result(self._gone)

    def _epitaph(self) -> str:
        code = self._process.poll()
        if code is None:
            how = "closed its channel"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        tail = last_lines(self._output)
        return f"{self.name} (pid {self.pid}) {how}" + (f": {tail}" if tail else "")

    # Ending

    async def _exited(self, seconds: float) -> bool:
        """Return whether the process has been reaped, waiting at most `seconds` for it."""
        try:
            async with asyncio.timeout(seconds):
                while self._process.poll() is None:  # noqa: ASYNC110 - reaping has no event
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return self._process.poll() is not None
        return True

    async def _kill(self) -> None:
        """Kill what is left of the child's process group, reap the child and let go of channel and output."""
        self._signal(signal.SIGKILL)
        try:
            await self._exited(10.0)
        finally:
            if self._transport is not None:
                self._transport.close()
            self._ended()
            self._output.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is not None:
            return
        with suppress(ProcessLookupError):  # it ended in this instant
            os.killpg(self.pid, number)  # the child leads its own group


class _Channel(asyncio.Protocol):
    """Cuts what the child sends into messages, and hands over a few in each turn of the event loop.

    A batch that decodes a hundred requests answers all of them at once. Woken in one turn, they would hold up
    everybody else for as long as a hundred of them take: the trainer on its way to the next step, timers, a person
    who watches.
    """

    def __init__(self, take: Callable[[list[Any]], None], ended: Callable[[], None]) -> None:
        self._take = take
        self._closed = ended
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self._more_due = False
        self._ended = False

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._more_due:
            self._hand_over()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        self._ended = True
        if not self._more_due:
            self._closed()

    def _hand_over(self) -> None:
        self._more_due = False
        buffer, start, taken = self._buffer, 0, 0
        while len(buffer) - start >= LENGTH_BYTES:
            body = start + LENGTH_BYTES
            end = body + int.from_bytes(buffer[start:body], "little")
            if len(buffer) < end:
                break
            if taken == MESSAGES_A_TURN:
                self._more_due = True
                self._loop.call_soon(self._hand_over)
                break
            self._take(msgspec.msgpack.decode(bytes(buffer[body:end])))
            start, taken = end, taken + 1
        del buffer[:start]
        if self._ended and not self._more_due:
            self._closed()


def _spawn(
    target: str,
    settings: dict[str, Any],
    name: str,
    log_path: Path | None,
    env: Mapping[str, str],
    python: str,
) -> tuple[subprocess.Popen[bytes], socket.socket, IO[bytes]]:
    """Start the child; return it with the parent's end of the channel and the file of its output."""
    encode_frame(["make", target, settings])  # what cannot be sent must fail before there is a process
    output: IO[bytes]
    if log_path is None:
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
    else:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        output = log_path.open("a+b")
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        process = subprocess.Popen(
            # -P: the folder one happens to stand in (a foreign run folder, say) offers no modules.
            [
                python,
                "-P",
                "-m",
                "eventrain.adapters.worker_serve",
                str(theirs.fileno()),
                str(os.getpid()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        output.close()
        raise WorkerFailed(f"{name} could not be started: {error}", type(error).__name__) from error
    finally:
        theirs.close()
    return process, ours, output


def _read(answer: asyncio.Future[Any]) -> None:
    """Mark what `answer` raises as seen: whoever waited may have been cancelled in the same turn of the loop."""
    if answer.done() and not answer.cancelled():
        answer.exception()


def last_lines(output: IO[bytes]) -> str:
    """Return the last lines of what the child wrote, as one line."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - TAIL_BYTES))
    lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines()]
    return " | ".join([line for line in lines if line][-TAIL_LINES:])
