"""The value of every metric at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .distribution import Buckets, Distribution

Labels = tuple[str, ...]
"""Values of a metric's own labels, in the order of the catalog; `run` is not among them."""


@dataclass
class Snapshot:
    """All series of one run at one moment, by Prometheus name; open intervals count up to that moment."""

    run: str = ""
    """The run's id, the label `run` of every series; empty before the run has begun, and then there are no series."""
    started_ts: int = 0
    """When the run began, UTC nanoseconds: since when its counters count."""
    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[str, dict[Labels, Distribution]] = field(default_factory=dict)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Give one series of the gauge or counter `name` its value."""
        self.values.setdefault(name, {})[labels] = value

    def set_each(self, name: str, values: Mapping[str, float], labels: Iterable[str] = ()) -> None:
        """Give each series of a metric with one label its value; those of `labels` that `values` lacks are 0."""
        series = self.values.setdefault(name, {})
        for label in labels:
            series[label,] = 0
        for label, value in values.items():
            series[label,] = value

    def set_state(self, name: str, state: str, states: Iterable[str], *before: str) -> None:
        """Set one of `states` to 1 and all others to 0; `before` are labels in front of the state."""
        series = self.values.setdefault(name, {})
        for one in states:
            series[*before, one] = 1 if one == state else 0

    def distribution(self, name: str, buckets: Buckets, *labels: str) -> None:
        """Give one series of the histogram `name` its buckets."""
        self.histograms.setdefault(name, {})[labels] = buckets.freeze()
