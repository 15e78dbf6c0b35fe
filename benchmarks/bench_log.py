"""How fast events become durable, and how fast a log becomes state again.

Writing is the whole way of an event: construct (validated), publish, fold by 4 projections, deliver to 16
subscribers, encode, compress, fdatasync by group commit in the writer's thread, while a probe measures how late
the event loop is. Beside it, in the same run: the same bytes written raw with the same fdatasyncs, which is what
the disk alone would take. Reading validates every event. The payload rows put and get trajectories of 1,000
tokens, digest included::

    python benchmarks/bench_log.py [--quick] [--folder DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _realistic import KindCounter, Make, OpenCalls, Rewards, SecondsByActor, SystemClock, plans

from eventrain.events import Bus, LogReader, LogWriter, PayloadStore
from eventrain.events.segment import read_frames

SUBSCRIBERS = 16
FOLDS = (KindCounter, OpenCalls, SecondsByActor, Rewards)
BURST = 64
UNSAVED_MAX = 8192
PAYLOAD_BYTES = 8 * 1000 + 148
"""1,000 tokens: 4 bytes each for the id and the log-prob, and what surrounds them."""


@dataclass
class Written:
    """What writing gave."""

    seconds: float
    lags_s: list[float]
    durable_s: list[float]


async def write(made: list[Make], folder: Path, rate: float | None) -> Written:
    """Publish all of `made`, as fast as it goes or `rate` per second; return once all of it is on disk."""
    writer = LogWriter(folder, run="bench", epoch=1, first_seq=0, segment_bytes=64 * 2**20)
    bus = Bus(SystemClock(), writer)
    for fold in FOLDS:
        bus.register(fold())
    lags: list[float] = []
    durable: list[float] = []
    counts = [0] * SUBSCRIBERS

    async def read(number: int) -> None:
        async for batch in bus.subscribe(f"subscriber {number}"):
            for _ in batch:
                counts[number] += 1

    async def probe_loop() -> None:
        while bus.durable_seq < len(made) - 1:
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append(time.perf_counter() - start - 0.001)

    async def probe_disk() -> None:
        while bus.durable_seq < len(made) - 1:
            start, seq = time.perf_counter(), bus.next_seq - 1
            await bus.durable(seq)
            durable.append(time.perf_counter() - start)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for number in range(SUBSCRIBERS):
            group.create_task(read(number))
        await asyncio.sleep(0)
        start = time.perf_counter()
        await publish(bus, made[:1], None)
        group.create_task(probe_loop())
        group.create_task(probe_disk())
        await publish(bus, made[1:], rate)
        await bus.durable(len(made) - 1)
        seconds = time.perf_counter() - start
        bus.close()
    writer.close()
    assert counts == [len(made)] * SUBSCRIBERS
    return Written(seconds, sorted(lags), sorted(durable))


async def idle_lags() -> list[float]:
    """Return how late a loop with nothing to do is: the machine's own share of the lag."""
    lags = []
    for _ in range(500):
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        lags.append(time.perf_counter() - start - 0.001)
    return sorted(lags)


