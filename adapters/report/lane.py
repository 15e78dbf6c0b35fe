"""One of several things that holds at a time, as intervals that follow each other."""

from __future__ import annotations

from collections.abc import Callable

from .curves import Interval


class Lane:
    """What holds now, and since when; what has ended goes to `ended`."""

    def __init__(self, ended: Callable[[Interval], None]) -> None:
        self._ended = ended
        self.name = ""
        """Empty while nothing holds."""
        self.step = -1
        self.since_ns = 0

    def enter(self, name: str, at_ns: int, step: int = -1) -> None:
        """End what holds and begin `name`."""
        self.leave(at_ns)
        self.name, self.step, self.since_ns = name, step, at_ns

    def leave(self, at_ns: int) -> None:
        """End what holds."""
        if self.name and at_ns > self.since_ns:
            self._ended(Interval(self.name, self.since_ns, at_ns, self.step))
        self.name = ""

    def open_until(self, now_ns: int) -> list[Interval]:
        """Return what holds as an interval up to `now_ns`; nothing if it has no length."""
        if not self.name or now_ns <= self.since_ns:
            return []
        return [Interval(self.name, self.since_ns, now_ns, self.step, open=True)]
