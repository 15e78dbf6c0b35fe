"""The buffer and what became of groups; stalls, and what else should not be: deadlines, quarantines, broken laws."""

from __future__ import annotations

from ....core.config import recorded_scheduler
from ....core.projections import Folded, Groups, on
from ....events.record import Record
from ....events.types import (
    BatchTaken,
    DeadlineExpired,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    InvariantBroken,
    PromptQuarantined,
    RunResumed,
    RunStarted,
    StallCleared,
    StallDetected,
)
from .flows import Flows
from .lanes import Spans
from .trace_file import Told, TraceFile


class BufferTracks(Folded):
    """The groups ``buffer`` and ``health``."""

    def __init__(self, file: TraceFile, flows: Flows, groups: Groups) -> None:
        self._file = file
        self._flows = flows
        self._groups = groups
        buffer = file.group("buffer")
        self._depth = file.counter("buffer depth", buffer, "groups")
        self._capacity = file.counter("buffer capacity", buffer, "groups")
        self._in_flight = file.counter("groups in flight", buffer, "groups")
        self._ends = file.track("groups", buffer, "Groups that are not trained, and those trained again")
        self._health = file.group("health")
        self._stalls = Spans(file, self._health, "stalls")
        self._marks: dict[str, int] = {}

    def end_all(self, told: Told) -> None:
        """End what is open, saying `told` of it."""
        self._stalls.end_all(told)

    @on(RunStarted, RunResumed)
    def _configured(self, record: Record, event: RunStarted | RunResumed) -> None:
        if event.config is not None:
            self._capacity.set(recorded_scheduler(event.config).buffer_or_default)
        self._count()

    @on(GroupDispatched, GroupBuffered, BatchTaken)
    def _moved(self, record: Record, event: GroupDispatched | GroupBuffered | BatchTaken) -> None:
        self._count()

    def _count(self) -> None:
        self._depth.set(self._groups.buffered)
        self._in_flight.set(self._groups.in_flight)

    @on(GroupFiltered)
    def _filtered(self, record: Record, event: GroupFiltered) -> None:
        self._end(event.group, "group filtered", {"reason": event.reason, "reward_mean": event.reward_mean})

    @on(GroupFailed)
    def _failed(self, record: Record, event: GroupFailed) -> None:
        told = {"failure": event.failure, "blame": event.blame, "message": event.message}
        self._end(event.group, "group failed", told)

    @on(GroupEvicted)
    def _evicted(self, record: Record, event: GroupEvicted) -> None:
        self._end(event.group, "group evicted", {"lag": event.lag})

    @on(GroupDiscarded)
    def _discarded(self, record: Record, event: GroupDiscarded) -> None:
        self._end(event.group, "group discarded", {"reason": event.reason})

    def _end(self, group: int, name: str, told: Told) -> None:
        self._flows.forget(group)
        self._file.instant(self._ends, name, {"group": group, **told})
        self._count()

    @on(GroupRestored)
    def _restored(self, record: Record, event: GroupRestored) -> None:
        """Mark where a group is buffered again; if its trajectories' arrows have arrived, one leaves from here."""
        flows = () if self._flows.has(event.group) else (self._flows.from_trajectory(event.group),)
        self._file.instant(self._ends, "group restored", {"group": event.group, "step": event.step}, flows)
        self._count()

    @on(StallDetected)
    def _stalled(self, record: Record, event: StallDetected) -> None:
        told = {
            "stall": event.stall,
            "sentence": event.sentence,
            "chain": event.chain,
            "first_cause": event.first_cause,
        }
        self._stalls.begin(event.stall, f"stall: {event.stall_kind}", told)

    @on(StallCleared)
    def _cleared(self, record: Record, event: StallCleared) -> None:
        self._stalls.end(event.stall, {"by": event.by})

    @on(DeadlineExpired)
    def _expired(self, record: Record, event: DeadlineExpired) -> None:
        told = {"effect": event.effect, "subject": event.subject, "limit_s": event.limit_s}
        self._mark("deadlines", "deadline expired", told)

    @on(PromptQuarantined)
    def _quarantined(self, record: Record, event: PromptQuarantined) -> None:
        told = {
            "prompt": event.prompt,
            "index": event.index,
            "failure": event.failure,
            "message": event.message,
        }
        self._mark("quarantines", "prompt quarantined", told)

    @on(InvariantBroken)
    def _broken(self, record: Record, event: InvariantBroken) -> None:
        told = {
            "law": event.law,
            "broken_by": event.broken_by,
            "expected": event.expected,
            "found": event.found,
        }
        self._mark("broken laws", "law broken", told)

    def _mark(self, lane: str, name: str, told: Told) -> None:
        track = self._marks.get(lane)
        if track is None:
            track = self._marks[lane] = self._file.track(lane, self._health)
        self._file.instant(track, name, told)
