"""The bus: order, wakes, failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventrain.events import Bus, LogWriteError, Record, causing
from eventrain.events.types import PromptDrawn, RewardScored


class StepClock:
    """Time that moves by one nanosecond per look."""

    def __init__(self) -> None:
        self.now = 0

    def utc_ns(self) -> int:
        self.now += 1
        return self.now

    def mono_ns(self) -> int:
        return self.now


class Seen:
    """A projection that remembers the order of seqs."""

    def __init__(self) -> None:
        self.seqs: list[int] = []

    def apply(self, record: Record) -> None:
        self.seqs.append(record.seq)


class Raising:
    """A projection that cannot take event `at`."""

    def __init__(self, at: int) -> None:
        self.at = at

    def apply(self, record: Record) -> None:
        if record.seq == self.at:
            raise ValueError("cannot take this")


class HandWriter:
    """A writer whose progress the test decides."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.hurried = False
        self.on_durable: Callable[[int], None]
        self.on_error: Callable[[LogWriteError], None]

    def start(self, on_durable: Callable[[int], None], on_error: Callable[[LogWriteError], None]) -> None:
        self.on_durable, self.on_error = on_durable, on_error

    def append(self, record: Record) -> None:
        self.records.append(record)

    def hurry(self) -> None:
        self.hurried = True


def drawn(n: int) -> PromptDrawn:
    return PromptDrawn(prompt=n, epoch=0, index=n)


async def turns(n: int = 3) -> None:
    """Let the loop turn."""
    for _ in range(n):
        await asyncio.sleep(0)


async def read_all(bus: Bus, name: str, into: list[int]) -> None:
    async for batch in bus.subscribe(name):
        into.extend(record.seq for record in batch)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 4))
def test_seq_order_is_delivery_order(pauses: list[int], publishers: int) -> None:
    """Whatever interleaves, projections and every subscriber see seqs 0, 1, 2, ... once each."""

    async def run() -> None:
        bus = Bus(StepClock())
        seen = bus.register(Seen())
        deliveries: list[list[int]] = [[], [], []]

        async def publish() -> None:
            for number, pause in enumerate(pauses):
                bus.publish("test", drawn(number))
                for _ in range(pause):
                    await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for number, into in enumerate(deliveries):
                group.create_task(read_all(bus, f"reader {number}", into))
            await turns()
            async with asyncio.TaskGroup() as inner:
                for _ in range(publishers):
                    inner.create_task(publish())
            bus.close()
        expected = list(range(len(pauses) * publishers))
        assert seen.seqs == expected
        assert deliveries == [expected] * 3

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(150))
def test_no_lost_wakeup(seed: int) -> None:
    """A chain of tasks that wait for each other's events always ends, in whatever order they run."""

    async def run() -> None:
        choose = random.Random(seed)
        bus = Bus(StepClock())
        seen = bus.register(Seen())
        goal = 40

        async def player(number: int) -> None:
            while len(seen.seqs) + (bus.next_seq - len(seen.seqs)) < goal:
                await bus.watch(lambda: len(seen.seqs) % 3 == number or len(seen.seqs) >= goal)
                if bus.next_seq >= goal:
                    return
                for _ in range(choose.randrange(3)):
                    await asyncio.sleep(0)
                if bus.next_seq % 3 == number:
                    bus.publish(f"player {number}", drawn(bus.next_seq))
                    if choose.random() < 0.3:
                        bus.fold()

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for number in choose.sample(range(3), 3):
                group.create_task(player(number))
        assert bus.next_seq == goal

    asyncio.run(run())


def test_a_true_predicate_does_not_wait() -> None:
    """A watch on something that already happened, folded or not, returns without suspending."""

    async def run() -> None:
        bus = Bus(StepClock())
        seen = bus.register(Seen())
        bus.publish("test", drawn(0))
        with pytest.raises(StopIteration):
            bus.watch(lambda: seen.seqs == [0]).send(None)

    asyncio.run(run())


