"""The trainer's lanes: phases, steps, waits, evaluations; and what became of the run as a whole."""

from __future__ import annotations

from ....core.projections import Engines, Folded, on
from ....events.record import Record
from ....events.types import (
    BatchTaken,
    Blocked,
    EvalCompleted,
    EvalStarted,
    Phase,
    PhaseEntered,
    PolicyChanged,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepStarted,
    StopRequested,
    Unblocked,
)
from .flows import Flows
from .lanes import Lane, Spans
from .trace_file import Told, TraceFile


class TrainerTracks(Folded):
    """The groups ``run`` and ``trainer``."""

    def __init__(self, file: TraceFile, flows: Flows, engines: Engines) -> None:
        self._file = file
        self._flows = flows
        self._engines = engines
        self._run = file.track("run", file.root, "How the run began, went on and ended")
        group = file.group("trainer")
        self._phases = Lane(file, file.track("phases", group, "Exactly one at any time, until the run ends"))
        self._steps = Lane(file, file.track("steps", group, "From the start of training to its new version"))
        self._waits = Spans(file, group, "waits")
        self._evals = Spans(file, group, "evaluations")
        self._taken: tuple[int, ...] = ()

    def end_all(self, told: Told) -> None:
        """End what is open, saying `told` of it."""
        self._phases.end_all(told)
        self._steps.end_all(told)
        self._waits.end_all(told)
        self._evals.end_all(told)

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        told = {"run": event.run, "seed": event.seed, "code_version": event.code_version, "host": event.host}
        self._file.instant(self._run, "run started", told)
        self._enter("starting", 0)

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        told = {
            "step": event.step,
            "checkpoint": event.checkpoint or "the model as loaded",
            "rolled_back": event.rolled_back,
            "restored": event.restored,
            "kept": event.kept,
            "forked_from": event.forked_from or None,
        }
        self._file.instant(self._run, "run forked" if event.forked_from else "run resumed", told)
        self._enter("starting", event.step)

    @on(PolicyChanged)
    def _changed(self, record: Record, event: PolicyChanged) -> None:
        self._file.instant(
            self._run, "setting changed", {"key": event.key, "old": event.old, "new": event.new}
        )

    @on(StopRequested)
    def _stop(self, record: Record, event: StopRequested) -> None:
        self._file.instant(self._run, "stop requested", {"reason": event.reason})

    @on(RunFinished)
    def _finished(self, record: Record, event: RunFinished) -> None:
        self._phases.end_all()
        told = {"outcome": event.outcome, "steps": event.steps, "reason": event.reason or None}
        self._file.instant(self._run, "run finished", told)

    @on(RunFailed)
    def _failed(self, record: Record, event: RunFailed) -> None:
        self._phases.end_all()
        told = {"actor": event.failed_actor, "error": event.error, "message": event.message}
        self._file.instant(self._run, "run failed", told)

    @on(PhaseEntered)
    def _phase(self, record: Record, event: PhaseEntered) -> None:
        self._enter(event.phase, event.step)

    def _enter(self, phase: Phase, step: int) -> None:
        self._phases.end_all()
        self._phases.begin(phase, phase, {"step": step})

    @on(BatchTaken)
    def _batch(self, record: Record, event: BatchTaken) -> None:
        self._taken = event.groups

    @on(StepStarted)
    def _step_started(self, record: Record, event: StepStarted) -> None:
        self._steps.end_all()
        told = {
            "step": event.step,
            "version": event.version,
            "groups": event.groups,
            "trajectories": event.trajectories,
            "tokens": event.tokens,
        }
        self._steps.begin("step", "step", told, self._flows.arrive(self._taken))
        self._taken = ()

    @on(StepCompleted)
    def _step_completed(self, record: Record, event: StepCompleted) -> None:
        told = {
            "loss": event.loss,
            "reward_mean": event.reward_mean,
            "lag_mean": event.lag_mean,
            "lag_max": event.lag_max,
            "trained_tokens": event.trained_tokens,
            "masked_tokens": event.masked_tokens,
            **{f"metrics.{name}": value for name, value in event.metrics.items()},
            **{f"parts_s.{name}": value for name, value in event.parts_s.items()},
        }
        up = [engine.name for engine in self._engines.by_name.values() if engine.state != "lost"]
        self._steps.end("step", told, self._flows.from_step(event.version, up))

    @on(StepFailed)
    def _step_failed(self, record: Record, event: StepFailed) -> None:
        told = {"outcome": event.outcome, "message": event.message}
        self._file.instant(self._steps.track, f"failed: {event.outcome}", told)
        self._steps.end("step", told)

    @on(Blocked)
    def _blocked(self, record: Record, event: Blocked) -> None:
        if event.waiter == "trainer":
            told = {"awaited": event.awaited, "present": event.present}
            self._waits.begin(record.seq, event.edge, told)

    @on(Unblocked)
    def _unblocked(self, record: Record, event: Unblocked) -> None:
        if event.waiter == "trainer":
            self._waits.end(event.blocked, {"outcome": event.outcome})

    @on(EvalStarted)
    def _eval_started(self, record: Record, event: EvalStarted) -> None:
        told = {
            "eval": event.eval,
            "step": event.step,
            "version": event.version,
            "trajectories": event.trajectories,
        }
        self._evals.begin(event.eval, "evaluation", told)

    @on(EvalCompleted)
    def _eval_completed(self, record: Record, event: EvalCompleted) -> None:
        told = {
            "outcome": event.outcome,
            "reward_mean": event.reward_mean,
            "completed": event.completed,
            "failed": event.failed,
        }
        self._evals.end(event.eval, told)
