"""The lives of what a pool keeps, engines or workers: each is lost once, closed, and begins anew only after that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from ..events.types import Event
from .waits import Expired, Waiter


class Status(Protocol):
    """What the view says of one of them."""

    @property
    def state(self) -> str:
        """Is ``lost`` from its loss to its restart."""
        ...

    @property
    def restarts(self) -> int:
        """The number of its present life."""
        ...


class Lives:
    """Tells the lives of each member of a pool apart, and ends the one that is lost.

    `statuses` is what the view says, `lost` makes the event of a loss from a name and a message, and `close`, an
    effect of the name `closing`, ends what is left of a member.
    """

    def __init__(
        self,
        waiter: Waiter,
        statuses: Callable[[], Mapping[str, Status]],
        lost: Callable[[str, str], Event],
        close: Callable[[str], Awaitable[None]],
        *,
        closing: str,
        close_s: float,
    ) -> None:
        self.tasks: asyncio.TaskGroup | None = None
        """Where the pool works; None before that, and once the run is ending."""
        self._waiter = waiter
        self._statuses = statuses
        self._lost = lost
        self._close = close
        self._effect = closing
        self._close_s = close_s
        self._closing: dict[str, asyncio.Task[None]] = {}

    @contextmanager
    def within(self, tasks: asyncio.TaskGroup) -> Iterator[None]:
        """Close what is lost in `tasks`, as long as this lasts."""
        self.tasks = tasks
        try:
            yield
        finally:
            self.tasks = None

    def present(self, name: str) -> int:
        """Return the number of the present life: how often the member has been restarted."""
        self._waiter.bus.fold()
        status = self._statuses().get(name)
        return status.restarts if status is not None else 0

    def lose(self, name: str, message: str, life: int) -> None:
        """Declare a member lost, once, and end what is left of it, which fails the calls that it holds.

        `life` is the number of restarts it had when the trouble began: what a former life still has to say is not
        held against the present one.
        """
        self._waiter.bus.fold()
        status = self._statuses().get(name)
        if status is not None and (status.state == "lost" or status.restarts != life):
            return
        self._waiter.publish(self._lost(name, message))
        self._waiter.bus.fold()
        if self.tasks is None:
            return  # the run is ending, and closes every member itself
        ending = self._end(name)
        try:
            self._closing[name] = self.tasks.create_task(ending, name=f"close {name}")
        except RuntimeError:  # a defect is ending the pool's tasks, and the run with it: that is its cause, not this
            ending.close()

    async def ended(self, name: str) -> None:
        """Wait until nothing is left of the life before; bounded by the deadline of its close."""
        if name in self._closing:
            await self._closing.pop(name)

    async def _end(self, name: str) -> None:
        try:
            await self._waiter.bounded(self._effect, name, self._close_s, self._close(name))
        except Expired:
            return  # DeadlineExpired says so; a start that meets its remains fails with its own error