def test_only_watchers_whose_predicate_holds_are_woken() -> None:
    """One free place wakes the first in line, and the next one once it is free again."""

    async def run() -> None:
        bus = Bus(StepClock())
        free = 0
        order: list[int] = []

        async def take(number: int) -> None:
            nonlocal free
            await bus.watch(lambda: free > 0)
            free -= 1
            order.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(take(number))
            await turns()
            for expected in range(1, 6):
                free += 1
                bus.publish("test", drawn(expected))
                await turns()
                assert order == list(range(expected))
                assert free == 0

    asyncio.run(run())


def test_a_predicate_that_raises_fails_its_waiter_only() -> None:
    """The error of a predicate is raised where it was awaited; the bus and others go on."""

    async def run() -> None:
        bus = Bus(StepClock())
        seen = bus.register(Seen())

        def bad() -> bool:
            if seen.seqs:
                raise KeyError("no such step")
            return False

        async def wait_badly() -> None:
            with pytest.raises(KeyError, match="no such step"):
                await bus.watch(bad)

        async with asyncio.TaskGroup() as group:
            group.create_task(wait_badly())
            other = group.create_task(bus.watch(lambda: len(seen.seqs) == 2))
            await turns()
            bus.publish("test", drawn(0))
            await turns()
            bus.publish("test", drawn(1))
            await other

    asyncio.run(run())


def test_a_cancelled_watch_is_forgotten() -> None:
    """Cancelling a wait leaves nothing behind and does not swallow a wake of another."""

    async def run() -> None:
        bus = Bus(StepClock())
        seen = bus.register(Seen())
        async with asyncio.TaskGroup() as group:
            first = group.create_task(bus.watch(lambda: bool(seen.seqs)))
            second = group.create_task(bus.watch(lambda: bool(seen.seqs)))
            await turns()
            bus.publish("test", drawn(0))
            first.cancel()
            await second
        assert first.cancelled()
        assert not bus._watchers

    asyncio.run(run())


def test_projections_fold_record_by_record_in_registration_order() -> None:
    """A later projection may read an earlier one: both stand at the same record."""

    async def run() -> None:
        bus = Bus(StepClock())
        first = bus.register(Seen())

        class Reads:
            def __init__(self) -> None:
                self.lengths: list[int] = []

            def apply(self, record: Record) -> None:
                self.lengths.append(len(first.seqs))

        second = bus.register(Reads())
        for number in range(5):
            bus.publish("test", drawn(number))
        bus.fold()
        bus.fold()
        assert second.lengths == [1, 2, 3, 4, 5]

    asyncio.run(run())


def test_a_projection_that_raises_fails_the_run() -> None:
    """Guard raises the first failure of the tick; nothing is folded any more, yet subscribers see the end."""

    async def run() -> None:
        bus = Bus(StepClock())
        seen = bus.register(Seen())
        bus.register(Raising(at=1))
        delivered: list[int] = []

        async def guarded() -> None:
            with pytest.raises(ValueError, match="cannot take this") as caught:
                await bus.guard()
            assert "at seq 1 (PromptDrawn)" in caught.value.__notes__[0]

        async with asyncio.TaskGroup() as group:
            group.create_task(guarded())
            group.create_task(read_all(bus, "reader", delivered))
            await turns()
            for number in range(3):
                bus.publish("test", drawn(number))
            await turns()
            with pytest.raises(ValueError, match="cannot take this"):
                bus.fold()
            bus.publish("run", drawn(3))
            bus.close()
        assert seen.seqs == [0, 1]
        assert delivered == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="cannot take this"):
            await bus.guard()

    asyncio.run(run())


