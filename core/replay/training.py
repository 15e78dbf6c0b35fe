"""The decisions of the trainer, made again."""

from __future__ import annotations

from typing import Any

from ...events.record import Record
from ...events.types import (
    BatchTaken,
    Blocked,
    CheckpointStarted,
    EvalStarted,
    LearnerUp,
    PhaseEntered,
    RunFinished,
    RunResumed,
    SyncStarted,
    Unblocked,
    WeightsPublished,
)
from .. import trainer
from ..failures import RunFailure
from ..trainer import Action, Checkpoint, Evaluate, Finish, Publish, StartLearner, Sync, Take
from ..weight_sync import lagging
from .part import Part
from .scene import Raised, Scene
from .verdict import Decided

Choice = Action | Raised | None


class TrainerCheck(Part):
    """`trainer.decide`.

    What an action is shows late in the log: weights are published when they are written, which may be hundreds of
    events after they were decided on. So what would be decided is kept for every state in which the trainer can
    come to decide, where it changes.
    """

    decides = (
        BatchTaken,
        Blocked,
        CheckpointStarted,
        EvalStarted,
        LearnerUp,
        PhaseEntered,
        RunFinished,
        RunResumed,
        SyncStarted,
        Unblocked,
        WeightsPublished,
    )

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._choices: list[tuple[int, Choice]] = []
        """From which seq on what would be decided, oldest first."""
        self._finish: str | None = None
        self._unblocked = -1

    def after(self) -> None:
        """Note what would be decided on this state, unless the trainer is busy or its wait goes on."""
        if self.view.trainer.taken:
            return
        if "trainer" in self.view.waits.by_waiter:
            record = self.scene.ahead.peek()
            if record is None or record.actor != "trainer" or type(record.event) is not Unblocked:
                return
        choice = self._decide()
        if not self._choices or self._choices[-1][1] != choice:
            self._choices.append((self.view.last_seq, choice))

    def _decide(self) -> Choice:
        try:
            return trainer.decide(self.view, self.scene.config, self.scene.policy)
        except RunFailure as failure:
            return Raised.of(failure)

    def before(self, record: Record) -> None:
        """Compare an action, or a wait."""
        event = record.event
        if type(event) is Unblocked:
            if record.actor == "trainer":
                self._unblocked = record.seq
        elif type(event) is RunResumed:
            self._choices.clear()
            self._finish = None
        elif type(event) is PhaseEntered and record.actor == "run":
            self._finished(record)
        elif type(event) is RunFinished:
            self._outcome(record, event)
        elif type(event) is Blocked or type(event) is PhaseEntered:
            if record.actor == "trainer":
                self._waits(record, event)
        elif record.cause is not None:
            self._acts(record)

    def _waits(self, record: Record, event: Blocked | PhaseEntered) -> None:
        if type(event) is PhaseEntered:
            if record.cause is None:  # the phase of a wait, and not of an action
                phase = trainer.phase_of_waiting(self.view, self.scene.config)
                self.scene.one(record, _phase(event.phase), _phase(phase) if phase else None)
        elif type(event) is Blocked and event.edge != "durable":
            choice = self._decide()
            due = [] if choice is None else [self._decided(choice)]
            edge = trainer.wait_edge(self.view, self.scene.config, self.scene.policy)
            self.scene.wait(record, event.edge, due, edge.name)

    def _acts(self, record: Record) -> None:
        assert record.cause is not None
        choice = self._at(record.cause)
        event = record.event
        produced = None if choice is None else self._decided(choice)
        if type(event) is SyncStarted and isinstance(choice, Sync) and event.engine in lagging(self.view):
            produced = Decided(
                "sync_started",
                {
                    "engine": event.engine,
                    "version": self.view.trainer.published,
                    "mode": self.scene.config.engine.sync_mode,
                },
            )
        self.scene.one(record, _recorded(record), produced)

    def _finished(self, record: Record) -> None:
        """Note the outcome with which the trainer ends: it stands in a later event."""
        waited = self._unblocked == record.seq - 1
        choice = self._at(record.seq - 2 if waited else record.seq - 1)
        if isinstance(choice, Finish):
            self._finish = choice.outcome
            return
        produced = None if choice is None else self._decided(choice)
        self.scene.one(record, Decided("phase_entered", {"phase": "finished"}), produced)

    def _outcome(self, record: Record, event: RunFinished) -> None:
        produced = None if self._finish is None else Decided("run_finished", {"outcome": self._finish})
        self.scene.one(record, Decided("run_finished", {"outcome": event.outcome}), produced)

    def _at(self, seq: int) -> Choice:
        """Return what was to be decided on the state at `seq`; forget the states before."""
        choices = self._choices
        while len(choices) > 1 and choices[1][0] <= seq:
            del choices[0]
        return choices[0][1] if choices and choices[0][0] <= seq else None

    def _decided(self, choice: Action | Raised) -> Decided:
        now = self.view.trainer
        match choice:
            case Raised():
                return choice.decided()
            case StartLearner():
                return Decided("learner_up", {"version": now.version})
            case Publish():
                return Decided("weights_published", {"version": now.version})
            case Sync():
                return Decided("sync_started", {"engines": lagging(self.view)})
            case Evaluate():
                fields: dict[str, Any] = {"eval": now.evals, "step": now.step, "version": now.published}
                return Decided("eval_started", fields)
            case Checkpoint():
                return Decided("checkpoint_started", {"step": now.version, "version": now.version})
            case Take(step, groups):
                return Decided("batch_taken", {"step": step, "groups": groups})
            case Finish(outcome):
                return Decided("run_finished", {"outcome": outcome})


def _phase(phase: str) -> Decided:
    return Decided("phase_entered", {"phase": phase})


FIELDS: dict[str, tuple[str, ...]] = {
    "learner_up": ("version",),
    "weights_published": ("version",),
    "sync_started": ("engine", "version", "mode"),
    "eval_started": ("eval", "step", "version"),
    "checkpoint_started": ("step", "version"),
    "batch_taken": ("step", "groups"),
}
"""What the state decides of each event; the rest (a path, a size) comes from outside."""


def _recorded(record: Record) -> Decided:
    kind: str = record.event.kind  # type: ignore[attr-defined]
    return Decided(kind, {name: getattr(record.event, name) for name in FIELDS[kind]})
