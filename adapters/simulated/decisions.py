"""What a run decided, as lines that can be compared between two logs of the same run: no times, no seqs.

Actors run beside each other, so only the decisions of one actor have an order that means something: each is compared
with its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...events.record import Record
from ...events.types import (
    BatchTaken,
    CheckpointStarted,
    DataExhausted,
    EngineRestarted,
    EnvironmentWorkerRestarted,
    EvalStarted,
    Event,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RetryScheduled,
    RunFailed,
    RunFinished,
    StallDetected,
    TrajectoryDropped,
)

COMPARED: dict[type[Event], tuple[str, ...]] = {
    PromptDrawn: ("prompt", "epoch", "index"),
    GroupDispatched: ("group", "prompt", "target", "version", "size"),
    GroupBuffered: ("group", "target", "trajectories"),
    GroupFiltered: ("group", "reason"),
    GroupFailed: ("group", "failure", "blame"),
    GroupEvicted: ("group", "lag"),
    GroupDiscarded: ("group", "reason"),
    PromptQuarantined: ("prompt", "index", "failure"),
    PromptReturned: ("prompt", "reason"),
    RetryScheduled: ("trajectory", "attempt", "delay_s"),
    TrajectoryDropped: ("trajectory", "failure"),
    DataExhausted: ("drawn", "quarantined"),
    BatchTaken: ("step", "groups"),
    CheckpointStarted: ("step", "version"),
    EvalStarted: ("eval", "step", "version"),
    EngineRestarted: ("engine", "restart"),
    EnvironmentWorkerRestarted: ("worker", "restart"),
    StallDetected: ("stall_kind", "chain"),
    RunFinished: ("outcome", "steps"),
    RunFailed: ("failed_actor", "error"),
}
"""The decisions, and what of each counts."""
PROVEN = ("deadlock", "silent_loss")
"""Stalls whose whole chain counts; the others are verdicts on durations, and only their kind does."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of an actor."""

    actor: str
    text: str
    seq: int
    mono: int
    stall: str = ""
    """The sentence of a stall."""
    about: str = ""
    """The engine or worker of a restart: those of several have no order among them."""

    @property
    def lane(self) -> tuple[str, str]:
        """Return whose order it is part of."""
        return self.actor, self.about


def decision_of(record: Record) -> Decision | None:
    """Return the decision that `record` is, None if it is none."""
    event = record.event
    fields = COMPARED.get(type(event))
    if fields is None:
        return None
    if isinstance(event, StallDetected):
        proven = event.stall_kind in PROVEN
        text = f"stall_detected {event.stall_kind}{': ' + ' <- '.join(event.chain) if proven else ''}"
        return Decision(record.actor, text, record.seq, record.mono, event.sentence)
    said = " ".join(f"{name}={_said(getattr(event, name))}" for name in fields)
    about = ""
    if isinstance(event, EngineRestarted):
        about = event.engine
    elif isinstance(event, EnvironmentWorkerRestarted):
        about = event.worker
    text = f"{event.kind} {said}"  # type: ignore[attr-defined]
    return Decision(record.actor, text, record.seq, record.mono, about=about)


def _said(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision of an actor that is another one; None where there is none any more."""

    number: int
    """Of the decision among all recorded ones, from 0."""
    recorded: Decision | None
    now: Decision | None
    at_ns: int


@dataclass
class Comparison:
    """The fold of a reproduced run's decisions beside the recorded ones."""

    recorded: Sequence[Decision]
    ended: bool
    """Whether the recorded log has the run's end: one without it says nothing of what came after."""
    made: list[Decision] = field(default_factory=list)
    difference: Difference | None = None
    _queues: defaultdict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    _at: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        for number, decision in enumerate(self.recorded):
            self._queues[decision.lane].append(number)

    @property
    def same(self) -> int:
        """Decisions that were the recorded ones."""
        return sum(self._at.values())

    def made_by(self, actor: str) -> int:
        """Return how many of the recorded decisions `actor` has made."""
        return self._at[actor, ""]

    def apply(self, record: Record) -> None:
        """Compare, if the record is a decision."""
        decision = decision_of(record)
        if decision is None:
            return
        self.made.append(decision)
        if self.difference is not None:
            return
        queue, at = self._queues[decision.lane], self._at[decision.lane]
        if at == len(queue):
            if self.ended:
                self.difference = Difference(len(self.recorded), None, decision, decision.mono)
            return
        recorded = self.recorded[queue[at]]
        if recorded.text != decision.text:
            self.difference = Difference(queue[at], recorded, decision, decision.mono)
            return
        self._at[decision.lane] += 1

    def close(self, now_ns: int) -> None:
        """Note the first recorded decision that was not made until the end."""
        if self.difference is not None:
            return
        left = [queue[self._at[lane]] for lane, queue in self._queues.items() if self._at[lane] < len(queue)]
        if left:
            self.difference = Difference(min(left), self.recorded[min(left)], None, now_ns)
