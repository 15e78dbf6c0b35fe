"""The bus: one dense sequence of events, folded first and delivered after.

It is not a queue and not a broker. There is one in-memory tail of the log; a subscriber is a cursor into it
plus one wake that carries no data, and an actor waits on a predicate over projections. `Bus.publish` gives
the next `seq` synchronously, so seq order is delivery order is file order. That order is a contract: replay
depends on it.

Each turn of the event loop that published anything runs one *tick*: all projections fold what is new, record
by record and in registration order, and only then are actors and subscribers woken. A view is therefore never
behind the event that woke its reader, and never depends on how events happened to be batched.

Everything here belongs to the loop's thread. Only the log writer lives elsewhere, and reports back through
``loop.call_soon_threadsafe``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from .errors import LogWriteError
from .record import Clock, Record, current_cause, current_corr
from .types import Event


class Projection(Protocol):
    """A pure fold: no effects, no clock, no publishing."""

    def apply(self, record: Record) -> None:
        """Take the next record into account."""
        ...


class Writer(Protocol):
    """What the bus asks of a log writer; `LogWriter` is the real one."""

    def start(self, on_durable: Callable[[int], None], on_error: Callable[[LogWriteError], None]) -> None:
        """Begin to write. Both callbacks may be called from any thread."""
        ...

    def append(self, record: Record) -> None:
        """Take the record to be written; never blocks."""
        ...

    def hurry(self) -> None:
        """Write what was taken without waiting for more of it: somebody waits for the disk."""
        ...


P = TypeVar("P", bound=Projection)


class Bus:
    """The order of everything that happens in a run.

    With `writer`, events go to the log as they are published; without one, all that is published counts as
    durable. `next_seq` continues a log that was read before.
    """

    def __init__(self, clock: Clock, writer: Writer | None = None, *, next_seq: int = 0) -> None:
        self.next_seq = next_seq
        """Seq that the next event will get."""
        self._clock = clock
        self._writer = writer
        self._loop: asyncio.AbstractEventLoop | None = None  # known from the first publish inside a loop on
        self._first_seq = next_seq
        self._saved = next_seq - 1
        self._tail: list[Record] = []  # records from seq _base on that some subscriber has yet to read
        self._base = next_seq
        self._folded = next_seq  # all records below are folded, and visible to watchers and subscribers
        self._folding = False
        self._applies: list[Callable[[Record], None]] = []  # of the projections, in registration order
        self._subscriptions: dict[Subscription, None] = {}  # dicts: sets in order of arrival
        self._watchers: dict[_Watcher, None] = {}
        self._savers: dict[asyncio.Future[None], int] = {}  # who awaits which seq on disk
        self._guards: dict[asyncio.Future[None], None] = {}
        self._tick_due = False
        self._failure: Exception | None = None  # the first one
        self._broken = False  # a projection raised: nothing is folded any more
        self._write_error: LogWriteError | None = None
        self._closed = False

    # Publishing and folding

    @property
    def durable_seq(self) -> int:
        """Highest seq on disk, -1 if none."""
        return self._saved if self._writer is not None else self.next_seq - 1

    @property
    def closed(self) -> bool:
        """Whether further events are refused."""
        return self._closed

    @property
    def unsaved(self) -> int:
        """Number of events that are published and not yet durable."""
        return self.next_seq - 1 - self.durable_seq

    def register(self, projection: P) -> P:
        """Add a projection and return it. Refused once something was published: it would have missed that."""
        if self.next_seq != self._first_seq:
            raise RuntimeError("projections are registered before the first event is published")
        self._applies.append(projection.apply)
        return projection

    def publish(
        self, actor: str, event: Event, *, cause: int | None = None, corr: str | None = None
    ) -> Record:
        """Append `event` and return its record; never blocks and never fails because of the disk.

        None for `cause` or `corr` takes what `causing` set. Projections have not seen the record when this
        returns; they have at the next `fold`, at the latest in this turn's tick.
        """
        if self._folding:
            raise RuntimeError("a projection publishes nothing")
        if self._closed:
            raise RuntimeError("the bus is closed")
        seq = self.next_seq
        record = Record(
            seq,
            self._clock.utc_ns(),
            self._clock.mono_ns(),
            actor,
            current_cause() if cause is None else cause,
            current_corr() if corr is None else corr,
            event,
        )
        if self._writer is not None:
            self._writer.append(record)  # first: what it refuses has not happened
        self.next_seq = seq + 1
        self._tail.append(record)
        if not self._tick_due:
            self._schedule_tick()
        return record

    def fold(self) -> None:
        """Feed all pending records to all projections, each record to every one in registration order.

        Idempotent. Raises what a projection raised, then and ever after: its state is no longer the fold of
        the log. `guard` raises the same.
        """
        if self._folding:
            raise RuntimeError("a projection does not fold the bus")
        if self._broken:
            assert self._failure is not None
            raise self._failure
        if self._folded == self.next_seq:
            return
        applies = self._applies
        self._folding = True
        try:
            for record in self._tail[self._folded - self._base :]:
                for apply in applies:
                    apply(record)
                self._folded += 1
        except Exception as error:
            kind = type(record.event).__name__
            error.add_note(f"raised by {apply.__qualname__} at seq {record.seq} ({kind})")
            self._broken = True
            self._fail(error)
            raise
        finally:
            self._folding = False

    # Waiting

    async def watch(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` is true of the folded projections.

        `ready` is a pure predicate. It is asked at once, then in every tick (after events and after each
        group commit), and once more when this task runs again, because one woken before it may have changed
        the state. What it raises is raised here. Cancelling forgets the wait and has no other effect.
        """
        self.fold()
        if ready():
            return
        loop = asyncio.get_running_loop()
        watcher = _Watcher(ready, loop.create_future())
        self._watchers[watcher] = None  # one place in the line for the whole wait
        try:
            while True:
                await watcher.woken
                self.fold()
                if ready():
                    return
                watcher.woken = loop.create_future()
        finally:
            del self._watchers[watcher]

    async def durable(self, seq: int) -> None:
        """Wait until event `seq` is on disk. Raises `LogWriteError` if it never will be.

        Cancelling forgets the wait and has no other effect.
        """
        if seq >= self.next_seq:
            raise ValueError(f"seq {seq} is not published yet")
        if seq <= self.durable_seq:
            return
        if self._write_error is not None:
            raise self._write_error
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._schedule_tick()  # starts the writer if the first events came before there was a loop
        self._savers[saved] = seq
        assert self._writer is not None
        self._writer.hurry()
        try:
            await saved
        finally:
            self._savers.pop(saved, None)

    async def guard(self) -> None:
        """Wait for the first failure, of a projection or of the log writer, and raise it; never return."""
        if self._failure is None:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._guards[failed] = None
            try:
                await failed
            finally:
                del self._guards[failed]
        assert self._failure is not None
        raise self._failure

    def subscribe(self, name: str, *, lossy_after: int | None = None) -> Subscription:
        """Return a cursor that starts at the next published event.

        A lossless one (`lossy_after` None) never misses a record, and keeps in memory what it has not read. A
        lossy one that is more than `lossy_after` records behind skips to that distance and counts what it
        missed.
        """
        if lossy_after is not None and lossy_after < 1:
            raise ValueError("lossy_after must be >= 1")
        subscription = Subscription(self, name, lossy_after)
        self._subscriptions[subscription] = None
        return subscription

    def close(self) -> None:
        """Refuse further events; subscriptions end once they have read everything. Idempotent.

        The log writer is not closed here: it has its own `close`, which waits for the disk.
        """
        self._closed = True
        self._schedule_tick()

    # The tick

    def _schedule_tick(self) -> None:
        if self._tick_due:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # published before the loop runs: whoever waits first inside it comes back here
        if self._loop is None:
            self._loop = loop
            if self._writer is not None:
                self._writer.start(self._durable_from_thread, self._error_from_thread)
        self._tick_due = True
        loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._tick_due = False  # before the reads: whatever is published from here on gets a tick of its own
        if not self._broken:
            with suppress(Exception):  # not lost: fold records it, guard raises it, and the run ends
                self.fold()
        if self._broken:
            self._folded = self.next_seq  # subscribers still learn how the run ended
        else:
            for watcher in list(self._watchers):
                watcher.wake_if_ready()
        self._trim()
        for subscription in self._subscriptions:
            subscription._wake()

    def _trim(self) -> None:
        """Forget records that every subscriber has read or lost."""
        keep_from = self._folded
        for subscription in self._subscriptions:
            keep_from = min(keep_from, subscription._catch_up(self._folded))
        del self._tail[: keep_from - self._base]
        self._base = keep_from

    def _slice(self, start: int, stop: int) -> Sequence[Record]:
        return self._tail[start - self._base : stop - self._base]

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            _resolve(self._guards)

    # The writer reports

    def _durable_from_thread(self, seq: int) -> None:
        self._from_thread(self._on_durable, seq)

    def _error_from_thread(self, error: LogWriteError) -> None:
        self._from_thread(self._on_write_error, error)

    def _from_thread(self, callback: Callable[..., None], argument: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:
            if not self._loop.is_closed():  # a loop that ended has nobody left to tell
                raise

    def _on_durable(self, seq: int) -> None:
        assert seq < self.next_seq, "the writer acknowledged an event that was never published"
        self._saved = max(self._saved, seq)
        _resolve(future for future, awaited in self._savers.items() if awaited <= seq)
        self._schedule_tick()  # predicates may ask about `unsaved`

    def _on_write_error(self, error: LogWriteError) -> None:
        self._write_error = error
        for future in self._savers:
            if not future.done():
                future.set_exception(error)
        self._fail(error)


class _Watcher:
    """One wait on a predicate."""

    __slots__ = ("ready", "woken")

    def __init__(self, ready: Callable[[], bool], woken: asyncio.Future[None]) -> None:
        self.ready = ready
        self.woken = woken

    def wake_if_ready(self) -> None:
        if self.woken.done():
            return
        try:
            if self.ready():
                self.woken.set_result(None)
        except Exception as error:  # noqa: BLE001 - the waiter's own predicate, so raised where it waits
            self.woken.set_exception(error)


class Subscription:
    """A cursor into the bus, read with ``async for batch in subscription`` by one task."""

    def __init__(self, bus: Bus, name: str, lossy_after: int | None) -> None:
        self.name = name
        self.dropped = 0
        """Records that a lossy subscription skipped."""
        self._bus = bus
        self._lossy_after = lossy_after
        self._cursor = bus.next_seq
        self._woken: asyncio.Future[None] | None = None

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Sequence[Record]:
        """Return all records since the last batch; wait while there are none; end when the bus is closed.

        Either returns a batch, or is cancelled and leaves the position unchanged.
        """
        bus = self._bus
        if self._woken is not None:
            raise RuntimeError(f"subscription '{self.name}' is read by two tasks")
        while True:
            stop = bus._folded
            start = self._catch_up(stop)
            if start < stop:
                self._cursor = stop
                return bus._slice(start, stop)
            if self not in bus._subscriptions or (bus._closed and stop == bus.next_seq):
                self.close()
                raise StopAsyncIteration
            self._woken = asyncio.get_running_loop().create_future()
            if bus._folded < bus.next_seq:
                bus._schedule_tick()
            try:
                await self._woken
            finally:
                self._woken = None

    def close(self) -> None:
        """Stop reading, and free what was kept in memory for it. Idempotent."""
        self._cursor = max(self._cursor, self._bus._folded)
        self._bus._subscriptions.pop(self, None)
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _catch_up(self, stop: int) -> int:
        """Return the cursor, after skipping what a lossy subscription may no longer keep below `stop`."""
        if self._lossy_after is not None and stop - self._cursor > self._lossy_after:
            self.dropped += stop - self._lossy_after - self._cursor
            self._cursor = stop - self._lossy_after
        return self._cursor


def _resolve(futures: Iterable[asyncio.Future[None]]) -> None:
    """Set the result of every future that still waits."""
    for future in list(futures):
        if not future.done():
            future.set_result(None)