def test_projections_have_no_effects() -> None:
    """A projection can neither publish nor fold."""

    async def run() -> None:
        for act, message in (
            (lambda bus: bus.publish("projection", drawn(1)), "a projection publishes nothing"),
            (lambda bus: bus.fold(), "a projection does not fold the bus"),
        ):
            bus = Bus(StepClock())

            class Acts:
                def apply(self, record: Record, bus: Bus = bus, act: Callable[[Bus], object] = act) -> None:
                    act(bus)

            bus.register(Acts())
            bus.publish("test", drawn(0))
            with pytest.raises(RuntimeError, match=message):
                bus.fold()

    asyncio.run(run())


def test_register_is_refused_after_the_first_event() -> None:
    """A projection that missed events is refused; a resumed bus with nothing new accepts one."""
    bus = Bus(StepClock(), next_seq=7)
    seen = bus.register(Seen())
    assert bus.publish("test", drawn(0)).seq == 7
    with pytest.raises(RuntimeError, match="projections are registered before the first event is published"):
        bus.register(Seen())
    bus.fold()
    assert seen.seqs == [7]


def test_cause_and_corr_come_from_the_context() -> None:
    """What `causing` set goes into the envelope unless it is given."""
    bus = Bus(StepClock())
    with causing(3, "57/1"):
        inside = bus.publish("test", drawn(0))
        given = bus.publish("test", drawn(1), cause=0, corr="step:2")
    outside = bus.publish("test", drawn(2))
    assert (inside.cause, inside.corr) == (3, "57/1")
    assert (given.cause, given.corr) == (0, "step:2")
    assert (outside.cause, outside.corr) == (None, "")


def test_events_published_before_the_loop_are_delivered() -> None:
    """A bus may be filled before its loop runs; the first waiter sets it going."""
    bus = Bus(StepClock())
    seen = bus.register(Seen())
    subscription = bus.subscribe("early")
    bus.publish("test", drawn(0))

    async def read() -> Sequence[Record]:
        async with asyncio.timeout(5):
            return await anext(subscription)

    assert [record.seq for record in asyncio.run(read())] == [0]
    assert seen.seqs == [0]


def test_a_lossy_subscriber_counts_what_it_missed() -> None:
    """Read plus dropped is everything published, and the newest records are the ones kept."""

    async def run() -> None:
        bus = Bus(StepClock())
        slow, exact = bus.subscribe("slow", lossy_after=10), bus.subscribe("exact", lossy_after=10)
        for number in range(100):
            bus.publish("test", RewardScored(trajectory="0/0", reward=float(number)))
            if number % 10 == 9:
                await turns()
                assert len(await anext(exact)) == 10
        batch = await anext(slow)
        assert [record.seq for record in batch] == list(range(90, 100))
        assert (slow.dropped, exact.dropped) == (90, 0)
        assert len(bus._tail) <= 10

    asyncio.run(run())


def test_memory_is_freed_once_everyone_has_read() -> None:
    """The tail holds what the slowest lossless subscriber has yet to read, and nothing once it is gone."""

    async def run() -> None:
        bus = Bus(StepClock())
        slow = bus.subscribe("slow")
        for number in range(50):
            bus.publish("test", drawn(number))
            await turns(1)
        await turns()
        assert len(bus._tail) == 50
        assert len(await anext(slow)) == 50
        bus.publish("test", drawn(50))
        await turns()
        assert len(bus._tail) == 1
        slow.close()
        bus.publish("test", drawn(51))
        await turns()
        assert len(bus._tail) == 0

    asyncio.run(run())


def test_a_cancelled_read_keeps_its_place() -> None:
    """A subscriber cancelled while it waits misses nothing when it reads again."""

    async def run() -> None:
        bus = Bus(StepClock())
        subscription = bus.subscribe("reader")
        async with asyncio.TaskGroup() as group:
            read = group.create_task(anext(subscription))  # type: ignore[arg-type]
            await turns()
            bus.publish("test", drawn(0))
            read.cancel()
        assert [record.seq for record in await anext(subscription)] == [0]

    asyncio.run(run())


