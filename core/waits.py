"""The one way to wait, and the one way to ask the outside.

`Waiter.until` is how an actor waits: it has a name, it is in the log while it lasts, and no wakeup can be lost
because the predicate is checked again after every fold. `bounded` is how an effect is awaited: with a deadline
whose expiry is an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from ..events.bus import Bus
from ..events.record import Record
from ..events.types import Blocked, DeadlineExpired, EdgeName, Event, Unblocked
from .ports import Clock, PortError

T = TypeVar("T")


class Expired(Exception):
    """A wait or an effect took longer than its deadline allows; the log says so already."""

    def __init__(self, effect: str, subject: str, limit_s: float) -> None:
        super().__init__(f"{effect} of {subject}: no end within {limit_s:g} s")
        self.effect = effect
        self.limit_s = limit_s


@dataclass(frozen=True, slots=True)
class Edge:
    """What is waited for: its name, what is needed, and what there is."""

    name: EdgeName
    awaited: str
    present: str


async def _awaited(work: Awaitable[T]) -> T:
    return await work


class Begun(Generic[T]):
    """Work that has run up to its first wait; awaiting it, in the same task, does the rest.

    What it raises before its first wait is raised at once. Cancelling reaches it as if it were awaited itself.
    """

    def __init__(self, work: Awaitable[T]) -> None:
        self._steps = _awaited(work)
        self._waits_for: Any = None
        self.ended = False
        self.result: T
        self._go(self._steps.send, None)

    def _go(self, step: Callable[[Any], Any], argument: object) -> None:
        try:
            self._waits_for = step(argument)
        except StopIteration as end:
            self.ended, self.result = True, end.value

    def __await__(self) -> Generator[Any, Any, T]:
        """Return the result, or raise what the work raises."""
        while not self.ended:
            try:
                answer = yield self._waits_for
            except BaseException as error:  # noqa: BLE001 - the work's to handle, like all that reaches its task
                self._go(self._steps.throw, error)
            else:
                self._go(self._steps.send, answer)
        return self.result


class Waiter:
    """An actor's hold on the bus: it publishes in the actor's name and waits in it."""

    def __init__(self, bus: Bus, clock: Clock, actor: str) -> None:
        self.bus = bus
        self.clock = clock
        self.actor = actor

    def publish(self, event: Event, *, cause: int | None = None, corr: str | None = None) -> Record:
        """Append an event; see `Bus.publish`."""
        return self.bus.publish(self.actor, event, cause=cause, corr=corr)

    def elapsed_s(self, since_ns: int) -> float:
        """Return the seconds since `since_ns` of the monotonic clock."""
        return (self.clock.mono_ns() - since_ns) / 1e9

    async def until(
        self,
        ready: Callable[[], T | None],
        edge: Callable[[], Edge],
        *,
        deadline_s: float | None = None,
        waiter: str | None = None,
    ) -> T:
        """Return the first value of `ready` that is neither None nor False; wait for it if need be.

        `ready` reads projections only. While it waits, the log holds a Blocked event with what `edge` says.
        Raises `Expired` after `deadline_s`. Cancelling ends the wait with Unblocked(cancelled) and changes
        nothing else.
        """
        self.bus.fold()
        value = ready()
        if value is not None and value is not False:
            return value
        found: list[T] = []

        def holds() -> bool:
            value = ready()
            if value is None or value is False:
                return False
            found[:] = [value]
            return True

        async with self._blocked(edge(), deadline_s, waiter or self.actor):
            await self.bus.watch(holds)
        return found[0]

    async def durable(self, record: Record, *, deadline_s: float) -> None:
        """Wait until `record` is on disk. Raises `LogWriteError`, or `Expired` after `deadline_s`."""
        if self.bus.durable_seq >= record.seq:
            return
        edge = Edge("durable", f"seq {record.seq}", f"seq {self.bus.durable_seq}")
        async with self._blocked(edge, deadline_s, self.actor):
            await self.bus.durable(record.seq)

    @asynccontextmanager
    async def _blocked(self, edge: Edge, deadline_s: float | None, waiter: str) -> AsyncIterator[None]:
        blocked = self.publish(
            Blocked(waiter=waiter, edge=edge.name, awaited=edge.awaited, present=edge.present)
        )

        def unblocked(outcome: Literal["ready", "expired", "cancelled"]) -> None:
            self.publish(
                Unblocked(
                    waiter=waiter,
                    edge=edge.name,
                    blocked=blocked.seq,
                    outcome=outcome,
                    seconds=self.elapsed_s(blocked.mono),
                )
            )

        limit = asyncio.timeout(deadline_s)
        try:
            async with limit:
                yield
        except TimeoutError:
            if deadline_s is None or not limit.expired():
                raise
            subject = f"{edge.name}({edge.awaited})"
            self.publish(
                DeadlineExpired(effect="wait", subject=subject, limit_s=deadline_s), cause=blocked.seq
            )
            unblocked("expired")
            raise Expired("wait", subject, deadline_s) from None
        except BaseException:
            unblocked("cancelled")
            raise
        unblocked("ready")

    async def bounded(self, effect: str, subject: str, limit_s: float, work: Awaitable[T]) -> T:
        """Await `work` for at most `limit_s`; then cancel it, publish DeadlineExpired and raise `Expired`.

        A CancelledError that nobody here asked for comes from inside `work` and is raised as `PortError`: passed
        on, it would end the actor without a trace, and whoever counts on the actor would wait for ever.
        """
        task, requests, limit = None, 0, None
        try:
            begun = Begun(work)
            if begun.ended:
                return begun.result  # as most environments do: no time has passed, and no timer is needed
            task = asyncio.current_task()
            assert task is not None
            requests, limit = task.cancelling(), asyncio.timeout(limit_s)
            async with limit:
                return await begun
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling() > requests:
                raise
            raise PortError(f"{effect} of {subject} was cancelled from within") from error
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            self.publish(DeadlineExpired(effect=effect, subject=subject, limit_s=limit_s))
            raise Expired(effect, subject, limit_s) from None

    async def unless(self, over: Callable[[], bool], work: Coroutine[Any, Any, T]) -> T | None:
        """Return what `work` returns, or None after cancelling it because `over` became true of the projections.

        Raises what `work` raises, as it is. Cancelling cancels `work`.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(work)
                watching = tasks.create_task(self.bus.watch(over))
                await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
                watching.cancel()
                working.cancel()  # does nothing to a task that is done
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return None if working.cancelled() else working.result()
