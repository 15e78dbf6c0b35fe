"""What a run's time is lost to: six things, measured by what its GPUs waited for, or by what its trainer did.

Where devices were sampled and at least a tenth of their time was lost, it is their idle seconds that are shared out,
by the causes of the metrics. Else it is the trainer's time after the start, by phase. In both, a wait of the trainer
for groups is put down to what the engines would have been idle for meanwhile. docs/commands.md (report) has the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .devices import GPUS
from .history import WAITING
from .reading import Reading

Thing = Literal["engine", "environment", "trainer", "sync", "evaluation", "checkpoints"]

THINGS: tuple[Thing, ...] = ("engine", "environment", "trainer", "sync", "evaluation", "checkpoints")
OF_PHASE: dict[str, Thing] = {
    "converting": "trainer",
    "training": "trainer",
    "weight_sync": "sync",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
}
OF_CAUSE: dict[str, Thing] = {
    "environment": "environment",
    "converting": "trainer",
    "weight_sync": "sync",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
}
"""Causes that mean the same in every pool. What is starting, or has work and leaves room, waits for nothing."""
WHILE_WAITING: dict[str, Thing] = {"environment": "environment", "weight_sync": "sync", "eval": "evaluation"}
"""What the trainer waits for while it waits for groups, by the engines' cause; in all other cases for engines."""
STARVED = ("buffer_starvation", "straggler", "fault")
"""Causes of the learner while it waits for groups."""
HELD_BACK = ("staleness_gate", "backpressure")
"""Causes of engines that wait for the trainer; or, while that waits for groups, for the slowest of their own."""
LOST_MIN = 0.1
"""Share of the GPUs' time that must be lost, so that what they waited for is what counts."""


@dataclass(frozen=True)
class Lost:
    """Seconds that went to each thing."""

    seconds: dict[Thing, float]
    by_devices: bool
    """Whether these are idle device-seconds, and not the trainer's own."""

    @property
    def most(self) -> Thing:
        """What took most."""
        return max(self.seconds, key=lambda thing: self.seconds[thing])


def lost(reading: Reading) -> Lost:
    """Return what the time of a run was lost to."""
    idle = idle_seconds(reading)
    there = sum(one.there for (pool, _), one in reading.device_s.items() if pool in GPUS)
    if there and sum(idle.values()) >= LOST_MIN * there:
        return Lost(idle, by_devices=True)
    return Lost(trainer_seconds(reading), by_devices=False)


def trainer_seconds(reading: Reading) -> dict[Thing, float]:
    """Return the trainer's seconds after the start by thing; its waits are shared out by what engines waited for."""
    seconds = dict.fromkeys(THINGS, 0.0)
    for phase, spent in reading.phase_s.items():
        if phase in WAITING:
            _add(seconds, waits(reading), spent)
        elif phase in OF_PHASE:
            seconds[OF_PHASE[phase]] += spent
    return seconds


def idle_seconds(reading: Reading) -> dict[Thing, float]:
    """Return the idle seconds of all GPUs by what they waited for."""
    seconds = dict.fromkeys(THINGS, 0.0)
    for (pool, cause), spent in reading.idle_s.items():
        if pool not in GPUS:
            continue
        if cause in OF_CAUSE:
            seconds[OF_CAUSE[cause]] += spent
        elif cause in HELD_BACK:
            waiting = reading.history.caused_s.get((cause, True), 0.0)
            both = waiting + reading.history.caused_s.get((cause, False), 0.0)
            share = waiting / both if both else 0.0
            seconds["engine"] += share * spent
            seconds["trainer"] += (1 - share) * spent
        elif cause in STARVED and pool == "engine":
            seconds["engine"] += spent
        elif cause in STARVED:
            _add(seconds, waits(reading), spent)
    return seconds


def waits(reading: Reading) -> dict[Thing, float]:
    """Return for which share of the trainer's waits for groups it waited for each thing; empty if it never did."""
    held: dict[Thing, float] = {}
    for (cause, waiting), spent in reading.history.caused_s.items():
        if waiting and spent > 0:
            thing = WHILE_WAITING.get(cause, "engine")
            held[thing] = held.get(thing, 0.0) + spent
    total = sum(held.values())
    return {thing: spent / total for thing, spent in held.items()}


def _add(seconds: dict[Thing, float], shares: dict[Thing, float], spent: float) -> None:
    for thing, share in shares.items():
        seconds[thing] += share * spent
