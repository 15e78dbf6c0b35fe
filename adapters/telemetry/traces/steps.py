"""Training, step by step: a trace for each step, with what it waited for and links to all that it consumed.

A step begins where the one before ended, and ends where the trainer turns to the next: with the wait for its batch.
What lies between two steps (weight sync, evaluation, checkpoint) belongs to the step that made the weights; what
comes before the first, to the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ....events.identity import span_id, trace_id
from ....events.record import Record
from ....events.types import (
    PHASES_OF_NEXT_STEP,
    BatchTaken,
    Blocked,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointStarted,
    EvalCompleted,
    EvalStarted,
    PhaseEntered,
    StepCompleted,
    StepFailed,
    StepStarted,
    SyncAcknowledged,
    SyncFailed,
    SyncRetried,
    SyncStarted,
    SyncVerified,
    Unblocked,
)
from . import names
from .attempt import ERRORS, erroneous
from .groups import Group, Groups
from .origin import Origin, truncated
from .spans import Attributes, Link, Span, SpanEvent


@dataclass(slots=True)
class Part:
    """A part of a step that has not ended."""

    seq: int
    start_ns: int
    span_id: bytes
    parent: bytes
    attributes: Attributes = ()
    events: list[SpanEvent] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    """The step that is under way."""

    step: int
    seq: int
    start_ns: int
    trace_id: bytes
    root_id: bytes
    trained: bool = False
    taken: bool = False
    attributes: Attributes = ()
    links: list[Link] = field(default_factory=list)
    children: list[Span] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)
    failure: tuple[str, str] | None = None


class Steps:
    """Folds what the trainer does; finished spans go to `out`."""

    def __init__(self, groups: Groups, out: list[Span]) -> None:
        self.groups = groups
        self.out = out
        self._step: Step | None = None
        self._blocked = -1

    def enter(self, origin: Origin, seq: int, now_ns: int, step: int) -> None:
        """Begin `step` as the first of a life of the run."""
        self.origin = origin
        self._begin(step, seq, now_ns)

    def _begin(self, step: int, seq: int, now_ns: int) -> Step:
        run = self.origin.run
        root = span_id(run, names.STEP, seq)
        self._step = Step(step, seq, now_ns, trace_id(run, f"step:{step}"), root)
        return self._step

    def _close(self, now_ns: int) -> None:
        """End the step: it is trained, and the trainer turns to the next."""
        step = self._step
        if step is None:
            return
        for name in list(step.parts):
            self._end(name, now_ns)
        self.out += [self._root(step, now_ns), *step.children]
        self._step = None

    def _root(self, step: Step, end_ns: int) -> Span:
        attributes = ((names.ITERATION, step.step), *step.attributes)
        links = tuple(step.links)
        root = Span(
            self.origin.resource,
            step.trace_id,
            step.root_id,
            b"",
            names.STEP,
            step.start_ns,
            end_ns,
            attributes,
            links=links,
        )
        return erroneous(root, *step.failure) if step.failure else root

    # Parts

    def _open(
        self, name: str, record: Record, now_ns: int, attributes: Attributes = (), below: str = ""
    ) -> None:
        step = self._step
        if step is None:
            return
        kind = name.partition(" ")[0]
        own = span_id(self.origin.run, kind, record.seq)
        parent = step.parts[below].span_id if below in step.parts else step.root_id
        step.parts[name] = Part(record.seq, now_ns, own, parent, attributes)

    def _end(
        self,
        name: str,
        now_ns: int,
        attributes: Attributes = (),
        *,
        links: tuple[Link, ...] = (),
        outcome: str = "completed",
        message: str = "",
    ) -> None:
        step = self._step
        part = step.parts.pop(name, None) if step is not None else None
        if step is None or part is None:
            return
        if outcome != "completed":
            attributes += ((names.OUTCOME, outcome),)
        span = self._span(step, name, part, now_ns, attributes)._replace(links=links)
        step.children.append(erroneous(span, outcome, message) if outcome in ERRORS else span)

    def _span(self, step: Step, name: str, part: Part, end_ns: int, attributes: Attributes) -> Span:
        resource, kind = self.origin.resource, name.partition(" ")[0]
        own, parent, start_ns = part.span_id, part.parent, part.start_ns
        attributes, events = part.attributes + attributes, tuple(part.events)
        return Span(
            resource, step.trace_id, own, parent, kind, start_ns, end_ns, attributes, events=events
        )

    # Waiting, and the batch

    def phase(self, record: Record, now_ns: int, event: PhaseEntered) -> None:
        """Turn to the next step after one that is trained, and begin or end the weight sync."""
        self._end(names.SYNC, now_ns)
        step = self._step
        if step is not None and step.trained and event.phase in PHASES_OF_NEXT_STEP:
            self._close(now_ns)
            if event.phase != "finished":
                self._begin(step.step + 1, record.seq, now_ns)
        if event.phase == "weight_sync":
            self._open(names.SYNC, record, now_ns)

    def blocked(self, record: Record, now_ns: int, event: Blocked) -> None:
        """Begin the wait for a batch."""
        if event.waiter == "trainer" and event.edge == "buffer_ready":
            self._blocked, self.groups.last_buffered = record.seq, None
            waits = ((names.AWAITED, event.awaited), (names.PRESENT, event.present))
            self._open(names.WAIT, record, now_ns, waits)

    def unblocked(self, record: Record, now_ns: int, event: Unblocked) -> None:
        """End the wait for a batch; the group that ended it is kept."""
        if event.blocked != self._blocked:
            return
        last, links = self.groups.last_buffered, tuple[Link, ...]()
        if event.outcome == "ready" and last is not None:
            self.groups.keep(last)
            links = _awaited(last)
        outcome = "completed" if event.outcome == "ready" else event.outcome
        message = "" if outcome == "completed" else f"no batch within {event.seconds:g} s"
        self._end(names.WAIT, now_ns, links=links, outcome=outcome, message=message)

    def taken(self, record: Record, now_ns: int, event: BatchTaken) -> None:
        """Begin the conversion of a batch, and link to all that is in it."""
        step = self._step
        if step is None or step.step != event.step or step.taken:
            self._close(now_ns)
            step = self._begin(event.step, record.seq, now_ns)
        step.taken = True
        step.links = self.groups.taken(event.step, event.groups, now_ns)
        self._open(names.CONVERT, record, now_ns)

    # Training

    def started(self, record: Record, now_ns: int, event: StepStarted) -> None:
        """End the conversion and begin the training."""
        self._end(names.CONVERT, now_ns)
        if self._step is not None:
            self._step.attributes = (
                (names.VERSION, event.version),
                (names.TARGET_VERSION, event.version + 1),
                (names.GROUPS, event.groups),
                (names.TRAJECTORIES, event.trajectories),
                (names.TOKENS, event.tokens),
                (names.MASKED_TOKENS, event.masked_tokens),
            )
        self._open(names.TRAIN, record, now_ns)

    def completed(self, record: Record, now_ns: int, event: StepCompleted) -> None:
        """End the training."""
        parts = tuple((f"rl.train.{part}_seconds", seconds) for part, seconds in event.parts_s.items())
        self._end(names.TRAIN, now_ns, parts)
        if self._step is not None:
            self._step.trained = True
            self._step.attributes += (
                (names.LOSS, event.loss),
                (names.REWARD_MEAN, event.reward_mean),
                (names.STALENESS, event.lag_mean),
                (names.STALENESS_MAX, event.lag_max),
            )

    def failed(self, record: Record, now_ns: int, event: StepFailed) -> None:
        """End the training, and with it the step, by a failure."""
        self._end(names.CONVERT, now_ns)
        self._end(names.TRAIN, now_ns, outcome=event.outcome, message=event.message)
        if self._step is not None:
            if event.outcome in ERRORS:
                self._step.failure = event.outcome, event.message
            self._close(now_ns)

    # Weights, evaluation, checkpoint

    def syncs(self, record: Record, now_ns: int, event: SyncStarted) -> None:
        """Begin the weight sync of one engine."""
        attributes = (
            (names.ENGINE, event.engine),
            (names.VERSION, event.version),
            (names.SYNC_MODE, event.mode),
        )
        self._open(f"{names.SYNC_ENGINE} {event.engine}", record, now_ns, attributes, names.SYNC)

    def noted(self, record: Record, now_ns: int, event: SyncRetried | SyncVerified) -> None:
        """Note on it that an attempt failed and another follows, or that the engine has what was published."""
        part = self._step and self._step.parts.get(f"{names.SYNC_ENGINE} {event.engine}")
        if not part:
            return
        if isinstance(event, SyncRetried):
            told: Attributes = ((names.SYNC_ATTEMPT, event.attempt), (names.EXCEPTION_MESSAGE, event.message))
            part.events.append(SpanEvent(now_ns, names.SYNC_RETRIED, told))
        else:
            told = ((names.TENSORS, event.tensors), (names.BYTES, event.size_bytes), (names.DIGEST, event.digest))
            part.events.append(SpanEvent(now_ns, names.SYNC_VERIFIED, told))

    def synced(self, record: Record, now_ns: int, event: SyncAcknowledged | SyncFailed) -> None:
        """End it."""
        name = f"{names.SYNC_ENGINE} {event.engine}"
        if isinstance(event, SyncFailed):
            self._end(name, now_ns, outcome=event.outcome, message=event.message)
        else:
            self._end(name, now_ns)

    def evaluates(self, record: Record, now_ns: int, event: EvalStarted) -> None:
        """Begin an evaluation, and its trajectories."""
        self.groups.evaluates(f"eval{event.eval}", event.version, now_ns)
        attributes = ((names.EVAL, f"eval{event.eval}"), (names.VERSION, event.version))
        self._open(names.EVALUATE, record, now_ns, attributes)

    def evaluated(self, record: Record, now_ns: int, event: EvalCompleted) -> None:
        """End it, with links to its trajectories."""
        links = tuple(self.groups.evaluated(f"eval{event.eval}", now_ns))
        mean: Attributes = () if event.reward_mean is None else ((names.REWARD_MEAN, event.reward_mean),)
        message = f"{event.completed} of {event.completed + event.failed} trajectories"
        self._end(names.EVALUATE, now_ns, mean, links=links, outcome=event.outcome, message=message)

    def saves(self, record: Record, now_ns: int, event: CheckpointStarted) -> None:
        """Begin a checkpoint."""
        self._open(names.CHECKPOINT, record, now_ns, ((names.VERSION, event.version),))

    def saved(self, record: Record, now_ns: int, event: CheckpointCommitted | CheckpointFailed) -> None:
        """End it."""
        if isinstance(event, CheckpointFailed):
            self._end(names.CHECKPOINT, now_ns, outcome="failed", message=event.message)
        else:
            self._end(names.CHECKPOINT, now_ns, ((names.BYTES, event.size_bytes),))

    # What is open

    def snapshot(self, seq: int, now_ns: int, *, gone: bool = False) -> None:
        """Send a copy of the step that is under way, as far as it has come; `gone` says that it will never end."""
        step = self._step
        if step is None:
            return
        opened = {step.root_id, *(part.span_id for part in step.parts.values())}
        parts = [self._span(step, name, part, now_ns, ()) for name, part in step.parts.items()]
        tree = [self._root(step, now_ns), *step.children, *parts]
        self.out += truncated(self.origin.run, tree, frozenset(opened), seq, gone=gone)

    def end(self, now_ns: int) -> None:
        """End the step with the run, if it is trained; what was still open in it is called off."""
        step = self._step
        if step is not None and step.trained:
            for name in list(step.parts):
                self._end(name, now_ns, outcome="cancelled")
            self._close(now_ns)

    def forget(self) -> None:
        """Drop the step that a process which is gone left open."""
        self._step = None


def _awaited(group: Group) -> tuple[Link, ...]:
    """Return a link to the trajectory that made `group` whole."""
    if group.last is None:
        return ()
    attributes: Attributes = ((names.TRAJECTORY, group.last.trajectory), (names.VERSION, group.version))
    if group.number is not None:
        attributes = ((names.GROUP, group.number), *attributes)
    if group.let_go:
        attributes += ((names.SAMPLED, False),)
    return (group.last.link(attributes),)
