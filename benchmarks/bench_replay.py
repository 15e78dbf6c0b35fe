"""How fast the past of a run comes back: folding a log, and the state near the end of a long one.

The log is that of a simulated run, written by the shipped log writer. Folding reads sealed segments, validates every
event and folds it into all projections; beside it the same log decoded and neither validated nor folded. A look at a
point near the end is a process of its own, `eventrain replay RUN --at SEQ --json`: seconds from its start to its end,
and the most memory that it held. The first one folds the whole log and leaves snapshots, the second one begins at
the nearest::

    python benchmarks/bench_replay.py [--quick] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from _simulated_log import write_log

from eventrain.core.projections import View
from eventrain.events import LogReader


@dataclass(frozen=True)
class Log:
    """The log that every row is about."""

    run: Path
    cache: Path
    """Where the processes that look at it keep their snapshots."""
    last_seq: int


class Row(NamedTuple):
    """One line of the table."""

    name: str
    value: str
    target: str = ""
    beside: str = ""


class Look(NamedTuple):
    """What one process took, and what it printed."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    said: str

    def __str__(self) -> str:
        return f"{self.cpu_s:.2f} s of CPU, {self.peak_bytes / 1e6:.0f} MB at most"


class Timed:
    """The seconds of a block, by the clock and of CPU."""

    def __enter__(self) -> Timed:
        self.wall_s, self.cpu_s = -time.perf_counter(), -time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.perf_counter()
        self.cpu_s += time.process_time()


def folding(log: Log) -> Iterator[Row]:
    """Yield the rows about reading it all."""
    reader, count = LogReader(log.run / "events"), log.last_seq + 1
    with Timed() as raw:
        assert sum(1 for _ in reader.raw()) == count
    view = View()
    with Timed() as folded:
        for record in reader.records():
            view.apply(record)
    assert view.last_seq == log.last_seq
    for name, timed, target in (
        ("read, validate, fold: events/s", folded, ">= 120,000"),
        ("  read raw, not validated, not folded", raw, ""),
    ):
        beside = f"{count / timed.cpu_s:,.0f} per second of CPU"
        yield Row(name, f"{count / timed.wall_s:,.0f}", target, beside)


def looking(log: Log) -> Iterator[Row]:
    """Yield the rows about one state near the end."""
    near = log.last_seq - 1234
    first = look(log, "--at", str(near))
    second = look(log, "--at", str(near))
    assert first.said == second.said
    before = look(log, "--at", str(near - 4000))
    step = look(log, "--at", f"step:{json.loads(first.said)['step'] - 2}")
    looks = (first, second, before, step)
    yield Row("--at near the end, first time: s", f"{first.wall_s:.2f}", "", str(first))
    yield Row("  the same again: s", f"{second.wall_s:.2f}", "< 1", str(second))
    yield Row("  4,000 events before: s", f"{before.wall_s:.2f}", "< 1", str(before))
    yield Row("  a step near the end: s", f"{step.wall_s:.2f}", "< 1", str(step))
    yield Row("  peak memory of all four: MB", f"{max(one.peak_bytes for one in looks) / 1e6:.0f}", "< 300")
    snapshots = [path.stat().st_size for path in log.cache.rglob("*.snapshot")]
    yield Row("  snapshots on disk: MB", f"{sum(snapshots) / 1e6:.1f}", "", f"{len(snapshots)} of them")
    bare = look(log, "--help")
    yield Row("  `eventrain replay --help`: s", f"{bare.wall_s:.2f}", "", str(bare))


SECTIONS: tuple[Callable[[Log], Iterator[Row]], ...] = (folding, looking)
"""Each yields its rows; a new one goes here."""


_LAUNCH = """
import json, os, sys, time
start = time.perf_counter()
_, status, usage = os.wait4(os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]), 0)
spent_s = time.perf_counter() - start
print(json.dumps([spent_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]), file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A small process between: what a process holds when it is forked counts as its child's memory."""


def look(log: Log, *arguments: str) -> Look:
    """Return what one `eventrain replay` took and printed."""
    command = [sys.executable, "-m", "eventrain.adapters.cli", "replay", str(log.run), *arguments]
    if arguments[0] == "--at":
        command.append("--json")
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [sys.executable, "-S", "-c", _LAUNCH, *command],
            stdout=output,
            stderr=subprocess.PIPE,
            env={**os.environ, "XDG_CACHE_HOME": str(log.cache)},
            check=True,
        )
        output.seek(0)
        said = output.read().decode()
    wall_s, cpu_s, peak = json.loads(done.stderr)
    return Look(wall_s, cpu_s, peak * (1 if sys.platform == "darwin" else 1024), said)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Fold a long log, and look at a point near its end.")
    parser.add_argument("--quick", action="store_true", help="about 100,000 events instead of 1,000,000")
    parser.add_argument("--folder", help="where to write; default: the system's temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        run, cache = Path(name) / "run", Path(name) / "cache"
        log = Log(run, cache, write_log(run, 100_000 if arguments.quick else 1_000_000))
        size = sum(path.stat().st_size for path in (run / "events").iterdir())
        print(f"a simulated run of {log.last_seq + 1:,} events, {size / 1e6:.0f} MB; "
              f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}\n")  # fmt: skip
        print(f"{'':42} {'measured':>12}  {'target':12} beside")
        for section in SECTIONS:
            for row in section(log):
                print(f"{row.name:42} {row.value:>12}  {row.target:12} {row.beside}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
