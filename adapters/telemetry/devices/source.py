"""What measures devices: a source is asked now and then, and says how busy they were since it was asked before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Pool = Literal["engine", "learner", "controller", "shared"]
"""What a device works for; see `eventrain.events.types.DeviceSampled`."""


class SourceAbsent(Exception):
    """This machine has nothing that the source could measure, which is no fault: nobody is told."""


class SourceFailed(Exception):
    """The source cannot measure; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Use of one device over the `window_s` seconds that ended when it was read."""

    device: str
    pool: Pool | None
    """None: whoever the log says works on it; see `pools.py`."""
    utilization: float
    """0 to 1: share of the window in which it was busy."""
    memory_bytes: int
    window_s: float
    source: str
    sm_active: float | None = None
    """0 to 1: mean share of a GPU's multiprocessors that had work."""
    memory_total_bytes: int | None = None


def share_of(percent: float) -> float:
    """Return the share, 0 to 1, that `percent` is; what measures is at times a little below 0 or above 100."""
    return min(1.0, max(0.0, percent / 100))


class DeviceSource(Protocol):
    """Something that measures devices.

    Its methods block. They are called from one worker thread of its own, never at the same time, and never again once
    a call took too long.
    """

    name: str
    """For a person: ``nvml``, ``processes``, ``ray 10.0.0.7:8080``."""
    exact: bool
    """Whether a window ends when it is read. Only then is it worth asking where the trainer's phase changes."""

    def open(self) -> None:
        """Get ready; the first window begins here.

        Raises `SourceAbsent` where there is nothing to measure. Any other exception is a failure to report.
        """
        ...

    def sample(self) -> Sequence[Reading]:
        """Return a reading of each device over the window since the last call, or since `open`.

        Any exception is a failure.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...
