"""Scheduling policies: which groups are dispatched for which step, which are given up, and which a step trains.

A policy is a pure function of the state and the configuration. To write one, copy `targeted.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..config import RunConfig
from ..projections import View
from ..waits import Edge
from .capacity import Capacity
from .dispatch import Dispatch, Eviction
from .targeted import Targeted
from .token_windowed import TokenWindowed
from .windowed import Windowed

__all__ = ["Dispatch", "Eviction", "Policy", "policy_for"]


class Policy(Protocol):
    """What the collector and the trainer ask."""

    def plan(self, view: View, config: RunConfig) -> Sequence[Dispatch]:
        """Return the groups to dispatch now, first one first; empty when none is due."""
        ...

    def evict(self, view: View, config: RunConfig) -> Sequence[Eviction]:
        """Return the groups, in flight or buffered, that no step can train any more; empty when none is due.

        A group named here must stay one that `batch` never returns, whatever happens next.
        """
        ...

    def why_idle(self, view: View, config: RunConfig) -> Edge:
        """Return what has to happen before `plan` can return anything again."""
        ...

    def batch(self, view: View, config: RunConfig) -> tuple[int, ...] | None:
        """Return the groups that the next step trains, or None while it has to wait for more."""
        ...

    def why_waiting(self, view: View, config: RunConfig) -> Edge:
        """Return what the next step needs and has, while `batch` returns None."""
        ...


def policy_for(config: RunConfig) -> Policy:
    """Return the policy that the configuration names."""
    policies: dict[str, type[Policy]] = {
        "targeted": Targeted,
        "capacity": Capacity,
        "windowed": Windowed,
        "token_windowed": TokenWindowed,
    }
    return policies[config.scheduler.policy]()
