"""The process that follows a run's log and sends its spans: ``python -m eventrain.adapters.telemetry.traces``.

It is a process of its own so that a run pays nothing for its traces but the log. It reads what is on disk, so a span
says only what really happened, and a receiver that is slow for a while costs nothing: the log is the buffer. It ends
when the log does, or, once its standard input is closed (its parent is gone, or has had enough), when it has read what
is there. What it lost it says on standard output, one JSON object a line::

    {"signal": "traces", "reason": "unreachable", "count": 12}
    {"degraded": "http://localhost:4318: connection refused", "works": "..."}
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....events.errors import LogDamaged, LogTooNew
from ....events.reader import LogReader, Mark
from ....events.types import RunFailed, RunFinished
from . import WORKS
from .builder import TraceBuilder
from .delivery import Delivery, Reason
from .sampling import Sampling
from .sender import BATCH_MAX, SpanSender
from .spans import Span

POLL_S = 0.25
"""Between two looks at the log; a run's writer commits about as often."""
REPORT_EVERY = 20
"""Looks between two reports of drops."""
NICENESS = 10
"""The run comes first on a busy machine."""
ROOM_S = 0.5
"""Between two looks at whether a slow receiver is still worth waiting for."""

Say = Callable[[dict[str, Any]], None]


class Following:
    """Follows one log to its end. `over` is set when nobody will write it any more, or nobody cares."""

    def __init__(
        self,
        reader: LogReader,
        builder: TraceBuilder,
        sender: SpanSender,
        over: threading.Event,
        say: Say,
        *,
        since_seq: int = 0,
        batch_max: int = BATCH_MAX,
    ) -> None:
        """Take what to read and where to send; spans that end before `since_seq` were sent by another process."""
        self.reader = reader
        self.builder = builder
        self.sender = sender
        self.over = over
        self.say = say
        self._since_seq = since_seq
        self._batch_max = batch_max
        self._next_seq = 0
        self._mark: Mark | None = None
        self._ended = False
        self._batch: list[Span] = []
        self._told = False
        self._let_go = 0

    def run(self, drain_s: float) -> None:
        """Follow until the log ends or `over` is set and the rest is read; then send what waits, for `drain_s`."""
        looks = 0
        try:
            while True:
                last_look = self.over.is_set()
                self._look()
                self._hand_over()
                if self._ended or last_look:
                    break
                looks += 1
                if looks % REPORT_EVERY == 0:
                    self._report()
                self.over.wait(POLL_S)
            if not self._ended:
                self._batch += self.builder.cut()
                self._hand_over()
        except (LogDamaged, LogTooNew, OSError) as error:
            self._degraded(" ".join(str(error).split()))
        finally:
            self.sender.close(drain_s)
            self._report()

    def _look(self) -> None:
        """Fold all that has come since the last look."""
        for mark, records in self.reader.frames(self._next_seq, self._mark):
            for record in records:
                spans = self.builder.apply(record)
                if spans and record.seq >= self._since_seq:
                    self._batch += spans
                    if len(self._batch) >= self._batch_max:
                        self._hand_over()
                self._next_seq = record.seq + 1
                self._ended = isinstance(record.event, RunFinished | RunFailed)
            self._mark = mark

    def _hand_over(self) -> None:
        # The log keeps what is not read yet, so there is no need to drop while the receiver is only slow.
        for first in range(0, len(self._batch), self._batch_max):
            batch = self._batch[first : first + self._batch_max]
            while not self.sender.wait_for_room(len(batch), ROOM_S):
                self._report()  # the receiver may hang for as long as one request is tried
                if self.sender.failing or self.over.is_set():
                    break
            self.sender.offer(batch)
        self._batch = []

    def _report(self) -> None:
        drops: Counter[Reason] = Counter(self.sender.take_drops())
        drops["queue_full"] += self.builder.let_go - self._let_go
        self._let_go = self.builder.let_go
        for reason, count in drops.items():
            if count:
                self.say({"signal": "traces", "reason": reason, "count": count})
        failure = self.sender.first_failure or self.sender.delivery.trouble  # tried again, and told meanwhile
        if failure:
            self._degraded(failure)

    def _degraded(self, why: str) -> None:
        if not self._told:
            self._told = True
            self.say({"degraded": why, "works": WORKS})


def say(line: dict[str, Any]) -> None:
    """Write one line to standard output, if anybody still reads it."""
    with suppress(OSError):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _watch(over: threading.Event) -> None:
    """Set `over` when standard input closes."""
    while os.read(sys.stdin.fileno(), 4096):  # not the buffered file: its lock cannot be left held at exit
        pass
    over.set()


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the command line, parsed."""
    parser = argparse.ArgumentParser(prog="python -m eventrain.adapters.telemetry.traces")
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--otlp", required=True, metavar="URL", help="base URL of the receiver")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds for one request")
    parser.add_argument("--retry", type=float, default=60.0, help="seconds that one request is tried")
    parser.add_argument("--drain", type=float, default=10.0, help="seconds to send what waits at the end")
    parser.add_argument("--share", type=float, help="share of groups that are traced")
    parser.add_argument(
        "--slowest", type=int, help="slowest trajectories of a step that are traced in any case"
    )
    parser.add_argument("--since-seq", type=int, default=0, help="send only what ends from this event on")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    """Follow the log that the command line names."""
    asked = arguments(given)
    with suppress(OSError):
        os.nice(NICENESS)
    sampling = None
    if asked.share is not None or asked.slowest is not None:
        default = Sampling()
        sampling = Sampling(
            default.share if asked.share is None else asked.share,
            default.slowest if asked.slowest is None else asked.slowest,
        )
    over = threading.Event()
    threading.Thread(target=_watch, args=(over,), daemon=True).start()
    delivery = Delivery(asked.otlp, timeout_s=asked.timeout, retry_s=asked.retry)
    sender = SpanSender(delivery)
    reader = LogReader(asked.run / "events")
    Following(reader, TraceBuilder(sampling), sender, over, say, since_seq=asked.since_seq).run(asked.drain)
