"""What a worker far from the controller has to tell, kept until it has come home.

The controller asks about once a second, and says with each question which item it has last: those are forgotten then
and not before, so an answer that is lost on its way costs nothing. What does not fit is lost, oldest first, and shows
as a gap in the numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

ITEMS_MAX = 1000
LINE_CHARS_MAX = 1000


class Outbox:
    """A bounded ring of events, each with a number and a time. To be used from any thread."""

    def __init__(self, items_max: int = ITEMS_MAX, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._items: deque[tuple[int, Mapping[str, Any]]] = deque(maxlen=items_max)
        self._now_ns = now_ns
        self._next = 0
        self._lock = threading.Lock()

    def put(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Keep an event of `kind`, seen now. It never blocks for long: logging calls it."""
        with self._lock:
            self._items.append((self._now_ns(), {"kind": kind, **fields}))
            self._next += 1

    def answer(self, received: int, asked_ns: int) -> bytes:
        """Forget what is numbered below `received`, and return the rest in msgpack, with nothing forgotten.

        That is ``[asked_ns, answered_ns, first, items]``: when the question came and the answer went by the clock
        here, the number of the first item, and ``[at_ns, event]`` of each.
        """
        with self._lock:
            while self._items and self._next - len(self._items) < received:
                self._items.popleft()
            first, items = self._next - len(self._items), list(self._items)
        return msgspec.msgpack.encode([asked_ns, self._now_ns(), first, items])

    def now_ns(self) -> int:
        """Return the time by the clock here: UTC, nanoseconds since the epoch."""
        return self._now_ns()


class OutboxHandler(logging.Handler):
    """Puts what is logged as a warning or worse into an outbox, as ``worker_logged``."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(logging.WARNING)
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line of `record`."""
        try:
            text = f"{record.name}: {record.getMessage()}"
            if record.exc_info and record.exc_info[1] is not None:
                text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        except Exception:  # noqa: BLE001 - the arguments of somebody's log call do not fit its text
            self.handleError(record)
            return
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self._outbox.put("worker_logged", {"level": level, "line": " ".join(text.split())[:LINE_CHARS_MAX]})
