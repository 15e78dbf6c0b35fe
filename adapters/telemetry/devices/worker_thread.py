"""A thread of one's own for calls that may hang: nobody waits for it, not even the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Worker(Protocol):
    """Where blocking calls are made."""

    async def ask(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises. Cancelling no longer waits for it."""
        ...

    def end(self, work: Callable[[], object]) -> None:
        """Make one last call, `work`, whatever becomes of it, and take no more. Nobody waits for it."""
        ...


class WorkerThread:
    """A daemon thread that makes one call after the other. An executor's would hold up the exit if one hangs."""

    def __init__(self, name: str) -> None:
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def ask(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises. Cancelling no longer waits for it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised where it was asked for
                self._tell(loop, answer, answer.set_exception, error)
            else:
                self._tell(loop, answer, answer.set_result, result)

        self._asked.put(call)
        return await answer

    def end(self, work: Callable[[], object]) -> None:
        """Make one last call, `work`, whatever becomes of it, and take no more. Nobody waits for it."""

        def call() -> None:
            with suppress(Exception):  # there is nobody left to tell
                work()

        self._asked.put(call)
        self._asked.put(None)

    def _work(self) -> None:
        while (call := self._asked.get()) is not None:
            call()

    @staticmethod
    def _tell(
        loop: asyncio.AbstractEventLoop,
        answer: asyncio.Future[Any],
        settle: Callable[[Any], None],
        value: object,
    ) -> None:
        def settled() -> None:
            if not answer.done():  # else whoever asked has given up
                settle(value)

        with suppress(RuntimeError):  # the loop has ended, and whoever asked with it
            loop.call_soon_threadsafe(settled)
