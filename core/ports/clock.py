"""Time, as core/ asks for it."""

from __future__ import annotations

from typing import Protocol

from ...events.record import Clock as RecordClock


class Clock(RecordClock, Protocol):
    """Time for core/: what records need, and a way to let time pass."""

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass. Cancelling ends the sleep at once."""
        ...
