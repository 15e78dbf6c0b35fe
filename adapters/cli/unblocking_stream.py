"""A text stream that never makes its writer wait, however slow the terminal or the reader of the pipe is."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import TextIO

PENDING_MAX = 1_000_000
"""Characters that may wait to be written; what comes while there are more is dropped and counted."""

CLOSE_S = 2.0
"""How long `close` waits for what is pending unless it is told otherwise."""


class UnblockingStream:
    """Write to `target` from a thread of its own.

    A stopped terminal (Ctrl-S) or a full pipe blocks that thread and nothing else. When the reader is gone, all
    further output is dropped.
    """

    def __init__(self, target: TextIO) -> None:
        self.dropped = 0
        """Characters that were not written."""
        self.encoding = target.encoding
        self._target = target
        self._tty = target.isatty()
        self._pending: deque[str] = deque()
        self._size = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Take `text` to be written soon; never blocks, never fails."""
        with self._changed:
            if self._closing or self._size + len(text) > PENDING_MAX:
                self.dropped += len(text)
            else:
                self._pending.append(text)
                self._size += len(text)
                self._changed.notify()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread flushes whenever it has caught up."""

    def isatty(self) -> bool:
        """Return whether the target is a terminal."""
        return self._tty

    def fileno(self) -> int:
        """Return the target's descriptor."""
        return self._target.fileno()

    def close(self, limit_s: float = CLOSE_S) -> None:
        """Wait up to `limit_s` seconds for what is pending. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(limit_s)

    def __enter__(self) -> UnblockingStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._closing:
                    self._changed.wait()
                text = "".join(self._pending)
                if not text:
                    return
                self._pending.clear()
            if not self._written(text):
                return
            with self._changed:
                self._size -= len(text)

    def _written(self, text: str) -> bool:
        """Write `text`; return False, and drop everything from now on, when nobody reads any more."""
        try:
            self._target.write(text)
            self._target.flush()
        except (OSError, ValueError):
            with self._changed:
                self._closing = True
                self.dropped += self._size
                self._pending.clear()
            return False
        return True
