"""What a policy decides."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import RunConfig
from ..projections import View


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One group that is due: for step `target`, generated from `version` on."""

    target: int
    version: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """One live group that the policy gives up; its rollouts end and its prompt goes back."""

    group: int
    lag: int
    """Versions by which the next step that could train it is ahead of the group's dispatch."""
    surplus: bool = False
    """Whether no step is left for it at all: the run needs no more groups."""


def room(view: View, config: RunConfig) -> int:
    """Return how many groups may start now, by the permits and by the room of the buffer; may be negative."""
    groups, scheduler = view.groups, config.scheduler
    return min(
        scheduler.permits_or_default - groups.in_flight,
        scheduler.buffer_or_default - groups.in_flight - groups.buffered,
    )


def data_ended(view: View) -> bool:
    """Return whether no group can be added to what is buffered: no prompt is left, and nothing is in flight."""
    return view.prompts.exhausted and not view.groups.in_flight
