"""What a rank does now, for whoever has to say where it stopped.

Ranks meet in collectives, and a collective whose partner is gone waits without a word. So each rank keeps its phase and
a counter, and tells them on its event loop while its thread computes or waits. All ranks make the same marks in the
same order: the one with the lowest counter is the one that the others wait for.
"""

from __future__ import annotations

from typing import TypedDict

IDLE = "idle"


class Where(TypedDict):
    """How far a rank is."""

    phase: str
    """``forward_backward 3/8``, ``clip``, ``gather 2/5``, ..."""
    progress: int
    """Marks since the process started; comparable between the ranks of one learner."""


class Progress:
    """Written by the thread that computes, read by the event loop."""

    def __init__(self) -> None:
        self._now = Where(phase=IDLE, progress=0)

    def mark(self, phase: str) -> None:
        """Say that `phase` begins."""
        self._now = Where(phase=phase, progress=self._now["progress"] + 1)

    @property
    def now(self) -> Where:
        """The newest mark."""
        return self._now
