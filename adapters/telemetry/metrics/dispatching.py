"""What the collector does: dispatch, or wait for something that has a name."""

from __future__ import annotations

from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import (
    Blocked,
    DataExhausted,
    PromptReturned,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    Unblocked,
)
from .part import Part
from .snapshot import Snapshot

COLLECTOR_STATES = ("dispatching", "gated", "out_of_permits", "no_engine", "exhausted", "stopped")
_STATE_OF_EDGE = {"version": "gated", "permit": "out_of_permits", "engine_available": "no_engine"}


class Dispatching(Part):
    """The collector's state. A wait for the disk is still dispatching: it goes on as soon as the log is saved."""

    def __init__(self) -> None:
        self._running = False
        self._blocked = -1
        self._edge = ""
        self._exhausted = False

    @property
    def state(self) -> str:
        """One of COLLECTOR_STATES."""
        if not self._running:
            return "stopped"
        if self._edge == "drained":
            return "exhausted" if self._exhausted else "stopped"
        return _STATE_OF_EDGE.get(self._edge, "dispatching")

    @on(RunStarted, RunResumed)
    def _begun(self, record: Record, event: RunStarted | RunResumed) -> None:
        self._running, self._edge, self._blocked, self._exhausted = True, "", -1, False

    @on(RunFinished, RunFailed)
    def _ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self._running = False

    @on(Blocked)
    def _waits(self, record: Record, event: Blocked) -> None:
        if event.waiter == "collector":
            self._edge, self._blocked = event.edge, record.seq

    @on(Unblocked)
    def _goes_on(self, record: Record, event: Unblocked) -> None:
        if event.blocked == self._blocked:
            self._edge, self._blocked = "", -1

    @on(DataExhausted)
    def _no_more_data(self, record: Record, event: DataExhausted) -> None:
        self._exhausted = True

    @on(PromptReturned)
    def _data_again(self, record: Record, event: PromptReturned) -> None:
        self._exhausted = False

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write the state."""
        into.set_state("rl_collector_state", self.state, COLLECTOR_STATES)
