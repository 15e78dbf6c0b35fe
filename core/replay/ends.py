"""How a run failed by its own decision, and how it was resumed, made again."""

from __future__ import annotations

from collections.abc import Callable

from ...events.record import Record
from ...events.types import (
    DeadlineExpired,
    EngineLost,
    EnvironmentWorkerLost,
    GroupDiscarded,
    GroupFiltered,
    GroupRestored,
    LogTailCut,
    PayloadRef,
    RunFailed,
    RunResumed,
    StallDetected,
    TrajectoryCompleted,
    TrajectoryFailed,
    Unblocked,
)
from .. import engine_pool, environment_pool, trainer
from ..failures import RunFailure, check_failure_share, check_filtered
from ..resume import NotResumable, resumption
from .part import Part
from .scene import Raised, Scene
from .verdict import Decided

DECIDED = {
    "too_many_failures",
    "too_many_filtered",
    "no_engine_left",
    "no_environment_worker_left",
    "deadlock",
    "livelock",
    "silent_loss",
    "buffer_wait_expired",
}
"""Failures that are decisions; the others come from outside, and are not compared."""


_SAID = ("too_many_failures", "too_many_filtered", "no_engine_left", "no_environment_worker_left")
"""Of these the message is compared, too."""


class EndsCheck(Part):
    """Which failures some state since the start of the process was one to end with, and what a resume begins with.

    The log does not say on which state an actor raised: others may have published before it came to say so. So a
    recorded failure has to be that of one of the states before it. A checkpoint is taken to be gone if an older one
    was resumed from, and the payloads of a group to be unreadable if it was given up for that.
    """

    decides = (
        DeadlineExpired,
        EngineLost,
        EnvironmentWorkerLost,
        GroupFiltered,
        RunFailed,
        RunResumed,
        StallDetected,
        TrajectoryCompleted,
        TrajectoryFailed,
        Unblocked,
    )

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._raised: dict[tuple[str, str], set[str]] = {}
        self._ask: tuple[str, Callable[[], object]] | None = None

    def before(self, record: Record) -> None:
        """Compare a failure or a resume, and see which state is to be asked after `record`."""
        event = record.event
        if type(event) in (TrajectoryCompleted, TrajectoryFailed):
            if self.view.attempts.first_failure is not None or type(event) is TrajectoryFailed:
                self._ask = ("collector", self._too_many_failures)
        elif type(event) is Unblocked:
            if event.outcome == "cancelled" and record.actor == "trainer":
                self._note("trainer", self._decide)
        elif type(event) is GroupFiltered:
            self._ask = ("collector", self._too_many_filtered)
        elif type(event) is EngineLost:
            self._ask = ("engine_pool", self._no_engine_left)
        elif type(event) is EnvironmentWorkerLost:
            self._ask = ("environment_pool", self._no_worker_left)
        elif type(event) is StallDetected:
            self._raised.setdefault(("watchdog", event.stall_kind), set()).add(event.sentence)
        elif type(event) is DeadlineExpired:
            if record.actor == "trainer" and event.effect == "wait":
                self._raised.setdefault(("trainer", "buffer_wait_expired"), set())
        elif type(event) is RunFailed:
            self._failed(record, event)
        elif type(event) is RunResumed:
            self._raised.clear()
            self._resumed(record, event)

    def after(self) -> None:
        """Ask whether this state is one to fail with."""
        if self._ask is not None:
            self._note(*self._ask)
            self._ask = None

    def _note(self, actor: str, ask: Callable[[], object]) -> None:
        try:
            ask()
        except RunFailure as failure:
            raised = Raised.of(failure)
            self._raised.setdefault((actor, raised.error), set()).add(raised.message)

    def _too_many_failures(self) -> None:
        check_failure_share(self.view.attempts, self.scene.config.failures, whole_window=True)

    def _too_many_filtered(self) -> None:
        check_filtered(self.view.groups, self.scene.config.filtered_max)

    def _no_engine_left(self) -> None:
        engine_pool.step(self.view, self.scene.config, self.scene.engines)

    def _no_worker_left(self) -> None:
        environment_pool.step(self.view, self.scene.config, self.view.environment_workers.count)

    def _decide(self) -> None:
        trainer.decide(self.view, self.scene.config, self.scene.policy)

    def _failed(self, record: Record, event: RunFailed) -> None:
        if event.error not in DECIDED or (event.error == "no_engine_left" and self.scene.engines < 0):
            return
        if event.failed_actor == "trainer":
            self._note("trainer", self._decide)
        messages = self._raised.get((event.failed_actor, event.error))
        recorded = Decided("run_failed", {"error": event.error, "message": event.message})
        if messages is None:
            self.scene.one(record, recorded, None)
        elif event.error in _SAID:
            message = event.message if event.message in messages else next(iter(messages))
            self.scene.one(record, recorded, Decided("run_failed", {"error": event.error, "message": message}))
        else:
            self.scene.one(record, recorded, recorded)

    def _resumed(self, record: Record, event: RunResumed) -> None:
        def of_opening(other: Record) -> bool:
            return other.actor == "run" and other.cause == record.seq

        more = self.scene.ahead.batch(0, of_opening)
        opening = [record, *(one for one in more if type(one.event) is not LogTailCut)]
        facts = {"code_version": event.code_version, "host": event.host, "pid": event.pid}
        bad = self._unreadable(opening)
        changed = self.scene.changed_by(event)
        try:
            produced = resumption(
                self.scene.past,
                present=lambda path: path == event.checkpoint,
                readable=lambda ref: ref not in bad,
                facts=facts,
                config=changed,
                forked_from=event.forked_from,
            )
        except NotResumable as error:
            self.scene.batch(opening, Raised("not_resumable", str(error)), cut_off=False)
        else:
            if changed is not None:  # said in full; a setting that was not there then has no say
                produced[0] = produced[0].model_copy(update={"config": event.config})
            self.scene.batch(opening, produced, cut_off=self.scene.cut_off(len(more)))
            self.scene.go_on_with(changed, event)

    def _unreadable(self, opening: list[Record]) -> set[PayloadRef]:
        """Return the payloads that only groups have which were given up as unreadable."""
        given_up = {
            one.event.group
            for one in opening
            if isinstance(one.event, GroupDiscarded) and one.event.reason == "unreadable"
        }
        held: dict[int, list[PayloadRef]] = {
            number: [one.payload for one in group.completed.values()]
            for number, group in self.view.groups.live.items()
        }
        held |= {
            one.event.group: [trajectory.payload for trajectory in one.event.trajectories]
            for one in opening
            if isinstance(one.event, GroupRestored)
        }
        bad = {ref for group, refs in held.items() if group in given_up for ref in refs}
        return bad - {ref for group, refs in held.items() if group not in given_up for ref in refs}
