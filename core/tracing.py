"""Trace context for engines: what lets an engine's own spans hang below the run's.

The spans themselves are made from the log, by another process or afterwards. All that an engine needs is the
``traceparent`` of its call, whose ids are functions of the log too.
"""

from __future__ import annotations

from ..events.identity import trace_parent, traced
from .config import RunConfig
from .projections import View


class TraceParents:
    """Makes the ``traceparent`` header of each call, where the run's traces are sent somewhere."""

    def __init__(self, view: View, config: RunConfig) -> None:
        self._identity = view.identity
        self._on = config.telemetry.otlp_endpoint is not None
        self._share = config.telemetry.trace_share

    def of_call(self, trajectory: str, group: int | None, attempt: int, turn: int, part: int = 0) -> str:
        """Return the header of one call; ``""`` where nothing is sent.

        It says *sampled*, so that the engine sends spans of its own, for the configured share of groups, and for
        every trajectory of an evaluation (`group` is None): these are few, and they have no group to draw.
        """
        if not self._on:
            return ""
        run = self._identity.run
        sampled = group is None or traced(run, group, self._share)
        return trace_parent(run, trajectory, attempt, turn, part, sampled=sampled)