def test_a_subscriber_may_publish() -> None:
    """An event published while reading a batch arrives in a later one."""

    async def run() -> None:
        bus = Bus(StepClock())
        got: list[int] = []
        subscription = bus.subscribe("echo")
        bus.publish("test", drawn(0))
        async for batch in subscription:
            got += [record.seq for record in batch]
            if bus.next_seq < 5:
                bus.publish("echo", drawn(bus.next_seq), cause=batch[-1].seq)
            else:
                bus.close()
        assert got == [0, 1, 2, 3, 4]

    asyncio.run(run())


def test_a_closed_bus_takes_no_event() -> None:
    """After close, publishing is refused and a subscription ends after its last record."""

    async def run() -> None:
        bus = Bus(StepClock())
        subscription = bus.subscribe("reader")
        bus.publish("test", drawn(0))
        bus.close()
        with pytest.raises(RuntimeError, match="the bus is closed"):
            bus.publish("test", drawn(1))
        assert [[record.seq for record in batch] async for batch in subscription] == [[0]]

    asyncio.run(run())


def test_durable_waits_for_the_writer() -> None:
    """`durable` returns once its seq is acknowledged, and that also wakes watchers of `unsaved`."""

    async def run() -> None:
        writer = HandWriter()
        bus = Bus(StepClock(), writer)
        for number in range(4):
            bus.publish("test", drawn(number))
        with pytest.raises(ValueError, match="seq 4 is not published yet"):
            await bus.durable(4)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(bus.durable(1))
            last = group.create_task(bus.durable(3))
            few = group.create_task(bus.watch(lambda: bus.unsaved <= 1))
            await turns()
            assert (bus.durable_seq, bus.unsaved, writer.hurried) == (-1, 4, True)
            writer.on_durable(1)
            await turns()
            assert (first.done(), last.done(), few.done()) == (True, False, False)
            writer.on_durable(2)
            await turns()
            assert (last.done(), few.done()) == (False, True)
            writer.on_durable(3)
        assert bus.unsaved == 0
        assert [record.seq for record in writer.records] == [0, 1, 2, 3]

    asyncio.run(run())


def test_a_write_error_reaches_everyone_who_counts_on_the_disk() -> None:
    """Waits for the disk raise the error, now and later, and so does guard; publishing goes on."""

    async def run() -> None:
        writer = HandWriter()
        bus = Bus(StepClock(), writer)
        bus.publish("test", drawn(0))

        async def fails(waiting: Callable[[], object]) -> None:
            with pytest.raises(LogWriteError, match="disk full"):
                await waiting()  # type: ignore[misc]

        async with asyncio.TaskGroup() as group:
            group.create_task(fails(lambda: bus.durable(0)))
            group.create_task(fails(bus.guard))
            await turns()
            writer.on_error(LogWriteError("disk full"))
        await fails(lambda: bus.durable(0))
        assert bus.publish("run", drawn(1)).seq == 1

    asyncio.run(run())


def test_without_a_writer_everything_is_durable() -> None:
    """In a simulation without a disk, what is published counts as saved."""

    async def run() -> None:
        bus = Bus(StepClock(), next_seq=5)
        assert bus.durable_seq == 4
        record = bus.publish("test", drawn(0))
        await bus.durable(record.seq)
        assert (bus.durable_seq, bus.unsaved) == (5, 0)

    asyncio.run(run())


def test_what_the_writer_refuses_has_not_happened() -> None:
    """An event that cannot become a line raises where it is published, and takes no place in the order."""

    class Refusing(HandWriter):
        def append(self, record: Record) -> None:
            if record.actor == "bad":
                raise ValueError("no line")
            super().append(record)

    bus = Bus(StepClock(), Refusing())
    with pytest.raises(ValueError, match="no line"):
        bus.publish("bad", RewardScored(trajectory="0/0", reward=1))
    assert bus.publish("good", RewardScored(trajectory="0/0", reward=1)).seq == 0
