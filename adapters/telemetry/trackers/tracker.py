"""What takes the figures of steps, and the thread in front of each: whatever it does, the run does not wait."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Literal, Protocol

from ....core.failures import one_line
from ....events.types import Event, TelemetryDegraded, TelemetryDropped
from .figures import StepRow

QUEUED_MAX = 256
"""Steps that wait for a tracker at most; one more is dropped and counted."""

Reason = Literal["queue_full", "timed_out", "failed"]


class Tracker(Protocol):
    """Somewhere that figures of steps go. Its methods block, and are called from one thread."""

    def log(self, row: StepRow) -> None:
        """Take the figures of one step."""
        ...

    def rewind(self, step: int) -> None:
        """Take back `step` and all after it: the run was resumed before them, and they come again."""
        ...

    def close(self) -> None:
        """Write what is left, and let go."""
        ...


class Feed:
    """One tracker behind a bounded line and a thread of its own, in which `make` makes it.

    Nothing here blocks but `join`. The first failure is told once, and steps that were lost are counted. The thread is
    a daemon: one that hangs holds up nothing, not even the end of the process.
    """

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self.name = name
        self._make = make
        self._line: deque[StepRow | int] = deque()  # a number is a step to rewind to
        self._changed = threading.Condition()
        self._ending = False
        self._working = False
        self.broken = False
        """Whether there is no tracker, and will be none."""
        self._dropped: Counter[Reason] = Counter()
        self._trouble = ""
        self._told = False
        self._thread = threading.Thread(target=self._work, name=f"eventrain {name}", daemon=True)
        self._thread.start()

    def log(self, row: StepRow) -> None:
        """Line up the figures of a step; with a full line they are dropped and counted."""
        with self._changed:
            if self.broken or self._ending:
                return
            if len(self._line) >= QUEUED_MAX:
                self._dropped["queue_full"] += 1
                return
            self._line.append(row)
            self._changed.notify()

    def rewind(self, step: int) -> None:
        """Line up that `step` and all after it are taken back."""
        with self._changed:
            if not self.broken:
                self._line.append(step)
                self._changed.notify()

    def end(self) -> None:
        """Take no more; what is lined up is still handed over."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def join(self, deadline_s: float) -> None:
        """Wait for the tracker to have everything and to be closed; what it has not got by then is dropped."""
        self._thread.join(max(0.0, deadline_s))
        if not self._thread.is_alive():
            return
        with self._changed:
            left = sum(isinstance(one, StepRow) for one in self._line) + self._working
            self._line.clear()
            self._dropped["timed_out"] += left
            self._note(f"not closed within {deadline_s:.3g} s")

    def take_reports(self, works: str) -> list[Event]:
        """Return what is to be told since the last call; `works` says what goes on nevertheless."""
        with self._changed:
            reports: list[Event] = [
                TelemetryDropped(signal="trackers", reason=reason, count=count)
                for reason, count in self._dropped.items()
                if count
            ]
            self._dropped.clear()
            if self._trouble and not self._told:
                self._told = True
                missing = f"{self.name}: {self._trouble}"
                reports.insert(0, TelemetryDegraded(part="trackers", missing=missing, works=works))
            return reports

    def _note(self, trouble: str) -> None:
        self._trouble = self._trouble or trouble

    # In the thread

    def _work(self) -> None:
        try:
            tracker = self._make()
        except BaseException as error:  # noqa: BLE001 - a tracker is somebody else's code, and the run is not to feel it
            with self._changed:
                self.broken = True
                self._note(one_line(error))
            return
        finally:
            del self._make  # it holds the steps of the run so far
        while (one := self._next()) is not None:
            try:
                if isinstance(one, StepRow):
                    tracker.log(one)
                else:
                    tracker.rewind(one)
            except BaseException as error:  # noqa: BLE001 - as above; the next step may fare better
                self._failed(error, steps=int(isinstance(one, StepRow)))
        try:
            tracker.close()
        except BaseException as error:  # noqa: BLE001 - as above
            self._failed(error, steps=0)

    def _next(self) -> StepRow | int | None:
        with self._changed:
            self._working = False
            while not self._line and not self._ending:
                self._changed.wait()
            if not self._line:
                return None
            one = self._line.popleft()
            self._working = isinstance(one, StepRow)
            return one

    def _failed(self, error: BaseException, *, steps: int) -> None:
        with self._changed:
            self._note(one_line(error))
            self._dropped["failed"] += steps


def join_all(feeds: list[Feed], deadline_s: float) -> None:
    """End all of them, and wait until all are done, `deadline_s` together."""
    ends = time.monotonic() + deadline_s
    for feed in feeds:
        feed.end()
    for feed in feeds:
        feed.join(ends - time.monotonic())
