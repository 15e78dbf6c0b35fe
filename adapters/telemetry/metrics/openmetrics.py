"""The metrics of a log as OpenMetrics text with timestamps: what scrapes would have found, for a run that has been.

The fold is looked at every so many seconds of the run's own time. Prometheus takes the text in by
``promtool tsdb create-blocks-from openmetrics``, and dashboards and alerts then work on the run as if it were live.

There is one reading of the log, and memory does not grow with it: OpenMetrics wants all samples of a metric together,
so each metric has a file of its own until all are put together.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import IO

from ....events.record import Record
from ....events.types import RunFailed, RunFinished, RunResumed, RunStarted
from .catalog import METRICS, Metric
from .distribution import Distribution
from .meter import Meter
from .snapshot import Labels, Snapshot

SPOOL_BYTES = 1 << 20
"""Text of one metric that is kept in memory before it goes to a file."""


@dataclass
class Exported:
    """What was written."""

    run: str = ""
    scrapes: int = 0
    samples: int = 0
    first_ts: int = 0
    """UTC nanoseconds of the first scrape."""
    last_ts: int = 0


def scrapes(records: Iterable[Record], every_s: float) -> Iterator[tuple[int, Snapshot, bool]]:
    """Yield UTC nanoseconds, the values then, and whether they are the first of a fork, every `every_s` seconds.

    The first scrape is at the run's start, or at a resume, and one more is at its last event. There is none while
    nobody ran the run, nor in a fork's log before the fork: that time is the other run's.
    """
    every_ns = round(every_s * 1e9)
    meter, next_ns, told_ts, forked = Meter(), 0, 0, False
    for record in records:
        resumed = isinstance(record.event, RunResumed)
        while meter.run and not resumed and not meter.ended and next_ns < record.mono:
            ts = meter.last_ts + next_ns - meter.last_mono
            if ts > told_ts:  # a clock that was set back must not turn samples round
                yield ts, meter.snapshot(next_ns), forked
                told_ts, forked = ts, False
            next_ns += every_ns
        if resumed and meter.last_ts > told_ts:
            yield meter.last_ts, meter.snapshot(meter.last_mono), forked
            told_ts, forked = meter.last_ts, False
        meter.apply(record)
        if isinstance(record.event, RunStarted | RunResumed):
            next_ns = record.mono
        if isinstance(record.event, RunResumed) and record.event.forked_from:
            told_ts, forked = 0, True
        if isinstance(record.event, RunFinished | RunFailed):
            next_ns = record.mono
    if meter.run and meter.last_ts > told_ts:
        yield meter.last_ts, meter.snapshot(meter.last_mono), forked


def write_openmetrics(records: Iterable[Record], out: IO[bytes], every_s: float) -> Exported:
    """Write the metrics of `records`, looked at every `every_s` seconds, to `out`; return what was written."""
    told = Exported()
    with ExitStack() as stack:
        spools = {
            metric.prometheus: stack.enter_context(tempfile.SpooledTemporaryFile(SPOOL_BYTES))
            for metric in METRICS
        }
        for ts, snapshot, of_fork in scrapes(records, every_s):
            if of_fork:
                told = Exported()
                for spool in spools.values():
                    spool.seek(0)
                    spool.truncate()
            told.run, told.scrapes, told.last_ts = snapshot.run, told.scrapes + 1, ts
            told.first_ts = told.first_ts or ts
            for metric in METRICS:
                lines = _lines(metric, snapshot, _seconds(ts))
                told.samples += len(lines)
                spools[metric.prometheus].write("".join(lines).encode())
        for metric in METRICS:
            spool = spools[metric.prometheus]
            if spool.tell():
                spool.seek(0)
                out.write(_head(metric).encode())
                shutil.copyfileobj(spool, out)
        out.write(b"# EOF\n")
    return told


def _seconds(ts_ns: int) -> str:
    millis = ts_ns // 1_000_000
    return f"{millis // 1000}.{millis % 1000:03}"


def _head(metric: Metric) -> str:
    return f"# HELP {metric.family} {_escaped(metric.description)}\n# TYPE {metric.family} {metric.kind}\n"


def _lines(metric: Metric, snapshot: Snapshot, at: str) -> list[str]:
    if metric.kind == "histogram":
        series = snapshot.histograms.get(metric.prometheus, {})
        return [
            line
            for labels, found in series.items()
            for line in _bucket_lines(metric, snapshot, labels, found, at)
        ]
    return [
        f"{metric.prometheus}{{{_labels(metric, snapshot.run, labels)}}} {float(value)!r} {at}\n"
        for labels, value in snapshot.values.get(metric.prometheus, {}).items()
    ]


def _bucket_lines(
    metric: Metric, snapshot: Snapshot, labels: Labels, found: Distribution, at: str
) -> Iterator[str]:
    name, text = metric.prometheus, _labels(metric, snapshot.run, labels)
    bounds = (*(repr(float(bound)) for bound in found.bounds), "+Inf")
    for bound, count in zip(bounds, accumulate(found.counts), strict=True):
        yield f'{name}_bucket{{{text},le="{bound}"}} {float(count)!r} {at}\n'
    yield f"{name}_count{{{text}}} {float(found.total)!r} {at}\n"
    yield f"{name}_sum{{{text}}} {float(found.sum)!r} {at}\n"


def _labels(metric: Metric, run: str, labels: Labels) -> str:
    pairs = [("run", run), *zip(metric.labels, labels, strict=True)]
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
