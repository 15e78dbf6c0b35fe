"""One attempt at one trajectory, as the tree of spans that it becomes.

Its root begins when the trajectory was submitted and ends with its group's fate, so that waiting, for a slot as for
the trainer, is seen in it. Below it lie the queue, the environment's setup, the turns with their calls, the reward and
the time in the buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ....events.identity import chat_span_id, span_id, trace_id
from ....events.types import (
    EnvStepFinished,
    EnvStepStarted,
    LlmCallFinished,
    LlmCallStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    VersionSpans,
)
from . import names
from .origin import Origin
from .spans import Attributes, Kind, Link, Span, SpanEvent, Status, Value

ERRORS = frozenset({"failed", "expired", "lost"})
"""Outcomes of a call that are errors; a cancelled one was only called off."""
_TOOL: Attributes = ((names.OPERATION, "execute_tool"), (names.TOOL, names.TOOL_NAME))


class Open(NamedTuple):
    """A turn or a call that has not ended."""

    seq: int
    """Of the event that began it."""
    start_ns: int
    span_id: bytes
    event: LlmCallStarted | EnvStepStarted


class Fate(NamedTuple):
    """What became of the group, when."""

    outcome: str
    time_ns: int
    step: int | None = None
    """The step that consumed it."""


class Stay(NamedTuple):
    """A group's time in the buffer: since when, and by which event."""

    seq: int
    since_ns: int


