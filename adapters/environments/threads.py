"""Run plain functions of users beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(call: Callable[[], T], name: str) -> T:
    """Return what `call` returns, or raise what it raises, without blocking the event loop.

    Each call has a daemon thread of its own. It is not the pool of `asyncio.to_thread`: a verifier that never
    returns would keep a place in that pool, and the process would wait for it at its end.

    Cancelling stops the wait and leaves the thread to itself; what it returns later is dropped.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if answer.cancelled():
            return
        if error is None:
            answer.set_result(result)  # type: ignore[arg-type]  # None only beside an error
        elif isinstance(error, StopIteration):
            answer.set_exception(RuntimeError("the call raised StopIteration"))
        else:
            answer.set_exception(error)

    def work() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to the caller
            failure = error
        except SystemExit as error:
            failure = RuntimeError(f"the call tried to end the process: exit status {error.code}")
        except BaseException as error:  # noqa: BLE001  # no Ctrl-C or cancellation reaches a thread: the call raised it
            failure = RuntimeError(f"the call raised {type(error).__name__}")
        try:
            loop.call_soon_threadsafe(deliver, result, failure)
        except RuntimeError:
            # The loop was closed while the call ran: nobody waits any more.
            return

    threading.Thread(target=copy_context().run, args=(work,), name=name, daemon=True).start()
    return await answer
