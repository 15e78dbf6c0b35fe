"""The figures of each trained step, as a fold of the log: the same live and from any log, whoever folds it.

A step's *window* begins where the trainer starts to wait for the step's batch (or takes it, where it need not wait),
and ends where that of the next step begins: wait, batch, converting, training, weight sync, evaluation, checkpoint.
The first one also has the start of the run. So windows leave no gap, and phases add up to them.

A row is given out when its window is over; where devices are sampled, once each of them has told of the window's end,
or `SETTLE_S` later. It never changes after that. A resume takes back whole steps: they come again when they are
trained again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....core.config import recorded_scheduler
from ....core.projections.fold import Folded, on
from ....events.identity import is_evaluation
from ....events.record import Record
from ....events.types import (
    PHASES_OF_NEXT_STEP,
    BatchTaken,
    DeviceSampled,
    EvalCompleted,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    LlmCallFinished,
    PhaseEntered,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepStarted,
    TrajectoryCompleted,
    part_seconds,
)
from .window import Rollout, Window

SETTLE_S = 2.0
"""How long a row waits for the samples of devices that end after its window."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """The figures of one trained step, and the record that ended its window."""

    step: int
    seq: int
    ts: int
    """UTC nanoseconds."""
    figures: Mapping[str, float]


@dataclass
class _Group:
    version: int
    buffered: bool = False
    rollouts: dict[str, Rollout] = field(default_factory=dict)


@dataclass
class _Closed:
    """A window that is over and waits for samples of the devices in `awaited`."""

    window: Window
    step: int
    seq: int
    ts: int
    until_ns: int
    awaited: set[str]


@dataclass
class StepFigures(Folded):
    """One row for each trained step; `take` hands them out."""

    rows: list[StepRow] = field(default_factory=list)
    """Rows that nobody has taken yet."""
    capacity: int = 0
    _window: Window = field(default_factory=lambda: Window(0, 0))
    _closed: _Closed | None = None
    _groups: dict[int, _Group] = field(default_factory=dict)
    _buffered: int = 0
    _phase: str = "starting"
    _since_ns: int = 0
    _last_ns: int = 0

    def take(self) -> list[StepRow]:
        """Return the rows that are ready and were not taken before."""
        rows, self.rows = self.rows, []
        return rows

    def apply(self, record: Record) -> None:
        """Fold one record."""
        if self._closed is not None and record.mono >= self._closed.until_ns:
            self._emit()
        super().apply(record)
        self._last_ns = record.mono

    # The run and its phases

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self._configure(event.config)
        self._window = Window(record.mono, 0)
        self._phase, self._since_ns = "starting", record.mono

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        """Close what is left of the life before, drop what is rolled back, and begin anew."""
        last_ns = event.last_mono if event.last_mono is not None else self._last_ns
        self._close(record, last_ns)
        self._emit()
        self.rows = [row for row in self.rows if row.step < event.step]
        if event.config is not None:
            self._configure(event.config)
        self._window = Window(record.mono, self._buffered)
        self._phase, self._since_ns = "starting", record.mono

    @on(PhaseEntered)
    def _entered(self, record: Record, event: PhaseEntered) -> None:
        if event.phase in PHASES_OF_NEXT_STEP and self._window.completed is not None:
            self._close(record, record.mono)
            self._window = Window(record.mono, self._buffered)
        else:
            self._end_phase(record.mono)
        self._phase, self._since_ns = event.phase, record.mono

    @on(RunFinished, RunFailed)
    def _ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self._close(record, record.mono)
        self._emit()
        self._window = Window(record.mono, self._buffered)
        self._phase, self._since_ns = "finished", record.mono

    def _configure(self, config: Mapping[str, Any]) -> None:
        self.capacity = recorded_scheduler(config).buffer_or_default

    def _end_phase(self, now_ns: int) -> None:
        self._window.phases_ns[self._phase] += now_ns - self._since_ns
        self._since_ns = now_ns

    def _close(self, record: Record, now_ns: int) -> None:
        """End the window at `now_ns`. What was not trained in it by then leaves no row."""
        window = self._window
        self._emit()
        if window.completed is None:
            return
        self._end_phase(now_ns)
        window.end_ns = now_ns
        until_ns = now_ns + round(SETTLE_S * 1e9)
        self._closed = _Closed(
            window, window.completed.step, record.seq, record.ts, until_ns, set(window.devices)
        )
        if not window.devices:
            self._emit()

    def _emit(self) -> None:
        closed, self._closed = self._closed, None
        if closed is not None:
            figures = closed.window.figures(self.capacity)
            self.rows.append(StepRow(closed.step, closed.seq, closed.ts, figures))

    # Groups

    @on(GroupDispatched)
    def _dispatched(self, record: Record, event: GroupDispatched) -> None:
        self._groups[event.group] = _Group(event.version)

    @on(GroupRestored)
    def _restored(self, record: Record, event: GroupRestored) -> None:
        rollouts = {one.trajectory: Rollout(one.reward, None) for one in event.trajectories}
        self._groups[event.group] = _Group(event.version, buffered=True, rollouts=rollouts)
        self._buffered += 1

    @on(TrajectoryCompleted)
    def _trajectory(self, record: Record, event: TrajectoryCompleted) -> None:
        group = self._groups.get(event.group) if event.group is not None else None
        if group is not None and not group.buffered:
            group.rollouts[event.trajectory] = Rollout(event.reward, part_seconds(event))

    @on(GroupBuffered)
    def _buffer(self, record: Record, event: GroupBuffered) -> None:
        self._groups[event.group].buffered = True
        self._buffered += 1

    @on(GroupFiltered, GroupFailed, GroupEvicted, GroupDiscarded)
    def _group_ended(
        self, record: Record, event: GroupFiltered | GroupFailed | GroupEvicted | GroupDiscarded
    ) -> None:
        self._window.groups[event.kind.removeprefix("group_")] += 1
        self._leave(event.group)

    def _leave(self, number: int) -> _Group | None:
        group = self._groups.pop(number, None)
        if group is not None and group.buffered:
            self._buffered -= 1
        return group

    # The step

    @on(BatchTaken)
    def _taken(self, record: Record, event: BatchTaken) -> None:
        groups = [group for number in event.groups if (group := self._leave(number)) is not None]
        self._window.taken = event
        self._window.lags = [event.step - group.version for group in groups]
        self._window.rollouts = [rollout for group in groups for rollout in group.rollouts.values()]

    @on(StepStarted)
    def _step_started(self, record: Record, event: StepStarted) -> None:
        self._window.started = event

    @on(StepCompleted)
    def _step_completed(self, record: Record, event: StepCompleted) -> None:
        self._window.completed = event

    @on(EvalCompleted)
    def _evaluated(self, record: Record, event: EvalCompleted) -> None:
        if event.outcome == "completed":
            self._window.evaluated = event

    @on(LlmCallFinished)
    def _called(self, record: Record, event: LlmCallFinished) -> None:
        if not is_evaluation(event.trajectory):
            self._window.generated_tokens += event.tokens

    @on(DeviceSampled)
    def _sampled(self, record: Record, event: DeviceSampled) -> None:
        self._window.measure(event, record.mono)
        closed = self._closed
        if closed is not None:
            closed.window.measure(event, record.mono)
            closed.awaited.discard(event.device)
            if not closed.awaited:
                self._emit()
