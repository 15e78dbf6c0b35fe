"""Replay: a log is played back, and nothing in it can have an effect."""

from __future__ import annotations

from .check import check
from .prompts import UNKNOWN
from .verdict import DECISIONS, Agreement, Decided, Divergence, NotReplayable

__all__ = ["DECISIONS", "UNKNOWN", "Agreement", "Decided", "Divergence", "NotReplayable", "check"]
