"""A run again, from its log: the shipped actors in virtual time, with what the outside world answered then.

The decisions are made anew. If they are the recorded ones to the end, whatever the run did, a stall too, follows from
the answers and can be looked at here; if not, the first decision that differs says where the run now takes another
way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from ...core.policies import Policy
from ...core.resume import Past
from ...core.run import Run, RunOutcome
from ...events.record import Record
from ...events.types import PayloadRef, RunResumed, TrajectoryCompleted
from .decisions import Comparison, Decision, Difference
from .recorded_answers import Answers, RecordedBus, RecordedClock, RecordedLoop
from .recorded_data import RecordedPayloads
from .recorded_ports import recorded_ports
from .recorded_world import RecordedWorld
from .recording import Recording
from .seeded_loop import seeded_loop
from .tape import Tape

AFTER_S = 1e-6
"""How long after the last recorded event a run is looked at whose log has no end."""


class NotReproducible(Exception):
    """The log does not say enough; the message is one line."""


@dataclass
class Reproduction:
    """What came of it."""

    recording: Recording
    comparison: Comparison
    answers: Answers
    outcome: RunOutcome | None = None
    """None where it was left when the log's time was over."""
    now_ns: int = 0
    """Monotonic time of the end."""
    events: int = 0
    records: list[Record] = field(default_factory=list)
    """The log that came out of it, where it was to be kept."""

    @property
    def difference(self) -> Difference | None:
        """Return the first decision that is another one."""
        return self.comparison.difference

    @property
    def stalls(self) -> tuple[list[Decision], list[Decision]]:
        """Return the stalls of the recorded run and of this one."""
        recorded = [decision for decision in self.comparison.recorded if decision.stall]
        return recorded, [decision for decision in self.comparison.made if decision.stall]


def reproduce(
    records: Callable[[], Iterable[Record]],
    *,
    policy: Policy | None = None,
    seed: int | None = None,
    keep: bool = False,
) -> Reproduction:
    """Run the last life of a log again and compare its decisions with the recorded ones.

    `records` reads the log from its beginning, each time it is called. `policy` takes the place of the configured one,
    `seed` shuffles the schedule of tasks around the recorded answers, `keep` keeps the new log. Raises
    `NotReproducible`, and `NotResumable` where the life of a resumed run begins with nothing.
    """
    recording = Recording.of(records())
    if recording.config is None or recording.first is None or recording.last is None:
        raise NotReproducible("the log does not begin with run_started: nothing says what to run")
    comparison = Comparison(recording.decisions, recording.ended)
    answers = Answers(recording, comparison)
    result = Reproduction(recording, comparison, answers)
    past, before = _past(records, recording)
    work = _conducted(result, policy, past, before, keep=keep)
    if seed is None:
        with asyncio.Runner(loop_factory=RecordedLoop) as runner:
            runner.run(work)
    else:
        with seeded_loop(Tape(seed), jitter_s=0.0) as loop:
            loop.run_until_complete(work)
    return result


def _past(
    records: Callable[[], Iterable[Record]], recording: Recording
) -> tuple[Past | None, dict[PayloadRef, TrajectoryCompleted]]:
    """Return what the lives before the last one left behind: their state, and what their payloads were."""
    first = recording.first
    assert first is not None
    if not isinstance(first.event, RunResumed):
        return None, {}
    before: dict[PayloadRef, TrajectoryCompleted] = {}

    def noted() -> Iterable[Record]:
        for record in takewhile(lambda record: record.seq < first.seq, records()):
            if isinstance(record.event, TrajectoryCompleted):
                before[record.event.payload] = record.event
            yield record

    return Past.of(noted()), before


def _conducted(
    result: Reproduction,
    policy: Policy | None,
    past: Past | None,
    before: dict[PayloadRef, TrajectoryCompleted],
    *,
    keep: bool,
) -> Coroutine[Any, Any, None]:
    recording = result.recording
    config, first, last = recording.config, recording.first, recording.last
    assert config is not None
    assert first is not None
    assert last is not None
    clock = RecordedClock(first)

    async def conducted() -> None:
        bus = RecordedBus(
            clock, result.answers, next_seq=first.seq, unsaved_max=config.log.unsaved_max
        )
        payloads = RecordedPayloads(before)
        ports = recorded_ports(RecordedWorld(recording, result.answers, bus, payloads), clock)
        run = Run(config, ports, bus, payloads, policy=policy, past=past, opening=recording.opening)
        bus.register(_Kept(result, keep=keep, opening=len(recording.opening)))
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        if recording.stop is not None and recording.stop.instant is not None:
            loop.call_at(recording.stop.instant.at_s, stop.set)
        try:
            # A cancelled run has told how it was taken down; one that was killed has not.
            async with asyncio.timeout((last.mono - first.mono) / 1e9 + AFTER_S) as limit:
                result.outcome = await run.conduct(stop)
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            bus.fold()  # the last event is published when nobody looks any more
            bus.close()
        result.now_ns = min(clock.mono_ns(), last.mono) if result.outcome is None else clock.mono_ns()
        result.comparison.close(result.now_ns)

    return conducted()


class _Kept:
    """The last projection: compares every record while the log's time lasts, and keeps what is to be kept."""

    def __init__(self, result: Reproduction, *, keep: bool, opening: int) -> None:
        self.result = result
        self.keep = keep
        self.opening = opening
        last = result.recording.last
        assert last is not None
        cancelled = result.recording.cancelled
        self.until_ns = last.mono + (10**9 if cancelled else round(AFTER_S * 1e9) - 1)

    def apply(self, record: Record) -> None:
        """Take the record, unless the run is being taken down because the log's time is over."""
        if record.mono > self.until_ns:
            return
        result = self.result
        result.events += 1
        if self.keep:
            result.records.append(record)
        if result.events > self.opening:
            result.comparison.apply(record)
