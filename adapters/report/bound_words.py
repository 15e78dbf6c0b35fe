"""What bounds a run, as a sentence with the figures that say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ...events.types import TRAJECTORY_PARTS
from .bound import Lost, Thing, lost, waits
from .devices import GPUS
from .history import WAITING
from .reading import Reading
from .standstill import together

Bound = Thing | Literal["stall", "unknown"]

UNCOUNTED = ("starting",)
"""Phases that are not of the run's time: it has not begun to work."""
FOR = {
    "engine": "for the engines",
    "environment": "for the environment",
    "trainer": "for the trainer",
    "sync": "for weights",
    "evaluation": "for evaluations",
    "checkpoints": "for checkpoints",
}


def bounded(reading: Reading) -> tuple[Bound, str]:
    """Return what bounds the run, and the sentence about it."""
    spent = {name: s for name, s in reading.phase_s.items() if name not in UNCOUNTED}
    total = sum(spent.values())

    def share(*phases: str) -> str:
        return percent(sum(spent.get(name, 0.0) for name in phases) / total) if total > 0 else "none"

    if not reading.status.view.progress.steps or total <= 0:
        waited = f"the trainer waited for groups for {share(*WAITING)} of the time after the start"
        return "unknown", f"No step was trained; {waited}."
    stood_s = sum(one.seconds for one in together(reading.standstills))
    if stood_s > total / 2:
        idle = f"; {_idle(reading)}" if reading.device_s else ""
        return "stall", f"It stood still for {percent(stood_s / total)} of the time after the start{idle}."
    found = lost(reading)
    proof = _waited(reading, found) if found.by_devices else _slots(reading)
    return found.most, f"{_words(reading, found.most, share)}{proof}."


def component_shares(reading: Reading) -> dict[str, float]:
    """Return the share of all completed training trajectories' time that each component took; empty if none was."""
    spent = reading.status.view.progress.seconds
    total = sum(spent.values())
    return {name: spent[name] / total for name in TRAJECTORY_PARTS} if total > 0 else {}


def _words(reading: Reading, thing: Thing, share: Callable[..., str]) -> str:
    of_time = "of the time after the start"
    waited = f"the trainer waited for groups for {share(*WAITING)} {of_time}"
    match thing:
        case "environment":
            of_wait = f", {percent(waits(reading).get('environment', 0.0))} of that for the environment"
            return f"It is environment-bound: {waited}{of_wait}{_where(reading)}"
        case "engine" if _mostly_down(reading):
            return f"Lost engines bound it: {waited}, most of it without an engine that was up"
        case "engine":
            return f"It is engine-bound: {waited}{_where(reading)}"
        case "trainer":
            return (
                f"It is trainer-bound: the trainer computed for {share('converting', 'training')} {of_time}"
            )
        case "sync":
            return f"It is sync-bound: weights were on their way to the engines for {share('weight_sync')} {of_time}"
        case "evaluation":
            return f"Evaluations bound it: training stood still for them for {share('eval')} {of_time}"
        case "checkpoints":
            return f"Checkpoints bound it: writing them took {share('checkpoint')} {of_time}"


def _mostly_down(reading: Reading) -> bool:
    """Return whether no engine was up for most of the time in which the trainer waited for groups."""
    caused_s = reading.history.caused_s
    return caused_s.get(("fault", True), 0.0) > sum(s for (_, waiting), s in caused_s.items() if waiting) / 2


def _where(reading: Reading) -> str:
    """Say where trajectories spent their time."""
    shares = component_shares(reading)
    if not shares:
        return ""
    outside = shares["env_setup"] + shares["env"] + shares["reward"]
    queue = f" ({percent(shares['queue'])} in the queue)" if shares["queue"] >= 0.005 else ""
    engine = shares["llm"] + shares["queue"]
    parts = [(outside, "in the environment", ""), (engine, "at the engines", queue)]
    (most, there, more), (least, elsewhere, also) = sorted(parts, reverse=True)
    longer = f"{percent(most)} of their time {there}{more}"
    return f"; trajectories spent {longer} and {percent(least)} {elsewhere}{also}"


def _waited(reading: Reading, found: Lost) -> str:
    """Say how much of the idle GPU time was for what bounds the run."""
    idle = sum(spent for (pool, _), spent in reading.idle_s.items() if pool in GPUS)
    return f"; {_idle(reading)}, {percent(found.seconds[found.most] / idle)} of them {FOR[found.most]}"


def _idle(reading: Reading) -> str:
    there = sum(one.there for (pool, _), one in reading.device_s.items() if pool in GPUS)
    idle = sum(spent for (pool, _), spent in reading.idle_s.items() if pool in GPUS)
    return f"devices were idle for {idle:,.0f} of {there:,.0f} device-seconds"


def _slots(reading: Reading) -> str:
    use = reading.history.slots_use()
    return "" if use is None else f"; the engines' slots were {percent(use)} in use"


def percent(share: float) -> str:
    """Return a share as a person reads it: ``57 %``, ``2.4 %``."""
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"
