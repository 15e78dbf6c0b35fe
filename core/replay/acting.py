"""The decisions of the collector and of the two pools, made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...events.record import Record
from ...events.types import (
    Blocked,
    DataExhausted,
    EngineRestarted,
    EnvironmentWorkerRestarted,
    EnvStepStarted,
    Event,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    LlmCallStarted,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RetryScheduled,
    TrajectoryDropped,
)
from .. import collector, engine_pool, environment_pool
from ..failures import RunFailure
from .part import Part
from .scene import Raised
from .verdict import Decided

COLLECTS = (
    GroupBuffered,
    GroupFiltered,
    GroupFailed,
    GroupEvicted,
    GroupDiscarded,
    GroupDispatched,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RetryScheduled,
    TrajectoryDropped,
    DataExhausted,
)


class CollectorCheck(Part):
    """`collector.step`, batch by batch, and what the end of a run does with the groups in flight."""

    decides = (*COLLECTS, Blocked)
    actor = "collector"
    _compared_to = -1  # last seq of the newest batch

    def after(self) -> None:
        """Compare the batch that was decided on this state, if one comes next."""
        ahead, seq = self.scene.ahead, self.view.last_seq
        place = ahead.after_wait("collector")
        batch = ahead.batch(place, lambda record: record.actor == "collector" and record.cause == seq)
        if batch and isinstance(batch[0].event, COLLECTS):
            self._compare(batch, self._step([record.event for record in batch]), place + len(batch))

    def before(self, record: Record) -> None:
        """Compare a wait, or decisions that no `step` made."""
        event = record.event
        if type(event) is PromptDrawn:
            self.scene.prompts.drawn(event)
        if record.actor != "collector" or record.seq <= self._compared_to:
            return
        if type(event) is not Blocked:
            batch = [record, *self.scene.ahead.batch(0, _of_one_batch(record))]
            ends = collector.discard_in_flight(self.view) if record.cause is None else self._step(())
            self._compare(batch, ends, len(batch) - 1)  # its first record has been taken
        elif event.edge != "durable":
            produced = self._step(())
            if isinstance(produced, Raised):
                due = [produced.decided()]
            else:
                due = [Decided.of(decision) for decision in produced]
            edge = collector.wait_edge(self.view, self.scene.config, self.scene.policy)
            self.scene.wait(record, event.edge, due, edge.name)

    def _compare(self, batch: Sequence[Record], produced: Sequence[Event] | Raised, behind: int) -> None:
        self.scene.batch(batch, produced, cut_off=self.scene.cut_off(behind))
        self._compared_to = batch[-1].seq

    def _step(self, recorded: Sequence[Event]) -> Sequence[Event] | Raised:
        scene = self.scene
        scene.prompts.tell(recorded)
        try:
            return collector.step(self.view, scene.config, scene.policy, scene.prompts)
        except RunFailure as failure:
            return Raised.of(failure)


def _of_one_batch(first: Record) -> Callable[[Record], bool]:
    def mine(record: Record) -> bool:
        same = record.actor == first.actor and record.cause == first.cause
        return same and isinstance(record.event, COLLECTS)

    return mine


class PoolCheck(Part):
    """`engine_pool.step`, and the engine that each call is routed to."""

    decides = (LlmCallStarted, Blocked)
    actor = "engine_pool"

    def after(self) -> None:
        """Compare the restarts that were decided on this state, if they come next."""
        ahead, seq = self.scene.ahead, self.view.last_seq
        place = ahead.after_wait("engine_pool")
        batch = ahead.batch(
            place, lambda record: type(record.event) is EngineRestarted and record.cause == seq
        )
        if batch:
            self.scene.batch(batch, self._step(), cut_off=self.scene.cut_off(place + len(batch)))

    def before(self, record: Record) -> None:
        """Compare the route of a call, or a wait."""
        event = record.event
        if type(event) is LlmCallStarted:
            self._route(record, event)
        elif type(event) is Blocked and record.actor == "engine_pool":
            if event.waiter != "engine_pool":
                engine = engine_pool.route(self.view.engines)
                due = [] if engine is None else [Decided("llm_call_started", {"engine": engine.name})]
            elif event.edge == "version":
                due = []
            else:
                step = self._step()
                due = [step.decided()] if isinstance(step, Raised) else [Decided.of(one) for one in step]
            self.scene.wait(record, event.edge, due)

    def _route(self, record: Record, event: LlmCallStarted) -> None:
        engine = engine_pool.route(self.view.engines)
        if engine is not None and engine.name == event.engine and not self.scene.ignore:
            self.scene.decisions["llm_call_started"] += 1
            return
        recorded = Decided("llm_call_started", {"engine": event.engine})
        produced = Decided("llm_call_started", {"engine": engine.name}) if engine else None
        self.scene.one(record, recorded, produced)

    def _step(self) -> Sequence[Event] | Raised:
        try:
            return engine_pool.step(self.view, self.scene.config, self.scene.engines)
        except RunFailure as failure:
            return Raised.of(failure)


class EnvironmentPoolCheck(Part):
    """`environment_pool.step`, and the worker in which each environment is made."""

    decides = (EnvStepStarted, Blocked)
    actor = "environment_pool"

    def after(self) -> None:
        """Compare the restarts that were decided on this state, if they come next."""
        ahead, seq = self.scene.ahead, self.view.last_seq
        place = ahead.after_wait("environment_pool")
        batch = ahead.batch(
            place, lambda record: type(record.event) is EnvironmentWorkerRestarted and record.cause == seq
        )
        if batch:
            self.scene.batch(batch, self._step(), cut_off=self.scene.cut_off(place + len(batch)))

    def before(self, record: Record) -> None:
        """Compare the place of an environment, or a wait."""
        event = record.event
        if type(event) is EnvStepStarted:
            if event.call == "reset" and event.worker:
                self.scene.one(record, _placed(event.worker), self._place())
        elif type(event) is Blocked and record.actor == "environment_pool":
            if event.waiter != "environment_pool":
                due = self._place()
                self.scene.wait(record, event.edge, [] if due is None else [due])
                return
            step = self._step()
            decided = [step.decided()] if isinstance(step, Raised) else [Decided.of(one) for one in step]
            self.scene.wait(record, event.edge, decided)

    def _place(self) -> Decided | None:
        worker = environment_pool.route(self.view.environment_workers)
        return None if worker is None else _placed(worker.name)

    def _step(self) -> Sequence[Event] | Raised:
        try:
            return environment_pool.step(self.view, self.scene.config, self.view.environment_workers.count)
        except RunFailure as failure:
            return Raised.of(failure)


def _placed(worker: str) -> Decided:
    return Decided("env_step_started", {"worker": worker})
