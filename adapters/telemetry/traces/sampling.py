"""Which trajectories are worth a trace: a share of whole groups, and everything that explains a slow or failed step.

GRPO compares the trajectories of a group with each other, so a group is traced whole or not at all. Which ones is a
function of the run and the group's number (`events.identity.traced`): the run hands the same answer to the engines.
The rest is decided at the end of a group's life, when the log has said what became of it:

- every trajectory with an attempt that failed or took too long (one that was only called off does not count);
- every group that failed or was evicted;
- the slowest trajectories of each step, retries included;
- the group that a step waited for last: whatever made it late made the step late;
- whatever is open when a run stalls or dies.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar

from ....core.config_sections import TelemetrySection
from ....events.identity import traced


class Timed(Protocol):
    """What has a duration."""

    @property
    def duration_ns(self) -> int:
        """Return nanoseconds from dispatch to end."""
        ...


T = TypeVar("T", bound=Timed)


class Sampling(NamedTuple):
    """How much is traced."""

    share: float = 1.0
    """Of all groups, 0 to 1."""
    slowest: int = 2
    """Trajectories of each step that are traced in any case."""

    @classmethod
    def of(cls, section: TelemetrySection) -> Sampling:
        """Return what a run's configuration asks for."""
        return cls(section.trace_share, section.trace_slowest)

    def drawn(self, run: str, group: int | None) -> bool:
        """Return whether a group is traced whatever becomes of it; an evaluation (None) always is."""
        return group is None or traced(run, group, self.share)

    def slowest_of(self, batch: Iterable[T]) -> list[T]:
        """Return the slowest of a step's trajectories; the earlier one in the batch among equals."""
        return heapq.nlargest(self.slowest, batch, key=lambda one: one.duration_ns)
