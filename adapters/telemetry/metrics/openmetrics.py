"""The metrics of a log as OpenMetrics text with timestamps: what scrapes would have found, for a run that has been.

The fold is looked at every so many seconds of the run's own time. Prometheus takes the text in by
``promtool tsdb create-blocks-from openmetrics``, and dashboards and alerts then work on the run as if it were live.

The log is read once. OpenMetrics wants all samples of a series together, in the order of time, so they are kept until
the end: 12 bytes each, however many events lie between two of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import IO

from ....events.record import Record
from ....events.types import RunFailed, RunFinished, RunResumed, RunStarted
from .catalog import METRICS, Metric
from .distribution import Distribution
from .meter import Meter
from .snapshot import Labels, Snapshot


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


@dataclass
class _Series:
    """All samples of one series: of a histogram that is one after the other for each bucket, the count and the sum."""

    names: tuple[str, ...]
    """What stands before each value of a scrape: ``rl_steps_total{run="..."}``."""
    scrapes: array[int] = field(default_factory=lambda: array("I"))
    values: array[float] = field(default_factory=lambda: array("d"))


SCRAPES_MAX = 200_000
"""Of one export: five weeks at 15 s. Each takes about a millisecond, and twelve bytes of memory for each series."""


class TooManyScrapes(ValueError):
    """The log would be looked at too often."""


def write_openmetrics(records: Iterable[Record], out: IO[bytes], every_s: float) -> Exported:
    """Write the metrics of `records`, looked at every `every_s` seconds, to `out`; return what was written.

    Raises `TooManyScrapes` where that is more often than `SCRAPES_MAX`.
    """
    run, times = "", array("q")
    found: dict[str, dict[Labels, _Series]] = {metric.prometheus: {} for metric in METRICS}
    for ts, snapshot, of_fork in scrapes(records, every_s):
        if of_fork:
            del times[:]
            for table in found.values():
                table.clear()
        if len(times) == SCRAPES_MAX:
            raise TooManyScrapes(f"more than {SCRAPES_MAX:,} scrapes, one each {every_s:g} s")
        run = snapshot.run
        for metric in METRICS:
            _keep(metric, snapshot, len(times), found[metric.prometheus])
        times.append(ts)
    told = Exported(run, len(times), 0, *((times[0], times[-1]) if times else (0, 0)))
    at = [_seconds(ts) for ts in times]
    for metric in METRICS:
        if found[metric.prometheus]:
            out.write(_head(metric).encode())
        for series in found[metric.prometheus].values():
            told.samples += len(series.values)
            out.writelines(_lines(series, at))
    out.write(b"# EOF\n")
    return told


def _keep(metric: Metric, snapshot: Snapshot, scrape: int, table: dict[Labels, _Series]) -> None:
    for labels, value in snapshot.values.get(metric.prometheus, {}).items():
        series = table.get(labels)
        if series is None:
            name = f"{metric.prometheus}{{{_labels(metric, snapshot.run, labels)}}}"
            series = table[labels] = _Series((name,))
        series.scrapes.append(scrape)
        series.values.append(value)
    for labels, found in snapshot.histograms.get(metric.prometheus, {}).items():
        series = table.get(labels)
        if series is None:
            series = table[labels] = _Series(_bucket_names(metric, snapshot, labels, found))
        series.scrapes.append(scrape)
        series.values.extend((*accumulate(found.counts), found.total, found.sum))


def _lines(series: _Series, at: list[str]) -> Iterator[bytes]:
    values = iter(series.values)
    for scrape in series.scrapes:
        for name in series.names:
            yield f"{name} {next(values)!r} {at[scrape]}\n".encode()


def _bucket_names(metric: Metric, snapshot: Snapshot, labels: Labels, found: Distribution) -> tuple[str, ...]:
    name, text = metric.prometheus, _labels(metric, snapshot.run, labels)
    bounds = (*(repr(float(bound)) for bound in found.bounds), "+Inf")
    buckets = (f'{name}_bucket{{{text},le="{bound}"}}' for bound in bounds)
    return (*buckets, f"{name}_count{{{text}}}", f"{name}_sum{{{text}}}")


def _seconds(ts_ns: int) -> str:
    millis = ts_ns // 1_000_000
    return f"{millis // 1000}.{millis % 1000:03}"


def _head(metric: Metric) -> str:
    return f"# HELP {metric.family} {_escaped(metric.description)}\n# TYPE {metric.family} {metric.kind}\n"


def _labels(metric: Metric, run: str, labels: Labels) -> str:
    pairs = [("run", run), *zip(metric.labels, labels, strict=True)]
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