@dataclass(slots=True, eq=False)
class Attempt:
    """An attempt that runs, or waits for its group's fate."""

    origin: Origin
    trajectory: str
    attempt: int
    group: int | None
    version: int
    """At dispatch of the group."""
    submitted_ns: int
    dispatched_ns: int
    """When the first attempt was submitted."""
    started_ns: int
    trace_id: bytes = b""
    root_id: bytes = b""
    children: list[Span] = field(default_factory=list)
    events: list[SpanEvent] = field(default_factory=list)
    turn: Open | None = None
    call: Open | None = None
    low: int = -1
    high: int = -1
    """Versions that sampled its tokens; -1: none yet."""
    ended_ns: int = 0
    ended: TrajectoryCompleted | TrajectoryFailed | None = None

    @property
    def duration_ns(self) -> int:
        """Return nanoseconds from dispatch to end, over all attempts."""
        return self.ended_ns - self.dispatched_ns

    @property
    def failed(self) -> bool:
        """Whether something went wrong with it; being called off is not that."""
        return isinstance(self.ended, TrajectoryFailed) and self.ended.failure != "cancelled"

    # What happens in it

    def begin(self, delay_s: float) -> None:
        """Name it, and close the span of its wait to be started."""
        run = self.origin.run
        self.trace_id = trace_id(run, self.trajectory)
        self.root_id = root_span_id(run, self.trajectory, self.attempt)
        queue = span_id(run, names.QUEUE, self.trajectory, self.attempt)
        delay = ((names.DELAY_S, delay_s),) if delay_s else ()
        self._add(queue, self.root_id, names.QUEUE, self.submitted_ns, self.started_ns, delay)

    def call_started(self, seq: int, time_ns: int, event: LlmCallStarted | EnvStepStarted) -> None:
        """Open a call, and a turn with the call to the engine that begins it."""
        run = self.origin.run
        if isinstance(event, LlmCallStarted):
            if event.part == 0 or self.turn is None:
                self.turn = Open(seq, time_ns, span_id(run, names.TURN_SPAN, seq), event)
            own = chat_span_id(run, self.trajectory, self.attempt, event.turn, event.part)
        else:
            own = span_id(run, event.call, seq)
        self.call = Open(seq, time_ns, own, event)

    def chat_finished(self, time_ns: int, event: LlmCallFinished) -> None:
        """Close the call to the engine; where it failed, the turn with it."""
        call, turn = self.call, self.turn
        if call is None or turn is None or not isinstance(call.event, LlmCallStarted):
            return
        attributes: list[tuple[str, Value]] = [
            *self.origin.call,
            (names.MAX_TOKENS, call.event.max_tokens),
            (names.INPUT_TOKENS, call.event.prompt_tokens),
            (names.OUTPUT_TOKENS, event.tokens),
            (names.ENGINE, event.engine),
            (names.QUEUE_S, event.queue_s),
        ]
        if event.finish_reason:
            attributes.append((names.FINISH_REASONS, (event.finish_reason,)))
        if event.version_spans:
            attributes += versions(event.version_spans)
            self._sampled(event.version_spans)
        self._finish(
            call, turn.span_id, self.origin.chat, time_ns, tuple(attributes), event, kind=Kind.CLIENT
        )
        if event.outcome != "completed":
            self._end_turn(time_ns)

    def env_finished(self, time_ns: int, event: EnvStepFinished) -> None:
        """Close a call to the environment, and the turn that a step ends."""
        call = self.call
        if call is None or not isinstance(call.event, EnvStepStarted):
            return
        if event.call == "step" and self.turn is not None:
            self._finish(call, self.turn.span_id, names.EXECUTE_TOOL, time_ns, _TOOL, event)
            self._end_turn(time_ns)
        else:
            name = names.SETUP if event.call == "reset" else names.REWARD_SPAN
            self._finish(call, self.root_id, name, time_ns, (), event)

    def end(self, time_ns: int, event: TrajectoryCompleted | TrajectoryFailed) -> None:
        """Note how it ended."""
        if self.turn is not None:
            self._end_turn(time_ns)
        self.call, self.ended, self.ended_ns = None, event, time_ns

    def note(self, time_ns: int, name: str, attributes: Attributes) -> None:
        """Note what was decided about it after its end; it counts as its last moment."""
        self.events.append(SpanEvent(time_ns, name, attributes))
        self.ended_ns = max(self.ended_ns, time_ns)

    # The tree

    def tree(self, fate: Fate | None, stay: Stay | None) -> list[Span]:
        """Return its spans, the root first, with what became of its group."""
        completed = isinstance(self.ended, TrajectoryCompleted)
        children, end_ns = self.children, self.ended_ns
        if fate is not None and stay is not None and completed:
            buffered = buffer_span(self, self.root_id, stay, fate)
            children, end_ns = [*children, buffered], fate.time_ns
        return [self._root(end_ns, fate), *children]

    def open_tree(self, now_ns: int, stay: Stay | None) -> tuple[list[Span], frozenset[bytes]]:
        """Return its spans as if all of them ended now, and the ids of those that are open."""
        if isinstance(self.ended, TrajectoryFailed):
            return self.tree(None, None), frozenset()  # nothing of it is open, it only waits for its group
        opened, spans = {self.root_id}, [self._root(now_ns, None), *self.children]
        resource, trace = self.origin.resource, self.trace_id
        if self.turn is not None:
            opened.add(self.turn.span_id)
            spans.append(self._turn(now_ns))
        if self.call is not None:
            parent, name, attributes = self._of_open_call(self.call)
            opened.add(self.call.span_id)
            kind = Kind.CLIENT if isinstance(self.call.event, LlmCallStarted) else Kind.INTERNAL
            start_ns = self.call.start_ns
            spans.append(
                Span(resource, trace, self.call.span_id, parent, name, start_ns, now_ns, attributes, kind)
            )
        if stay is not None and isinstance(self.ended, TrajectoryCompleted):
            waiting = buffer_span(self, self.root_id, stay, Fate("", now_ns))
            opened.add(waiting.span_id)
            spans.append(waiting)
        return spans, frozenset(opened)

    def link(self, attributes: Attributes) -> Link:
        """Return a link to its root."""
        return Link(self.trace_id, self.root_id, attributes)

    def _of_open_call(self, call: Open) -> tuple[bytes, str, Attributes]:
        if isinstance(call.event, LlmCallStarted):
            assert self.turn is not None
            asked = (
                (names.MAX_TOKENS, call.event.max_tokens),
                (names.INPUT_TOKENS, call.event.prompt_tokens),
                (names.ENGINE, call.event.engine),
            )
            return self.turn.span_id, self.origin.chat, self.origin.call + asked
        if call.event.call == "step" and self.turn is not None:
            return self.turn.span_id, names.EXECUTE_TOOL, _TOOL
        return self.root_id, names.SETUP if call.event.call == "reset" else names.REWARD_SPAN, ()

    def _root(self, end_ns: int, fate: Fate | None) -> Span:
        origin, ended = self.origin, self.ended
        attributes: list[tuple[str, Value]] = [
            (names.OPERATION, "invoke_agent"),
            (names.AGENT, origin.agent),
            (names.CONVERSATION, self.trajectory),
            *origin.call[1:],
            (names.TRAJECTORY, self.trajectory),
            (names.ATTEMPT, self.attempt),
        ]
        if self.group is None:
            attributes.append((names.EVAL, self.trajectory.partition("/")[0]))
        else:
            attributes.append((names.GROUP, self.group))
        attributes.append((names.VERSION, self.version))
        if self.low >= 0:
            attributes += [(names.VERSION_START, self.low), (names.VERSION_END, self.high)]
        status, message, events = Status.UNSET, "", list(self.events)
        if isinstance(ended, TrajectoryCompleted):
            attributes += _of_completed(ended)
        elif ended is not None:
            attributes += [
                (names.OUTCOME, "cancelled" if ended.failure == "cancelled" else "failed"),
                (names.FAILURE, ended.failure),
                (names.BLAME, ended.blame),
                (names.RETRYABLE, ended.retryable),
            ]
            if self.failed:
                status, message = Status.ERROR, ended.message
                attributes.append((names.ERROR_TYPE, ended.failure))
                events.insert(0, exception(self.ended_ns, ended.failure, ended.message))
        if fate is not None:
            attributes.append((names.GROUP_OUTCOME, fate.outcome))
            if fate.step is not None and isinstance(ended, TrajectoryCompleted):
                attributes += [(names.CONSUMED_BY, fate.step), (names.STALENESS, fate.step - self.version)]
        return Span(
            origin.resource,
            self.trace_id,
            self.root_id,
            b"",
            origin.root,
            self.submitted_ns,
            end_ns,
            tuple(attributes),
            events=tuple(events),
            status=status,
            message=message,
        )

    def _sampled(self, spans: VersionSpans) -> None:
        by = [version for version, _ in spans]
        self.low = min(by) if self.low < 0 else min(self.low, *by)
        self.high = max(self.high, *by)

    def _turn(self, end_ns: int) -> Span:
        turn = self.turn
        assert turn is not None
        attributes = ((names.TURN, turn.event.turn),)
        resource, trace, start_ns = self.origin.resource, self.trace_id, turn.start_ns
        return Span(
            resource, trace, turn.span_id, self.root_id, names.TURN_SPAN, start_ns, end_ns, attributes
        )

    def _end_turn(self, end_ns: int) -> None:
        self.children.append(self._turn(end_ns))
        self.turn = None

    def _finish(
        self,
        call: Open,
        parent: bytes,
        name: str,
        end_ns: int,
        attributes: Attributes,
        event: LlmCallFinished | EnvStepFinished,
        kind: Kind = Kind.INTERNAL,
    ) -> None:
        self.call = None
        if event.outcome == "completed":
            self._add(call.span_id, parent, name, call.start_ns, end_ns, attributes, kind)
            return
        attributes += ((names.OUTCOME, event.outcome),)
        resource, trace, start_ns = self.origin.resource, self.trace_id, call.start_ns
        failed = Span(resource, trace, call.span_id, parent, name, start_ns, end_ns, attributes, kind)
        if event.outcome in ERRORS:
            failed = erroneous(failed, event.outcome, event.message)
        self.children.append(failed)

    def _add(
        self,
        own: bytes,
        parent: bytes,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Attributes = (),
        kind: Kind = Kind.INTERNAL,
    ) -> None:
        resource, trace = self.origin.resource, self.trace_id
        self.children.append(Span(resource, trace, own, parent, name, start_ns, end_ns, attributes, kind))


