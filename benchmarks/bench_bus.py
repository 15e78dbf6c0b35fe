"""How fast events reach everyone: publish, fold by 8 projections, deliver to 16 subscribers, on one core.

Beside it in the same run: a plain synchronous call per subscriber (the limit of the interpreter), an
``asyncio.Queue`` each, and two event libraries from PyPI. Everything delivers the same twelve kinds of pydantic
events, made before the clock starts::

    python benchmarks/bench_bus.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

from _realistic import KindCounter, OpenCalls, Rewards, SecondsByActor, SystemClock, plans

from eventrain.events import Bus
from eventrain.events.types import Event

SUBSCRIBERS = 16
FOLDS = (KindCounter, OpenCalls, SecondsByActor, Rewards) * 2
BURST = 64
"""Events published before the loop gets its turn."""


def bench_bus(events: list[Event]) -> float:
    """Return the seconds that the bus takes."""

    async def run() -> float:
        bus = Bus(SystemClock())
        folds = [bus.register(fold()) for fold in FOLDS]
        counts = [0] * SUBSCRIBERS

        async def read(number: int) -> None:
            count = 0
            async for batch in bus.subscribe(f"subscriber {number}"):
                for _ in batch:
                    count += 1
            counts[number] = count

        async with asyncio.TaskGroup() as group:
            for number in range(SUBSCRIBERS):
                group.create_task(read(number))
            await asyncio.sleep(0)
            start = time.perf_counter()
            for first in range(0, len(events), BURST):
                for event in events[first : first + BURST]:
                    bus.publish("collector", event)
                await asyncio.sleep(0)
            bus.close()
        seconds = time.perf_counter() - start
        assert counts == [len(events)] * SUBSCRIBERS
        assert sum(folds[0].counts.values()) == len(events)
        return seconds

    return asyncio.run(run())


def bench_calls(events: list[Event]) -> float:
    """Return the seconds of one plain call per subscriber and event, without envelope, order or folds."""
    counts = [0] * SUBSCRIBERS

    def subscriber(number: int) -> Callable[[Event], None]:
        def receive(_: Event) -> None:
            counts[number] += 1

        return receive

    receivers = [subscriber(number) for number in range(SUBSCRIBERS)]
    start = time.perf_counter()
    for event in events:
        for receive in receivers:
            receive(event)
    seconds = time.perf_counter() - start
    assert counts == [len(events)] * SUBSCRIBERS
    return seconds


def bench_queues(events: list[Event]) -> float:
    """Return the seconds of an asyncio.Queue per subscriber, without envelope or folds."""

    async def run() -> float:
        queues: list[asyncio.Queue[Event]] = [asyncio.Queue() for _ in range(SUBSCRIBERS)]

        async def read(queue: asyncio.Queue[Event]) -> None:
            for _ in range(len(events)):
                await queue.get()

        async with asyncio.TaskGroup() as group:
            for queue in queues:
                group.create_task(read(queue))
            await asyncio.sleep(0)
            start = time.perf_counter()
            for first in range(0, len(events), BURST):
                for event in events[first : first + BURST]:
                    for queue in queues:
                        queue.put_nowait(event)
                await asyncio.sleep(0)
        return time.perf_counter() - start

    return asyncio.run(run())


def bench_bubus(events: list[Event]) -> float:
    """Return the seconds of bubus: each event dispatched and awaited, 16 handlers, default history."""
    os.environ.setdefault("BUBUS_LOGGING_LEVEL", "ERROR")
    import bubus

    logging.getLogger("bubus").setLevel(logging.ERROR)

    class Happened(bubus.BaseEvent[None]):  # type: ignore[misc]
        event: Event

    async def run() -> float:
        bus = bubus.EventBus(name="bench")
        count = 0

        def handler(number: int) -> Callable[[Any], None]:
            def receive(_: Any) -> None:
                nonlocal count
                count += 1

            receive.__name__ = f"subscriber_{number}"
            return receive

        for number in range(SUBSCRIBERS):
            bus.on(Happened, handler(number))
        start = time.perf_counter()
        for event in events:
            await bus.dispatch(Happened(event=event))
        seconds = time.perf_counter() - start
        await bus.stop()
        assert count == len(events) * SUBSCRIBERS
        return seconds

    return asyncio.run(run())


def bench_eventsourcing(events: list[Event]) -> float:
    """Return the seconds of eventsourcing: append to its in-memory recorder, 16 subscriptions read in turn."""
    from uuid import uuid4

    from eventsourcing.persistence import StoredEvent
    from eventsourcing.popo import POPOApplicationRecorder

    recorder = POPOApplicationRecorder()
    originator = uuid4()
    start = time.perf_counter()
    for number, event in enumerate(events):
        stored = StoredEvent(
            originator_id=originator,
            originator_version=number,
            topic=type(event).__name__,
            state=event.model_dump_json().encode(),
        )
        recorder.insert_events([stored])
    with contextlib.ExitStack() as stack:
        for _ in range(SUBSCRIBERS):
            subscription = stack.enter_context(recorder.subscribe(gt=0))
            for _, _notification in zip(range(len(events)), subscription, strict=False):
                pass
    return time.perf_counter() - start


def _rows(quick: bool) -> Iterator[tuple[str, float | None, str]]:
    count = 20_000 if quick else 100_000
    events = [make() for make in plans(count)]
    rounds = 2 if quick else 4
    for name, bench, share, what in (
        ("eventrain bus", bench_bus, 1, "envelope, seq, 8 folds, delivery"),
        ("plain call each", bench_calls, 1, "the limit: delivery only"),
        ("asyncio.Queue each", bench_queues, 5, "delivery only"),
        ("eventsourcing", bench_eventsourcing, 50, "in memory; stores, then each subscription reads"),
        ("bubus", bench_bubus, 500, "16 handlers, awaited"),
    ):
        few = events[: max(100, count // share)]
        try:
            yield name, max(len(few) / bench(few) for _ in range(rounds if share < 50 else 1)), what
        except ImportError:
            yield name, None, "not installed"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Publish, fold, deliver: events per second to 16 subscribers.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the events, fewer rounds")
    quick = parser.parse_args().quick
    print(f"8 projections, {SUBSCRIBERS} subscribers, twelve kinds of events, best of several rounds")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}; target 150,000/s\n")
    print(f"{'':20} {'events/s':>10} {'bus is':>9}  measured")
    ours = 0.0
    for name, rate, what in _rows(quick):
        ours = ours or rate or 0.0
        shown = f"{rate:>10,.0f} {ours / rate:>8.2f}x" if rate else f"{'-':>10} {'-':>9}"
        print(f"{name:20} {shown}  {what}", flush=True)


if __name__ == "__main__":
    main()
