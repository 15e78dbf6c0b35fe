"""The verdicts of the watchdog, made again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...events.record import Record
from ...events.types import InvariantBroken, RunResumed, StallCleared, StallDetected
from ..stalls import Stall, nothing_moves, verdict
from ..watchdog import due_actors
from .part import Part
from .scene import Scene
from .verdict import Decided

TIMED = re.compile(r"[\d.]+(?:e[+-]?\d+)? s\b|, and \d+ more")
"""What a moment changes in a link: how long something takes, and how much else takes long."""


class WatchdogCheck(Part):
    """Every stall that was reported holds in the state of the report, and every end of one is at the event named.

    The report's own look at the clock is a moment before the time of its event, so durations and counts of what is
    late are not compared, except in a deadlock, which has none. What holds at a time holds after it too, as long as
    nothing happens. That a stall was *not* reported is not noticed: the watchdog may not have
    had its turn.
    """

    decides = (InvariantBroken, RunResumed, StallCleared, StallDetected)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._told: Sequence[Stall] = ()
        self._told_to = -1  # seq of the newest event of the report

    actor = "watchdog"  # nothing is to be compared ahead

    def before(self, record: Record) -> None:
        """Compare a report, or the end of a stall."""
        event = record.event
        if type(event) is StallDetected:
            self._detected(record, event)
        elif type(event) is StallCleared:
            self._report(record)
            self._cleared(record, event)
        elif type(event) is InvariantBroken:
            self._broken(record, event)

    def _cleared(self, record: Record, event: StallCleared) -> None:
        reported = self.scene.past.watch.standing
        standing = next((one for one in reported.values() if one.number == event.stall), None)
        if standing is None:
            return  # its report was not compared
        recorded = Decided("stall_cleared", {"stall": event.stall, "by": event.by})
        produced = Decided("stall_cleared", {"stall": event.stall, "by": standing.ended_by})
        self.scene.one(record, recorded, produced)
        del reported[standing.stall.key]

    def _detected(self, record: Record, event: StallDetected) -> None:
        self._report(record)
        recorded = _report_of(event.stall_kind, event.chain)
        found = self._told_like(recorded)
        if found is None:  # perhaps the first of the next report, with nothing in between
            self._told = self._verdict(record)
            found = self._told_like(recorded)
        if found is not None:
            self.scene.one(record, recorded, recorded)
            self.scene.past.watch.add(found, record.mono)
        else:
            like = next((stall for stall in self._told if stall.kind == event.stall_kind), None)
            self.scene.one(
                record, recorded, _report_of(like.kind, like.chain) if like is not None else None
            )

    def _report(self, record: Record) -> None:
        """Make the verdict anew at the first event of a report: it is one of the state before all of them."""
        if record.seq != self._told_to + 1:
            self._told = self._verdict(record)
        self._told_to = record.seq

    def _told_like(self, recorded: Decided) -> Stall | None:
        return next((stall for stall in self._told if _report_of(stall.kind, stall.chain) == recorded), None)

    def _verdict(self, record: Record) -> Sequence[Stall]:
        scene, view = self.scene, self.view
        watched = nothing_moves(view) or view.engines.low_since_ns is not None
        scene.prompts.tell(())
        due = due_actors(view, scene.config, scene.policy, scene.prompts, scene.engines) if watched else []
        breaches = scene.past.ledger.breaches
        return verdict(view, scene.config, record.mono, due=due, breaches=breaches)

    def _broken(self, record: Record, event: InvariantBroken) -> None:
        fields = {"law": event.law, "broken_by": event.broken_by, "expected": event.expected, "found": event.found}
        breach = next((one for one in self.scene.past.ledger.breaches if one.law == event.law), None)
        produced = None
        if breach is not None:
            law = {"law": breach.law, "broken_by": breach.seq, "expected": breach.expected, "found": breach.found}
            produced = Decided("invariant_broken", law)
        self.scene.one(record, Decided("invariant_broken", fields), produced)


def _report_of(kind: str, chain: Sequence[str]) -> Decided:
    links = list(chain) if kind == "deadlock" else [TIMED.sub("_", link) for link in chain]
    return Decided("stall_detected", {"stall_kind": kind, "chain": links})
