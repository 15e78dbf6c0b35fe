"""Sending spans without ever holding up who makes them: a bounded queue, and a thread that empties it.

What cannot be sent is dropped and counted by reason. The log has everything, so nothing is lost for good:
``eventrain export traces`` sends the same spans, with the same ids, whenever a receiver is there.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence

from .delivery import Delivery, Outcome, Reason
from .otlp import encoded
from .spans import Span

QUEUE_MAX = 65_536
"""Spans that wait to be sent, at most; some 60 MB."""
BATCH_MAX = 512
"""Spans of one request."""


class SpanSender:
    """Sends spans in batches from a thread of its own. End it with `close`; it is a context manager too."""

    def __init__(self, delivery: Delivery, *, queue_max: int = QUEUE_MAX, batch_max: int = BATCH_MAX) -> None:
        self.delivery = delivery
        self.sent = 0
        """Spans that arrived."""
        self.first_failure = ""
        """What went wrong first, for a person."""
        self._queue_max = queue_max
        self._batch_max = batch_max
        self._waiting: deque[Span] = deque()
        self._dropped: Counter[Reason] = Counter()
        self._change = threading.Condition()
        self._stop = threading.Event()
        self._until: float | None = None
        self._failing: Reason | None = None
        self._flying = 0
        self._thread = threading.Thread(target=self._run, name="span sender", daemon=True)
        self._thread.start()

    def offer(self, spans: Sequence[Span]) -> None:
        """Queue `spans`; those that do not fit are dropped and counted. Never waits for the receiver."""
        with self._change:
            room = max(0, self._queue_max - len(self._waiting))
            self._waiting.extend(spans[:room])
            if len(spans) > room:
                self._dropped["queue_full"] += len(spans) - room
            self._change.notify_all()

    def wait_for_room(self, count: int, limit_s: float) -> bool:
        """Wait up to `limit_s` until `count` more spans fit, or as many as ever do; return whether they do.

        At once False while the receiver fails: it may be gone.
        """
        end, count = time.monotonic() + limit_s, min(count, self._queue_max)
        with self._change:
            while len(self._waiting) + count > self._queue_max:
                rest_s = end - time.monotonic()
                if rest_s <= 0 or self._failing is not None or self._stop.is_set():
                    return False
                self._change.wait(rest_s)
        return True

    @property
    def failing(self) -> bool:
        """Whether the newest request did not arrive."""
        return self._failing is not None

    def take_drops(self) -> dict[Reason, int]:
        """Return what was dropped since the last call."""
        with self._change:
            drops = dict(self._dropped)
            self._dropped.clear()
        return drops

    def close(self, drain_s: float) -> None:
        """Send what waits, for at most `drain_s`, and end the thread; what is left is dropped and counted.

        Returns within `drain_s` and a little more, whatever the receiver does.
        """
        with self._change:
            self._until = time.monotonic() + drain_s
            self._change.notify_all()
        self._thread.join(drain_s)
        self._stop.set()
        with self._change:
            self._change.notify_all()
        self._thread.join(1.0)
        with self._change:
            left = len(self._waiting) + (self._flying if self._thread.is_alive() else 0)
            self._waiting.clear()
            if left:
                self._dropped[self._failing or "timed_out"] += left

    def __enter__(self) -> SpanSender:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Drop what waits."""
        self.close(0.0)

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            outcome = self._delivered(batch)
            with self._change:
                self._flying = 0
                self._failing = outcome.reason
                if outcome.reason is None:
                    self.sent += len(batch) - outcome.rejected
                    if outcome.rejected:
                        self._dropped["refused"] += outcome.rejected
                else:
                    self._dropped[outcome.reason] += len(batch)
                if outcome.message and not self.first_failure:
                    self.first_failure = outcome.message
                self._change.notify_all()
        self.delivery.close()

    def _delivered(self, batch: list[Span]) -> Outcome:
        try:
            return self.delivery.deliver(encoded(batch), self._stop, self._until)
        except Exception as error:  # noqa: BLE001 - a defect: counted and told like every other loss, and not the end
            return Outcome("failed", f"{type(error).__name__}: {' '.join(str(error).split())}")

    def _next(self) -> list[Span] | None:
        """Return the next batch; None when it is time to end."""
        with self._change:
            while not self._waiting:
                if self._until is not None or self._stop.is_set():
                    return None
                self._change.wait()
            if self._stop.is_set() or (self._until is not None and time.monotonic() >= self._until):
                return None
            count = min(self._batch_max, len(self._waiting))
            self._flying = count
            return [self._waiting.popleft() for _ in range(count)]