async def publish(bus: Bus, made: list[Make], rate: float | None) -> None:
    """Construct and publish; give the loop its turn after every burst."""
    start = time.perf_counter()
    burst = BURST if rate is None else 4
    for first in range(0, len(made), burst):
        for make in made[first : first + burst]:
            event = make()
            bus.publish("collector", event, cause=bus.next_seq - 1, corr=getattr(event, "trajectory", ""))
        if bus.unsaved > UNSAVED_MAX:
            await bus.watch(lambda: bus.unsaved < UNSAVED_MAX // 2)
        due = 0.0 if rate is None else start + (first + burst) / rate - time.perf_counter()
        await asyncio.sleep(max(0.0, due))


def frame_sizes(folder: Path) -> list[int]:
    """Return the bytes of each write that was followed by an fdatasync."""
    sizes = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            end = 0
            for offset, _ in read_frames(file):
                sizes.append(offset - end)
                end = offset
    return sizes


def write_raw(sizes: list[int], folder: Path) -> float:
    """Return the seconds to append blocks of the same sizes with the same fdatasyncs, and nothing else."""
    blocks = [os.urandom(size) for size in sizes]
    descriptor = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    start = time.perf_counter()
    for block in blocks:
        os.write(descriptor, block)
        os.fdatasync(descriptor)
    seconds = time.perf_counter() - start
    os.close(descriptor)
    return seconds


def read(folder: Path, count: int) -> tuple[float, float]:
    """Return the seconds to read, validate and fold; and to read raw."""
    folds = [fold() for fold in FOLDS]
    start = time.perf_counter()
    for record in LogReader(folder).records():
        for fold in folds:
            fold.apply(record)
    folded = time.perf_counter() - start
    start = time.perf_counter()
    assert sum(1 for _ in LogReader(folder).raw()) == count
    return folded, time.perf_counter() - start


def payloads(folder: Path, count: int) -> tuple[float, float]:
    """Return the median seconds to put and to get one payload."""
    store = PayloadStore(folder)
    data = [os.urandom(PAYLOAD_BYTES) for _ in range(count)]
    puts, gets = [], []
    for item in data:
        start = time.perf_counter()
        ref = store.put(item)
        puts.append((time.perf_counter() - start, ref))
    for _, ref in puts:
        start = time.perf_counter()
        store.get(ref)
        gets.append(time.perf_counter() - start)
    store.close()
    return sorted(seconds for seconds, _ in puts)[count // 2], sorted(gets)[count // 2]


def at(values: list[float], share: float) -> float:
    """Return the value below which `share` of the sorted `values` lie, in milliseconds."""
    return values[min(len(values) - 1, int(len(values) * share))] * 1e3


def row(name: str, value: str, target: str, beside: str = "") -> None:
    """Print one line of the table."""
    print(f"{name:44} {value:>12}  {target:14} {beside}".rstrip(), flush=True)


def bench_write(made: list[Make], folder: Path) -> None:
    """Print the rows about writing at full speed."""
    count = len(made)
    written = asyncio.run(write(made, folder, None))
    sizes = frame_sizes(folder)
    raw_s = write_raw(sizes, folder.parent)
    rate, raw_rate = count / written.seconds, count / raw_s
    row("durable events/s, 16 subscribers, 4 folds", f"{rate:,.0f}", ">= 40,000")
    row(
        "  the same bytes and fdatasyncs, raw",
        f"{raw_rate:,.0f}",
        "",
        f"ours is {rate / raw_rate:.2f} of it; {len(sizes)} fdatasyncs",
    )
    row("  bytes per event on disk", f"{sum(sizes) / count:.1f}", "<= 45")
    row_lags(written)


def row_lags(written: Written) -> None:
    """Print the rows about delays."""
    idle = asyncio.run(idle_lags())
    row(
        "  loop lag p50, p99 ms",
        f"{at(written.lags_s, 0.5):.1f}, {at(written.lags_s, 0.99):.1f}",
        "p99 < 10",
        f"an idle loop: {at(idle, 0.5):.1f}, {at(idle, 0.99):.1f}",
    )
    row("  durable after p50, p99 ms", f"{at(written.durable_s, 0.5):.0f}, {at(written.durable_s, 0.99):.0f}", "")


def bench_steady(made: list[Make], folder: Path) -> None:
    """Print the rows about a busy run's own rate."""
    written = asyncio.run(write(made, folder, 2000.0))
    size = sum(frame_sizes(folder))
    row("at 2,000 events/s: bytes per event", f"{size / len(made):.1f}", "", "small commits compress less")
    row_lags(written)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Write a log, read it back, store payloads.")
    parser.add_argument("--quick", action="store_true", help="50,000 events instead of 300,000")
    parser.add_argument("--folder", help="where to write; default: the system's temporary folder")
    arguments = parser.parse_args()
    count = 50_000 if arguments.quick else 300_000
    print(f"{count:,} events of twelve kinds, pydantic throughout; Python {platform.python_version()}, "
          f"{os.cpu_count()} cores, {platform.machine()}\n")  # fmt: skip
    print(f"{'':44} {'measured':>12}  {'target':14} beside")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folders = {part: Path(name) / part for part in ("events", "steady", "payloads")}
        for folder in folders.values():
            folder.mkdir()
        made = plans(count)
        bench_write(made, folders["events"])
        bench_steady(made[: count // 25], folders["steady"])
        folded_s, raw_s = read(folders["events"], count)
        row("read, validate, fold: events/s", f"{count / folded_s:,.0f}", ">= 120,000")
        row("  read raw, not validated", f"{count / raw_s:,.0f}", "")
        put_s, get_s = payloads(folders["payloads"], count // 20)
        row("payload of 1,000 tokens: put us (median)", f"{put_s * 1e6:.1f}", "< 40")
        row("  get us (median), digest checked", f"{get_s * 1e6:.1f}", "< 10")


if __name__ == "__main__":
    main()
