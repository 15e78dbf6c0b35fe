"""An event loop in virtual time whose schedule is chosen by a tape: other interleavings, and the same ones again.

asyncio promises little about the order in which tasks run, and the plain loop always takes the same one, so races
hide. Here every task that is ready is a *lane*, and all plain callbacks together are one more; the tape picks the
lane that runs next. Inside a lane the order is kept: code that relies on the order of its ``call_soon`` calls is
right, and must not fail. A timer may fire late by up to `jitter_s`, never early. Choice 0 is asyncio's own order.

The same tape gives the same run, whatever the CPython, the hash seed and the addresses: tasks are numbered and hash
by number (asyncio keeps them in sets, and cancels them in the order of those), labels hold no address, timers due at
the same instant keep their order, and cyclic garbage is collected at fixed steps. Threads and sockets are refused.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

from .tape import Tape
from .virtual_time import Stalled

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

COLLECT_STEPS = 20_000
"""Steps between two collections of young cyclic garbage."""
JITTERS = 5
"""Different lateness of a timer, evenly from 0 to `jitter_s`."""


class Endless(Exception):
    """The simulation took more steps than it may: something runs for ever without getting anywhere."""


class Killed(Exception):
    """The simulated process was killed: nothing of it runs any more."""


class NumberedTask(asyncio.Task[Any]):
    """A task that hashes by its number, so that a set of tasks has the same order in every process."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **kwargs: Any) -> None:
        self.number = number
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Lane:
    """Handles of one task, or all those of no task, in their order."""

    __slots__ = ("handles", "owner")

    def __init__(self, owner: NumberedTask | None) -> None:
        self.owner = owner
        self.handles: deque[tuple[int, asyncio.Handle]] = deque()


