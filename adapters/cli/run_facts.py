"""What a log says of a run besides the projections that decide: who runs it, how it ended, what stands in its way."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from ...core.projections import View
from ...events.record import Record
from ...events.types import (
    CheckpointCommitted,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StallCleared,
    StallDetected,
    StepCompleted,
)

_TOLD = {
    RunStarted,
    RunResumed,
    RunFinished,
    RunFailed,
    CheckpointCommitted,
    StepCompleted,
    StallDetected,
    StallCleared,
}


@dataclass
class RunFacts:
    """The state of a run after some record of its log: a fold."""

    view: View = field(default_factory=View)
    started: RunStarted | None = None
    started_ts: int = 0
    ended: RunFinished | RunFailed | None = None
    host: str = ""
    pid: int = 0
    resumed: int = 0
    forked_from: str = ""
    checkpoint: CheckpointCommitted | None = None
    stalls: dict[int, StallDetected] = field(default_factory=dict)
    """Those that stand."""
    stall_seqs: dict[int, int] = field(default_factory=dict)
    trained_at: dict[int, int] = field(default_factory=dict)
    """Seq at which each step of the history that counts was completed, last."""
    rolled_back_at: dict[int, int] = field(default_factory=dict)
    """Seq of the resume that undid a step, for those that have not been trained again."""
    newest_ts: int = 0
    """Latest UTC time of any record; the last record's own may be earlier where a clock was set back."""
    later_ns: int = 0
    """How long after its last record the state is looked at."""

    @property
    def now_mono(self) -> int:
        """The run's own monotonic clock when the state is looked at."""
        return self.view.last_mono + self.later_ns

    def apply(self, record: Record) -> None:
        """Fold one record."""
        self.view.apply(record)
        self.newest_ts = max(self.newest_ts, record.ts)
        if type(record.event) in _TOLD:
            self._tell(record)

    def _tell(self, record: Record) -> None:
        match record.event:
            case RunStarted() as event:
                self.started, self.started_ts = event, record.ts
                self.host, self.pid = event.host, event.pid
            case RunResumed() as event:
                self.ended = None
                self.host, self.pid = event.host or self.host, event.pid or self.pid
                if event.config is not None and self.started is not None:
                    name = event.config["run"]["name"]
                    self.started = self.started.model_copy(update={"config": event.config, "run": name})
                self.forked_from = event.forked_from or self.forked_from
                self.resumed += not event.forked_from
                self._clear_stalls()
                for step in [step for step in self.trained_at if step >= event.step]:
                    self.rolled_back_at[step] = record.seq
                    del self.trained_at[step]
            case RunFinished() | RunFailed() as event:
                self.ended = event
                self._clear_stalls()
            case CheckpointCommitted() as event:
                self.checkpoint = event
            case StepCompleted() as event:
                self.trained_at[event.step] = record.seq
                self.rolled_back_at.pop(event.step, None)
            case StallDetected() as event:
                self.stalls[event.stall], self.stall_seqs[event.stall] = event, record.seq
            case StallCleared() as event:
                self.stalls.pop(event.stall, None)
                self.stall_seqs.pop(event.stall, None)

    def _clear_stalls(self) -> None:
        self.stalls.clear()
        self.stall_seqs.clear()


def utc_text(ts_ns: int) -> str:
    """Return UTC nanoseconds since the epoch as a person reads them, to the second."""
    moment = datetime.datetime.fromtimestamp(ts_ns // 1_000_000_000, datetime.UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
