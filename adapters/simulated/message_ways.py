"""In which ways the outside of a message-level world may answer what was asked of it.

Faults are the rules of a scenario: where, what, and for whom. Here a rule says what *may* happen, at most `times`
often. A call that hangs ends at its deadline, so it is a call that expired; a delay is no fault, since every order of
answers is possible anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.engine_pool import route
from .faults import Fault

if TYPE_CHECKING:
    from .message_world import MessageWorld

PLAIN, EQUAL = -1, -2
"""Answers that are no fault: as usual, and with rewards that are all equal. Others are numbers of fault rules."""


@dataclass(slots=True, eq=False)
class Asked:
    """Something that was asked of the outside, and how far it is."""

    kind: str
    """attempt, engine_start, sync, learner_start, publish, train, eval, checkpoint."""
    subject: str
    """A trajectory or an engine; empty for the learner."""
    stage: str
    group: int = -1
    attempt: int = 0
    engine: str = ""
    """Of an attempt: the engine that has its call."""
    number: int = 0
    """Of a call or a sync: the engine's life; of a start: the version that it reads."""

    def fork(self) -> Asked:
        """Return a copy."""
        return Asked(self.kind, self.subject, self.stage, self.group, self.attempt, self.engine, self.number)


# What may be answered

_PLACES = {
    "calling": ("engine.generate", "engine"),
    "scoring": ("environment.reset", "environment.step", "environment.reward"),
    "engine_start": ("engine.start",),
    "sync": (
        "engine.begin_update",
        "engine.transfer",
        "engine.finish_update",
        "engine.pause",
        "engine.resume",
        "engine",
    ),
    "learner_start": ("learner.start",),
    "publish": ("learner.publish",),
    "train": ("learner.train",),
    "checkpoint": ("learner.checkpoint",),
}
_KNOWN = {where for places in _PLACES.values() for where in places}


def unknown_fault(fault: Fault) -> str:
    """Return why a rule cannot be used in such a world, empty when it can."""
    if fault.what == "defect":
        return f"{fault.where}: what = 'defect' only ends the run"
    if fault.where in _KNOWN or (fault.where, fault.what) == ("run", "stop"):
        return ""
    return f"{fault.where} is not part of it"


def can_answer(world: MessageWorld, asked: Asked) -> bool:
    """Return whether the outside can go on with what was asked; False while that waits for an engine."""
    if asked.stage in ("calling", "lost", "cancelled"):
        return True
    needs_engine = asked.kind == "eval" or asked.stage == "routing"
    return not needs_engine or route(world.view.engines) is not None


def variants(world: MessageWorld, asked: Asked) -> list[int]:
    """Return every way in which the outside may answer, the usual one first."""
    ways = [PLAIN]
    if asked.stage in ("ready", "cancelled") or is_gone(world, asked):
        return ways  # nothing is asked yet; and a late answer is not heard
    places = _PLACES.get(asked.kind, ())
    if asked.kind == "attempt":
        places = _PLACES.get(asked.stage, ())
        if not world.given.fine and asked.stage == "calling":
            places = (*places, *_PLACES["scoring"])
        ends = asked.stage == "scoring" or (asked.stage == "calling" and not world.given.fine)
        if ends and world.given.rewards == "any" and world.config.algorithm.drop_zero_variance:
            group = world.view.groups.live[asked.group]
            if len(group.completed) + 1 == group.size:
                ways.append(EQUAL)
    for number, left in enumerate(world.faults_left):
        fault = world.given.faults[number]
        if left and fault.where in places and fault.what != "delay" and _matches(world, asked, fault):
            ways.append(number)
    return ways


def _matches(world: MessageWorld, asked: Asked, fault: Fault) -> bool:
    if fault.engine is not None and fault.engine != (asked.engine or asked.subject):
        return False
    if fault.version is not None and fault.version != world.view.trainer.published:
        return False
    if asked.kind != "attempt":
        return True
    if fault.prompt is not None and fault.prompt != world.view.groups.live[asked.group].prompt:
        return False
    if fault.trajectory is not None and fault.trajectory != int(asked.subject.partition("/")[2]):
        return False
    return fault.attempt_below is None or asked.attempt < fault.attempt_below


def is_gone(world: MessageWorld, asked: Asked) -> bool:
    """Return whether the engine that was asked has been lost since."""
    name = asked.engine or (asked.subject if asked.kind == "sync" and asked.stage == "loading" else "")
    if not name:
        return False
    status = world.view.engines.by_name[name]
    return status.restarts != asked.number or status.state not in ("serving", "paused")
