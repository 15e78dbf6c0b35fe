"""Scheduling policies: which groups are dispatched for which step, and which of them a step trains.

A policy is a pure function of the state and the configuration. To write one, copy `targeted.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..config import RunConfig
from ..projections import View
from ..waits import Edge
from .dispatch import Dispatch
from .targeted import Targeted

__all__ = ["Dispatch", "Policy", "policy_for"]


class Policy(Protocol):
    """What the collector and the trainer ask."""

    def plan(self, view: View, config: RunConfig) -> Sequence[Dispatch]:
        """Return the groups to dispatch now, first one first; empty when none is due."""
        ...

    def why_idle(self, view: View, config: RunConfig) -> Edge:
        """Return what has to happen before `plan` can return anything again."""
        ...

    def batch(self, view: View, config: RunConfig) -> tuple[int, ...] | None:
        """Return the groups that the next step trains, or None while it has to wait for more."""
        ...


def policy_for(config: RunConfig) -> Policy:
    """Return the policy that the configuration names."""
    return {"targeted": Targeted}[config.scheduler.policy]()
