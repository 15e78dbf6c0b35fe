"""How long `eventrain report` takes for a long log, from the start of the process to the page on disk.

The log is of a run in virtual time with four engines, evaluations and checkpoints, or the one of a real run::

    python benchmarks/bench_report.py [--quick] [--run RUN]

Every line is a fresh process, the best of three.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from _simulated_log import write_log

EVENTS, EVENTS_QUICK = 100_000, 10_000
LIMIT_S = 3.0
"""Wall time for 100,000 events on two quiet cores."""
TRIES = 3
DEADLINE_S = 300
START = "import eventrain.adapters.cli.main"
READ = f"""{START}
from pathlib import Path
from eventrain.events import LogReader
print(sum(1 for _ in LogReader(Path(%r)).records()))"""
"""Reads a log and makes nothing of it; prints how many events there are."""


class Took(NamedTuple):
    """What a process took."""

    wall_s: float
    cpu_s: float
    said: str


def best(*arguments: str) -> Took:
    """Run Python with `arguments` in fresh processes; return the fastest."""
    tries = []
    for _ in range(TRIES):
        before, since = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, *arguments], check=True, capture_output=True, text=True, timeout=DEADLINE_S
        )
        wall_s, after = time.perf_counter() - since, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        tries.append(Took(wall_s, cpu_s, done.stdout))
    return min(tries)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events")
    parser.add_argument("--run", type=Path, help="the folder of a run, instead of the simulated one")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, one used")
    with tempfile.TemporaryDirectory() as temporary:
        folder, page = options.run or Path(temporary) / "run", Path(temporary) / "report.html"
        if options.run is None:
            write_log(folder, EVENTS_QUICK if options.quick else EVENTS)
        start = best("-c", START)
        read = best("-c", READ % str(folder / "events"))
        report = best("-m", "eventrain.adapters.cli", "report", str(folder), "-o", str(page))
        size_mb, events = page.stat().st_size / 1e6, int(read.said)
    limit_s = LIMIT_S * events / EVENTS
    print(f"{events:,} events, a page of {size_mb:.1f} MB")
    print("                          CPU      wall")
    print(f"  the command line alone {start.cpu_s:5.2f} s  {start.wall_s:5.2f} s")
    print(f"  and reading the log    {read.cpu_s:5.2f} s  {read.wall_s:5.2f} s")
    print(f"  and making the report  {report.cpu_s:5.2f} s  {report.wall_s:5.2f} s, limit {limit_s:.1f} s")


if __name__ == "__main__":
    main()
