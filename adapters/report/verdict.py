"""What a person wants to know first: how the run ended, and what bounds it, with the figures that say so."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from ...events.types import RunFailed, RunFinished
from ..cli.quantities import number, seconds
from ..cli.stalls_report import Interval as Stall
from .bound_words import Bound, bounded
from .reading import Reading


@dataclass(frozen=True)
class Verdict:
    """One sentence each; an empty one has nothing to say."""

    bound: Bound
    ended: str
    bounded: str
    stalled: str


def judge(reading: Reading) -> Verdict:
    """Return what is to be said of a run first."""
    bound, sentence = bounded(reading)
    return Verdict(bound, _ended(reading), sentence, _stalled(reading))


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


def _stalled(reading: Reading) -> str:
    """Tell of the stall in which the run stood still longest; of the longest one where it never stood still."""
    all_of_them = reading.standstills
    if not all_of_them:
        return ""
    longest = max(all_of_them, key=lambda one: (one.seconds, _lasted_s(reading, one.stall)))
    stall, many = longest.stall, len(all_of_them)
    chain = " <- ".join(stall.chain)
    if not longest.pieces:
        count = "It stalled once" if many == 1 else f"It stalled {many} times; the longest took"
        what = "for " * (many == 1) + f"{seconds(_lasted_s(reading, stall))} ({stall.kind})"
        return f"{count}{',' * (many == 1)} {what}: {stall.sentence}."
    step = f" in step {longest.step}" if longest.step >= 0 else ""
    idle = f"; {longest.idle_s:,.0f} device-seconds were idle meanwhile" if longest.idle_s >= 1 else ""
    stood = f"stood still for {seconds(longest.seconds)}{step}"
    count = f"It {stood}" if many == 1 else f"It stalled {many} times; the longest time it {stood}"
    why = f", because {longest.hung}" if longest.hung else f", in a {stall.kind}"
    return f"{count}{why}{idle}: {chain}."


def _lasted_s(reading: Reading, stall: Stall) -> float:
    to_ns = reading.stalls.end_ns if stall.to_ns is None else stall.to_ns
    return (to_ns - stall.from_ns) / 1e9