def root_span_id(run: str, trajectory: str, attempt: int) -> bytes:
    """Return the span id of the root of an attempt's tree."""
    return span_id(run, "invoke_agent", trajectory, attempt)


def buffer_span(attempt: Attempt, parent: bytes, stay: Stay, fate: Fate) -> Span:
    """Return the span of a trajectory's time in the buffer."""
    attributes: list[tuple[str, Value]] = [(names.DWELL_S, (fate.time_ns - stay.since_ns) / 1e9)]
    if fate.outcome:
        attributes.insert(0, (names.OUTCOME, fate.outcome))
    if fate.step is not None:
        attributes.insert(0, (names.CONSUMED_BY, fate.step))
    own = span_id(attempt.origin.run, names.BUFFER, attempt.trajectory, stay.seq)
    return Span(
        attempt.origin.resource,
        attempt.trace_id,
        own,
        parent,
        names.BUFFER,
        stay.since_ns,
        fate.time_ns,
        tuple(attributes),
    )


def exception(time_ns: int, kind: str, message: str) -> SpanEvent:
    """Return the event that says what went wrong."""
    return SpanEvent(time_ns, "exception", ((names.EXCEPTION_TYPE, kind), (names.EXCEPTION_MESSAGE, message)))


def erroneous(span: Span, kind: str, message: str) -> Span:
    """Return `span` as one that ended in an error."""
    return span._replace(
        attributes=(*span.attributes, (names.ERROR_TYPE, kind)),
        events=(*span.events, exception(span.end_ns, kind, message)),
        status=Status.ERROR,
        message=message,
    )


def versions(spans: VersionSpans) -> Attributes:
    """Return the attributes that say which versions sampled how many tokens."""
    by = [version for version, _ in spans]
    each = tuple(f"{version}:{count}" for version, count in spans)
    return (names.VERSION_START, min(by)), (names.VERSION_END, max(by)), (names.VERSION_SPANS, each)


def _of_completed(ended: TrajectoryCompleted) -> Attributes:
    each = tuple(f"{version}:{count}" for version, count in ended.version_spans)
    return (
        (names.VERSION_SPANS, each),
        (names.INPUT_TOKENS, ended.prompt_tokens),
        (names.OUTPUT_TOKENS, ended.completion_tokens),
        (names.TURNS, ended.turns),
        (names.REWARD, ended.reward),
        (names.STOP_REASON, ended.stop_reason),
        (names.OUTCOME, "completed"),
    )
