"""Weights, engines and devices: which version is served where, what each engine does, how busy each device is."""

from __future__ import annotations

from ....core.projections import Engines, EngineStatus, Folded, Trainer, on
from ....events.record import Record
from ....events.types import (
    DeviceSampled,
    EngineLost,
    EnginePaused,
    EngineRestarted,
    EngineResumed,
    EngineUp,
    LearnerUp,
    LlmCallFinished,
    LlmCallStarted,
    RunFailed,
    RunFinished,
    RunResumed,
    StepCompleted,
    SyncAcknowledged,
    SyncFailed,
    SyncRetried,
    SyncStarted,
    SyncVerified,
)
from ..utc import UtcClock
from .flows import Flows
from .lanes import Lane, Spans
from .trace_file import CounterTrack, Told, TraceFile


class EngineTracks(Folded):
    """The groups ``weights``, ``engines`` and ``devices``."""

    def __init__(
        self, file: TraceFile, flows: Flows, engines: Engines, trainer: Trainer, clock: UtcClock
    ) -> None:
        self._file = file
        self._flows = flows
        self._engines = engines
        self._trainer = trainer
        self._clock = clock
        self._weights = file.group("weights")
        self._version = file.counter("weight version", self._weights, about="What the learner has made")
        self._group = file.group("engines")
        self._devices = file.group("devices")
        self._lanes: dict[str, _EngineLanes] = {}
        self._used: dict[str, CounterTrack] = {}

    def end_all(self, told: Told) -> None:
        """End what is open, saying `told` of it."""
        for lanes in self._lanes.values():
            lanes.state.end_all(told)
            lanes.syncs.end_all(told)

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        """Empty the engines, which are gone with what they held; their lanes stay, for those that come up."""
        self._count_version(record, event)
        for lanes in self._lanes.values():
            lanes.calls.set(0)

    @on(LearnerUp, StepCompleted)
    def _count_version(self, record: Record, event: LearnerUp | StepCompleted | RunResumed) -> None:
        self._version.set(self._trainer.version)

    @on(EngineUp)
    def _up(self, record: Record, event: EngineUp) -> None:
        told = {"version": event.version, "slots": event.slots, "device": event.device}
        self._show(event.engine, told)

    @on(EngineLost)
    def _lost(self, record: Record, event: EngineLost) -> None:
        self._show(event.engine, {"message": event.message})

    @on(EnginePaused, EngineResumed)
    def _paused(self, record: Record, event: EnginePaused | EngineResumed) -> None:
        self._show(event.engine)

    @on(EngineRestarted)
    def _restarted(self, record: Record, event: EngineRestarted) -> None:
        self._show(event.engine, {"restart": event.restart})

    def _show(self, engine: str, told: Told | None = None) -> None:
        """Show the state that the engine has now."""
        status, lanes = self._engines.by_name[engine], self._of(engine)
        lanes.version.set(status.version)
        lanes.calls.set(status.in_flight)
        if not lanes.state.is_open(status.state):
            lanes.state.end_all()
            lanes.state.begin(status.state, status.state, told)

    @on(RunFinished, RunFailed)
    def _ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        for lanes in self._lanes.values():
            lanes.state.end_all()

    @on(LlmCallStarted, LlmCallFinished)
    def _called(self, record: Record, event: LlmCallStarted | LlmCallFinished) -> None:
        status: EngineStatus | None = self._engines.by_name.get(event.engine)
        if status is not None:
            self._of(event.engine).calls.set(status.in_flight)

    @on(SyncStarted)
    def _sync_started(self, record: Record, event: SyncStarted) -> None:
        told = {"version": event.version, "mode": event.mode}
        arriving = self._flows.at_engine(event.version, event.engine)
        self._of(event.engine).syncs.begin("sync", "weight sync", told, arriving)

    @on(SyncRetried)
    def _sync_retried(self, record: Record, event: SyncRetried) -> None:
        told = {"attempt": event.attempt, "message": event.message}
        self._of(event.engine).syncs.mark("sync", "tried again", told)

    @on(SyncVerified)
    def _sync_verified(self, record: Record, event: SyncVerified) -> None:
        told = {"tensors": event.tensors, "size_bytes": event.size_bytes, "digest": event.digest}
        self._of(event.engine).syncs.mark("sync", "verified", told)

    @on(SyncAcknowledged)
    def _sync_acknowledged(self, record: Record, event: SyncAcknowledged) -> None:
        lanes = self._of(event.engine)
        lanes.syncs.end("sync")
        lanes.version.set(self._engines.by_name[event.engine].version)

    @on(SyncFailed)
    def _sync_failed(self, record: Record, event: SyncFailed) -> None:
        self._of(event.engine).syncs.end("sync", {"outcome": event.outcome, "message": event.message})

    @on(DeviceSampled)
    def _sampled(self, record: Record, event: DeviceSampled) -> None:
        """Draw the sample over the window that it is of, not after it."""
        used = self._used.get(event.device)
        if used is None:
            about = "Share of each sample's window in which the device was busy"
            name = f"{event.device} ({event.pool})"
            used = self._used[event.device] = self._file.counter(name, self._devices, "%", about)
        since = self._clock.now - round(event.window_s * 1e9)
        used.was(event.utilization * 100, max(since, self._clock.since))

    def _of(self, engine: str) -> _EngineLanes:
        lanes = self._lanes.get(engine)
        if lanes is None:
            lanes = self._lanes[engine] = _EngineLanes(self._file, self._weights, self._group, engine)
        return lanes


class _EngineLanes:
    """The tracks of one engine, among the others by the number in its name: they come up in any order."""

    def __init__(self, file: TraceFile, weights: int, engines: int, name: str) -> None:
        number = name[len(name.rstrip("0123456789")) :][-6:]
        rank = 100 + 2 * int(number) if number else None
        self.version = file.counter(f"{name} serves version", weights, rank=rank)
        self.syncs = Spans(file, weights, f"{name} sync", rank and rank + 1)
        self.state = Lane(file, file.track(name, engines, "Serving, paused, lost or restarting", rank))
        self.calls = file.counter(f"{name} calls in flight", engines, rank=rank and rank + 1)
