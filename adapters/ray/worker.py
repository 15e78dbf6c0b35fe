"""A worker in a Ray cluster, seen from the controller: the `Worker` protocol over an actor's handle."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..worker import RemoteError, WorkerGone, last_lines
from .cluster import RayCluster

WATCH_AGAIN_S = 1.0
"""Wait before a connection that broke is tried again: the actor may live."""
GONE_S = 2.0
"""How long a call that failed with its actor waits to learn how the actor ended."""
KILL_S = 10.0
CAUSE_CHARS_MAX = 300
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
WHY = tuple(
    re.compile(pattern)
    for pattern in (
        r"Worker exit detail: (.+?)(?: Some common causes include|$)",
        r"(The actor is dead because .+)",
        r"(The actor died because .+)",
    )
)


class RayWorker:
    """One actor and the calls that are under way in it. Made by `RayLauncher.start`, ended by `close`.

    To be used from the event loop that started it.
    """

    def __init__(
        self,
        cluster: RayCluster,
        name: str,
        actor: Any,
        said: dict[str, Any],
        log_path: Path | None,
        reached: Callable[[str, str], Awaitable[str]],
    ) -> None:
        self.name = name
        self.gpus: Sequence[int] | None = None
        self.node = "" if said["home"] else str(said["node"])
        self._place = f"{name} (pid {said['pid']} on {said['node']})"
        self._pid: int | None = said["pid"] if said["home"] else None
        self._process = _process_of(self._pid)
        self._log_path = log_path if said["home"] else None
        self._cluster = cluster
        self._node_id: str = said["node_id"]
        self._reached = reached
        self._actor = actor
        self._loop = asyncio.get_running_loop()
        self._calls = 0
        self._gone: str | None = None
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._watch()

    @property
    def pid(self) -> int | None:
        """Its process, where that is one of this machine."""
        return self._pid

    @property
    def alive(self) -> bool:
        """Whether it is not known to have ended."""
        return self._gone is None

    async def call(self, method: str, /, *, deadline_s: float | None = None, **params: Any) -> Any:
        """Call `method` of the actor's object; see `Worker.call`.

        An actor that cannot be reached raises `WorkerGone` too: it may live, and nobody can tell what it has done.
        """
        if self._gone is not None:
            raise WorkerGone(self._gone)
        number = self._calls
        order = msgspec.msgpack.encode([number, method, params])
        self._calls += 1
        answered = False
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._answer(self._actor.call.remote(order))
            answered = True
        except RemoteError as error:  # of Ray, and not of the object, whose own errors are answers
            answered = True
            raise WorkerGone(f"{self.name} cannot be reached: {error}") from error
        except WorkerGone:
            answered = True
            raise
        finally:
            if not answered and self._gone is None:
                self._actor.cancel.remote(number)
        match msgspec.msgpack.decode(answer):
            case ["ok", _, result]:
                return result
            case ["error", _, kind, text]:
                raise RemoteError(kind, text)
            case other:
                raise RemoteError("TypeError", f"{self.name} answered {other!r}")

    async def reach(self, path: str) -> str:
        """Return where it finds a file that the learner has written; see `Worker.reach`."""
        if self._gone is not None:
            raise WorkerGone(self._gone)
        return await self._reached(path, self._node_id)

    async def reports(self, received: int, deadline_s: float) -> bytes:
        """Return what the worker has to tell since item `received`; see `Outbox.answer`.

        Raises `WorkerGone`, `RemoteError` while it cannot be reached, and `TimeoutError` after `deadline_s`.
        """
        async with asyncio.timeout(deadline_s):
            answer: bytes = await self._answer(self._actor.reports.remote(received))
        return answer

    async def wait_gone(self) -> str:
        """Wait until it has ended; return how, in one line. Cancelling changes nothing."""
        return await asyncio.shield(self._ended)

    async def close(self, deadline_s: float) -> None:
        """Let its object close, for half of `deadline_s`, and kill the actor. Idempotent.

        Calls under way end in `WorkerGone`. Cancelled, it kills the actor at once.
        """
        try:
            if self._gone is None:
                with suppress(TimeoutError, WorkerGone, RemoteError):
                    async with asyncio.timeout(deadline_s / 2):
                        await self._answer(self._actor.close.remote())
        finally:
            await self._cluster.kill(self._actor)
            with suppress(TimeoutError):
                async with asyncio.timeout(KILL_S):
                    await self.wait_gone()
                    await self._process_ended()
            self._end("was closed")

    async def _answer(self, ref: Any) -> Any:
        """Return what `ref` brings. Raises `WorkerGone`, and `RemoteError` for what else Ray says."""
        errors = self._cluster.errors
        try:
            return await settled(ref)
        except (errors.ActorDiedError, errors.NodeDiedError) as error:
            with suppress(TimeoutError):
                async with asyncio.timeout(GONE_S):
                    await self.wait_gone()
            self._end(f"ended: {cause_of(error)}")
            raise WorkerGone(self._gone) from error
        except errors.RayError as error:
            raise RemoteError(type(error).__name__, cause_of(error)) from error

    async def _process_ended(self) -> None:
        """Wait until its process, if that is one of this machine, has let go of all that it held."""
        process, self._process = self._process, None
        if process is None:
            return
        over: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(process, over.cancel)
        try:
            await asyncio.wait({over})
        finally:
            self._loop.remove_reader(process)
            os.close(process)

    def _watch(self) -> None:
        """Learn of the actor's end, from a call that lasts as long as it does."""
        if self._gone is not None:
            return

        def over(_: Any, error: BaseException | None) -> None:
            if isinstance(error, self._cluster.errors.ActorUnavailableError):
                self._loop.call_later(WATCH_AGAIN_S, self._watch)
            else:
                self._end(f"ended: {cause_of(error)}" if error is not None else "ended")

        when_settled(self._actor.live.remote(), self._loop, over)

    def _end(self, how: str) -> None:
        if self._gone is not None:
            return
        tail = _tail_of(self._log_path)
        self._gone = f"{self._place} {how}" + (f": {tail}" if tail else "")
        self._ended.set_result(self._gone)