class SeededLoop(asyncio.BaseEventLoop):
    """A loop in virtual time that runs what `tape` picks. Make it with `seeded_loop`."""

    def __init__(self, tape: Tape, *, jitter_s: float, steps_max: int, start_s: float = 0.0) -> None:
        super().__init__()
        self.set_debug(False)  # debug mode would add steps of its own
        self.tape = tape
        self.now_s = start_s
        self.steps = 0
        self.killed = False
        """Set to end the process at once, when the callback that runs is done."""
        self.errors: list[str] = []
        """What asyncio's exception handler was told: exceptions that nobody awaited."""
        self.set_exception_handler(self._note_error)
        self._jitter_s = jitter_s
        self._steps_max = steps_max
        self._digest = blake2b(digest_size=8)
        self._choosing = True
        self._tasks_made = 0
        self._live: weakref.WeakValueDictionary[int, NumberedTask] = weakref.WeakValueDictionary()
        self._entered = 0
        self._batch_end = 0
        self._callbacks = _Lane(None)
        self._lanes: dict[int, _Lane] = {}  # lanes of tasks that are ready, by number
        self._heads: list[tuple[int, _Lane]] = []  # ready lanes, the one that waits longest first
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0

    # What asyncio asks of a loop

    def time(self) -> float:
        """Return virtual seconds."""
        return self.now_s

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Enter `callback` at the end of its lane."""
        self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.Handle(callback, args, self, context)
        self._enter(callback, handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Do what `call_soon` does; there are no other threads here."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at virtual time `when`, or up to the jitter later."""
        self._check_closed()  # type: ignore[attr-defined]
        if self._choosing and self._jitter_s:
            when += self.tape.draw("schedule", JITTERS) * self._jitter_s / (JITTERS - 1)
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call after `delay` virtual seconds, or up to the jitter later."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def create_task(self, coro: Any, *, name: object = None, context: Any = None) -> Any:
        """Start a task with a number of this loop."""
        self._check_closed()  # type: ignore[attr-defined]
        number = self._tasks_made
        self._tasks_made += 1
        label = f"task {number}" if name is None else str(name)
        task = NumberedTask(number, coro, loop=self, name=label, context=context)
        self._live[number] = task
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Refuse: a thread has no place in virtual time."""
        raise RuntimeError("a simulation has no threads: run_in_executor is refused")

    # The loop itself

    @property
    def digest(self) -> str:
        """Digest over (virtual time, choice, label) of every step so far."""
        return self._digest.hexdigest()

    def waiting(self) -> list[str]:
        """Return the names of all tasks that are not done, oldest first."""
        return [task.get_name() for _, task in sorted(self._live.items()) if not task.done()]

    def _enter(self, callback: Any, handle: asyncio.Handle) -> None:
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, NumberedTask):
            lane = self._lanes.get(owner.number)
            if lane is None:
                lane = self._lanes[owner.number] = _Lane(owner)
        else:
            lane = self._callbacks
        self._entered += 1
        if not lane.handles:
            self._heads.append((self._entered, lane))
        lane.handles.append((self._entered, handle))

    def _run_once(self) -> None:
        """Run lanes until somebody stops the loop; what `run_forever` calls."""
        while not self._stopping:
            if not self._heads or self._heads[0][0] > self._batch_end:
                self._fire_timers()  # asyncio looks at them after each batch of what was ready
                self._batch_end = self._entered
            if self._heads:
                self._step()

    def _step(self) -> None:
        heads = self._heads
        choice = self.tape.draw("schedule", len(heads)) if self._choosing else 0
        _, lane = heads.pop(choice)
        _, handle = lane.handles.popleft()
        if lane.handles:
            insort(heads, (lane.handles[0][0], lane), key=_entered_at)
        elif lane.owner is not None:
            del self._lanes[lane.owner.number]
        if handle.cancelled():
            return
        self.steps += 1
        if self._choosing:
            name = _name_of(handle) if lane.owner is None else lane.owner.get_name()
            self._digest.update(f"{self.now_s!r} {choice} {name}\n".encode())
        if self.steps % COLLECT_STEPS == 0:
            gc.collect(1)
        if self.steps > self._steps_max:
            raise Endless(f"no end after {self._steps_max:,} steps, at {self.now_s:.1f} virtual seconds")
        handle._run()  # a callback's exception goes to the exception handler
        if self.killed and self._choosing:
            raise Killed(f"killed at {self.now_s:.3f} virtual seconds")

    def _fire_timers(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not self._heads:
            if not timers:
                raise Stalled(f"every task waits, and no timer runs: {', '.join(self.waiting())}")
            self.now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= self.now_s:
            timer = heappop(timers)[2]
            if not timer.cancelled():
                self._enter(timer._callback, timer)  # type: ignore[attr-defined]

    def _note_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(
            f"{context['message']}: {type(error).__name__}: {error}" if error else context["message"]
        )

    def clear_up(self) -> None:
        """Cancel the tasks that are left, oldest first, and close; nothing of it is recorded."""
        self._choosing = False
        self._stopping = False
        for _, handle in self._callbacks.handles:
            if _name_of(handle) == "_run_until_complete_cb":
                handle.cancel()  # of a run that was killed when it was done: it would stop what follows
        left = [task for _, task in sorted(self._live.items()) if not task.done()]
        for task in left:
            task.cancel()
        self._steps_max = self.steps + 100_000
        try:
            for task in left:
                if not task.done():
                    self.run_until_complete(asyncio.wait({task}))
            self.run_until_complete(self.shutdown_asyncgens())
        except (Stalled, Endless):
            pass  # a task that refuses to be cancelled stays where it is
        finally:
            self.close()


def _entered_at(head: tuple[int, _Lane]) -> int:
    return head[0]


def _name_of(handle: asyncio.Handle) -> str:
    """Return what a callback is called, without any address."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    while isinstance(callback, partial):
        callback = callback.func
    return str(getattr(callback, "__qualname__", type(callback).__name__))


@contextmanager
def seeded_loop(
    tape: Tape, *, jitter_s: float = 0.02, steps_max: int = 20_000_000, start_s: float = 0.0
) -> Iterator[SeededLoop]:
    """Yield a loop that runs as `tape` says; what is left at the end is cancelled, outside the recorded run.

    ``loop.run_until_complete`` raises `Stalled` where every task would wait for ever, `Endless` after `steps_max`
    steps, and `Killed` once `SeededLoop.killed` is set. Time begins at `start_s`.
    """
    collecting = gc.isenabled()
    gc.disable()  # finalisers would otherwise run at steps that depend on the process
    loop = SeededLoop(tape, jitter_s=jitter_s, steps_max=steps_max, start_s=start_s)
    try:
        yield loop
    finally:
        try:
            loop.clear_up()
        finally:
            if collecting:
                gc.enable()


def run_seeded(work: Coroutine[Any, Any, T], tape: Tape, *, jitter_s: float = 0.02) -> tuple[T, str]:
    """Run `work` as `tape` says; return its result and the run's digest. Raises `Stalled` and `Endless`."""
    with seeded_loop(tape, jitter_s=jitter_s) as loop:
        return loop.run_until_complete(work), loop.digest
