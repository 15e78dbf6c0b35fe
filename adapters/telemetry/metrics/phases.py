"""What the trainer does, and for how long."""

from __future__ import annotations

from typing import get_args

from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import Phase, PhaseEntered, RunFailed, RunFinished, RunResumed, RunStarted
from .part import Part, StateClock, Track
from .snapshot import Snapshot

PHASES: tuple[str, ...] = get_args(Phase)


class Phases(Part):
    """The trainer's phase; exactly one holds, and their seconds sum to the time the run has had."""

    def __init__(self) -> None:
        self.clock = StateClock(PHASES, "starting")
        self.track = Track("starting")

    @on(RunStarted, RunResumed)
    def _begun(self, record: Record, event: RunStarted | RunResumed) -> None:
        self.clock.start("starting", record.mono)
        self.track.enter("starting", record.mono)

    @on(PhaseEntered)
    def _entered(self, record: Record, event: PhaseEntered) -> None:
        self.clock.enter(event.phase, record.mono)
        self.track.enter(event.phase, record.mono)

    @on(RunFinished, RunFailed)
    def _ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self.clock.enter("finished", record.mono)
        self.clock.stop(record.mono)
        self.track.enter("finished", record.mono)

    def interrupted(self, at_ns: int) -> None:
        """End the open phase."""
        self.clock.stop(at_ns)

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write the phase, and the seconds of each."""
        into.set_state("rl_trainer_phase", self.clock.state, PHASES)
        into.set_each("rl_trainer_phase_seconds_total", self.clock.seconds(now_ns))
