"""What a check of a log says: the decisions agree, or where the first one does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...events.types import Event

DECISIONS = (
    "batch_taken",
    "blocked",
    "checkpoint_started",
    "data_exhausted",
    "engine_restarted",
    "eval_started",
    "group_buffered",
    "group_discarded",
    "group_dispatched",
    "group_evicted",
    "group_failed",
    "group_filtered",
    "group_restored",
    "invariant_broken",
    "learner_up",
    "llm_call_started",
    "phase_entered",
    "policy_changed",
    "prompt_drawn",
    "prompt_quarantined",
    "prompt_returned",
    "retry_scheduled",
    "run_failed",
    "run_finished",
    "run_resumed",
    "stall_cleared",
    "stall_detected",
    "sync_started",
    "trajectory_dropped",
    "weights_published",
)
"""Kinds of event that are decisions, or show one, and are compared. ``blocked`` is the decision to wait."""


class NotReplayable(Exception):
    """The log cannot be replayed; the message is one line that says why."""


class Decided(NamedTuple):
    """One decision, as its event has it or would have it: the fields that the state decides."""

    kind: str
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, event: Event) -> Decided:
        """Return what `event` says, all of it."""
        fields = event.model_dump()
        return cls(fields.pop("kind"), fields)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Every decision of the log is the one that its state asks for."""

    events: int
    decisions: Counter[str] = field(default_factory=Counter)
    """Compared ones, by the kind of their event."""
    waits: int = 0
    """Times an actor began to wait, and there was nothing for it to decide."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Decisions that were not compared because their kind was to be ignored."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where the log holds another decision than its state asks for."""

    seq: int
    """Of the recorded decision."""
    ts: int
    """Its time, UTC nanoseconds."""
    start_ts: int
    """Time of the log's first event."""
    actor: str
    recorded: Sequence[Decided]
    """All decisions that were made at once, in order; a ``blocked`` is the decision to wait."""
    produced: Sequence[Decided]
    """The decisions that are due in that state now; empty: none."""
    state_seq: int
    """Newest event of the state that they were made on."""
    state: Mapping[str, str]
    before: Agreement
    """What agreed up to there."""
