"""What a person wants to know first: how the run ended, and what bounds it, with the figures that say so."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from ...events.types import RunFailed, RunFinished
from ..cli.quantities import number, seconds
from ..cli.stalls_report import Interval
from .history import WAITING
from .reading import Reading
from .rollouts import COMPONENTS

Bound = Literal["engine", "environment", "trainer", "sync", "evaluation", "checkpoints", "stall", "unknown"]

TRAINER = ("converting", "training")
UNCOUNTED = ("starting",)
STOOD = ("deadlock", "livelock")
"""Kinds of stall in which nothing gets done."""


@dataclass(frozen=True)
class Verdict:
    """One sentence each; an empty one has nothing to say."""

    bound: Bound
    ended: str
    bounded: str
    stalled: str


def judge(reading: Reading) -> Verdict:
    """Return what is to be said of a run first."""
    bound, bounded = _bounded(reading)
    return Verdict(bound, _ended(reading), bounded, _stalled(reading))


def component_shares(reading: Reading) -> dict[str, float]:
    """Return the share of all completed training trajectories' time that each component took; empty if none was."""
    spent = reading.status.view.progress.seconds
    total = sum(spent.values())
    return {name: spent[name] / total for name in COMPONENTS} if total > 0 else {}


def _ended(reading: Reading) -> str:
    status, trainer = reading.status, reading.status.view.trainer
    steps = f"{trainer.version} of {trainer.steps_total} steps"
    lasted = seconds(reading.now_ns / 1e9)
    match status.ended:
        case RunFinished(outcome="completed"):
            text = f"It completed all {trainer.steps_total} steps in {lasted}"
        case RunFinished() as end:
            why = end.reason or end.outcome.replace("_", " ")
            text = f"It ended early, after {steps} and {lasted}: {why}"
        case RunFailed() as end:
            text = f"It failed after {steps} and {lasted}: {end.failed_actor}: {end.message}"
        case _ if reading.damage:
            text = f"The log can be read up to {lasted} after the start: {steps}"
        case _ if status.alive:
            phase_s = (status.now_mono - trainer.phase_since_ns) / 1e9
            text = f"It is running: {steps} in {lasted}, {trainer.phase} for {seconds(phase_s)}"
        case _:
            text = f"It is gone without a last word (killed, or a full disk) after {steps} and {lasted}"
    return f"{text}{_reward(reading)}."


def _reward(reading: Reading) -> str:
    rewards = reading.status.rewards()
    if len(rewards) < 2:
        return ""
    some = min(10, max(1, len(rewards) // 2))
    first, last = number(fmean(rewards[:some])), number(fmean(rewards[-some:]))
    of = "step" if some == 1 else f"{some} steps"
    return f"; the mean reward went from {first} (first {of}) to {last} (last {of})"


def _bounded(reading: Reading) -> tuple[Bound, str]:
    spent = {name: s for name, s in reading.phase_s.items() if name not in UNCOUNTED}
    total = sum(spent.values())
    if not reading.status.view.progress.steps or total <= 0:
        waited = percent(sum(spent.get(name, 0.0) for name in WAITING) / total) if total > 0 else "none"
        return (
            "unknown",
            f"No step was trained; the trainer waited for groups for {waited} of the time after the start.",
        )
    stood_s = sum(_lasted_s(reading, one) for one in reading.stalls.intervals if one.kind in STOOD)
    if stood_s > total / 2:
        return "stall", f"For {percent(stood_s / total)} of its time nothing got done: it was stalled."
    parts = {
        "waiting": sum(spent.get(name, 0.0) for name in WAITING),
        "trainer": sum(spent.get(name, 0.0) for name in TRAINER),
        "sync": spent.get("weight_sync", 0.0),
        "evaluation": spent.get("eval", 0.0),
        "checkpoints": spent.get("checkpoint", 0.0),
    }
    most = max(parts, key=lambda name: parts[name])
    share = f"{percent(parts[most] / total)} of the time after the start"
    use = reading.history.slots_use()
    slots = "" if use is None else f"; the engines' slots were {percent(use)} in use"
    match most:
        case "waiting":
            return _waiting(reading, share, slots)
        case "trainer":
            return "trainer", f"It is trainer-bound: the trainer computed for {share}{slots}."
        case "sync":
            return (
                "sync",
                f"It is sync-bound: weights were on their way to the engines for {share}{slots}.",
            )
        case "evaluation":
            return (
                "evaluation",
                f"Evaluations bound it: training stood still for them for {share}.",
            )
        case _:
            return "checkpoints", f"Checkpoints bound it: writing them took {share}."


def _waiting(reading: Reading, share: str, slots: str) -> tuple[Bound, str]:
    """Say whether the groups that the trainer waits for are at the engines or in the environment."""
    shares = component_shares(reading)
    waited = f"the trainer waited for groups for {share}"
    of_wait = reading.history.waited_s
    total = sum(of_wait.values())
    if total > 0 and of_wait["environment"] > total / 2:
        idle = f"{percent(of_wait['environment'] / total)} of that without a call at any engine"
        return "environment", f"It is environment-bound: {waited}, {idle} while groups were in flight{slots}."
    if total > 0 and of_wait["fault"] > total / 2:
        down = f"{percent(of_wait['fault'] / total)} of that without an engine that was up"
        return "engine", f"Lost engines bound it: {waited}, {down}."
    if not shares:
        return "unknown", f"It is generation-bound: {waited}, and no trajectory says where its time went."
    outside = shares["env_setup"] + shares["env"] + shares["reward"]
    engine = shares["llm"] + shares["queue"]
    if outside > engine:
        where = f"{percent(outside)} of theirs in the environment, {percent(engine)} at the engines"
        return "environment", f"It is environment-bound: {waited}, and trajectories spent {where}{slots}."
    queue = f" ({percent(shares['queue'])} in the queue)" if shares["queue"] >= 0.005 else ""
    where = f"{percent(engine)} of theirs at the engines{queue}, {percent(outside)} in the environment"
    return "engine", f"It is engine-bound: {waited}, and trajectories spent {where}{slots}."


def _stalled(reading: Reading) -> str:
    stalls = reading.stalls.intervals
    if not stalls:
        return ""
    longest = max(stalls, key=lambda one: _lasted_s(reading, one))
    lasted = seconds(_lasted_s(reading, longest))
    if len(stalls) == 1:
        return f"It stalled once, for {lasted} ({longest.kind}): {longest.sentence}."
    return f"It stalled {len(stalls)} times; the longest took {lasted} ({longest.kind}): {longest.sentence}."


def _lasted_s(reading: Reading, one: Interval) -> float:
    to_ns = reading.stalls.end_ns if one.to_ns is None else one.to_ns
    return (to_ns - one.from_ns) / 1e9


def percent(share: float) -> str:
    """Return a share as a person reads it: ``57 %``, ``2.4 %``."""
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"