async def settled(ref: Any) -> Any:
    """Return the value of an object reference, or raise its error. Cancelling no longer waits for it."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
            answer.exception()  # seen: whoever waited may have been cancelled in this turn of the loop
        else:
            answer.set_result(value)

    when_settled(ref, loop, settle)
    return await answer


def when_settled(
    ref: Any, loop: asyncio.AbstractEventLoop, then: Callable[[Any, BaseException | None], None]
) -> None:
    """Call ``then(value, error)`` in `loop` once `ref` is there; Ray tells a thread of its own."""

    def told(future: Any) -> None:
        error = future.exception()
        value = None if error is not None else future.result()
        with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
            loop.call_soon_threadsafe(then, value, error)

    ref.future().add_done_callback(told)


def cause_of(error: BaseException) -> str:
    """Return why Ray says that something ended, as one line: the sentence of its story that says why."""
    lines = [line.strip() for line in COLOURS.sub("", str(error)).splitlines() if line.strip()]
    if getattr(error, "actor_init_failed", False):
        return lines[-1]  # a traceback, of which this is the error
    text = " ".join(lines) or type(error).__name__
    for pattern in WHY:
        found = pattern.search(text)
        if found:
            text = found.group(1)
            break
    return text if len(text) <= CAUSE_CHARS_MAX else text[: CAUSE_CHARS_MAX - 3] + "..."


def _process_of(pid: int | None) -> int | None:
    """Return a descriptor that can be read once process `pid` has ended; None where there is no such thing."""
    if pid is None or sys.platform != "linux":
        return None
    with suppress(OSError):  # it has ended already
        return os.pidfd_open(pid)
    return None


def _tail_of(log_path: Path | None) -> str:
    if log_path is None:
        return ""
    try:
        with log_path.open("rb") as log:
            return last_lines(log)
    except OSError:
        return ""
