"""How fast a log becomes a Perfetto trace, and that memory does not grow with it, beside what reading it takes.

The log is of a run in virtual time with four engines, evaluations and checkpoints, or the one of a real run::

    python benchmarks/bench_perfetto.py [--quick] [--run RUN]
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from _simulated_log import write_log

from eventrain.adapters.telemetry.perfetto.export import TraceExport
from eventrain.events import LogReader

TARGET = 50_000
"""Events per second of CPU time."""
EVENTS, EVENTS_QUICK = 400_000, 40_000


def export(folder: Path, events_max: int | None = None) -> TraceExport:
    """Export the log in `folder`, or its beginning, to a file that is not kept."""
    records = LogReader(folder).records()
    first = next(records)
    with tempfile.TemporaryFile() as file:
        made = TraceExport(file, first)
        made.write(itertools.islice(itertools.chain([first], records), events_max))
    return made


def peak_mb() -> float:
    """Return the most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events")
    parser.add_argument("--run", type=Path, help="the folder of a run, instead of the simulated one")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, one used")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.run or Path(temporary) / "run"
        if options.run is None:
            # In a process of its own, whose memory is not counted here.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
                other.submit(write_log, folder, EVENTS_QUICK if options.quick else EVENTS).result()
        export(folder / "events", 5_000)
        before_mb, since = peak_mb(), time.process_time()
        events = sum(1 for _ in LogReader(folder / "events").records())
        read_s, since = time.process_time() - since, time.process_time()
        made = export(folder / "events")
        export_s = time.process_time() - since
    print(
        f"{events:,} events as {made.slices:,} slices on {made.lanes} lanes, {made.size_bytes / events:.0f} bytes each"
    )
    print(f"  reading            {events / read_s:>10,.0f} events/s of CPU time")
    print(f"  reading, exporting {events / export_s:>10,.0f} events/s, target {TARGET:,}")
    print(f"  peak memory grew by {peak_mb() - before_mb:.0f} MB after the first 5,000 events")


if __name__ == "__main__":
    main()
