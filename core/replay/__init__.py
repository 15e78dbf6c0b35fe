"""Replay: a log is played back, and nothing in it can have an effect."""

from __future__ import annotations

from .check import check
from .verdict import Agreement, Decided, Divergence, NotReplayable

__all__ = ["Agreement", "Decided", "Divergence", "NotReplayable", "check"]
