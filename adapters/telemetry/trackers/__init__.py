"""Trackers: the figures of each trained step, and where people look at them."""

from __future__ import annotations

from .figures import StepFigures, StepRow
from .tracker import Tracker
from .trackers import Trackers

__all__ = ["StepFigures", "StepRow", "Tracker", "Trackers"]
