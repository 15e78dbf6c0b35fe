"""Failures as values: what went wrong, who is charged, and what is done about it.

Every error of a port becomes one `Failure`; every failure of a trajectory gets one answer, decided by the pure
`respond`. Nothing here catches what it does not know: an exception that is no `PortError` is a defect and ends
the run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from ..events.types import Blame, FailureKind, Outcome, TrajectoryFailed
from .config import FailureSection
from .ports import EngineGone, EnvironmentWorkerGone, LearnerGone, PortError, PromptRefused, PromptTooLong
from .projections import Attempts, Group, Groups, strike_of
from .waits import Expired

Effect = Literal["llm_call", "env_reset", "env_step", "reward"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a trajectory."""

    kind: FailureKind
    retryable: bool
    blame: Blame
    message: str


class TrajectoryAborted(Exception):
    """Ends a rollout with a typed failure; raised and caught inside core/ only."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RunFailure(Exception):
    """Ends the run. `error` is a short type for the log, `first_cause` the seq of the event that shows it."""

    def __init__(self, error: str, message: str, first_cause: int | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.first_cause = first_cause


def engine_failure(error: PortError) -> Failure:
    """Classify what an engine raised."""
    message = one_line(error)
    if isinstance(error, PromptTooLong):
        return Failure("prompt_too_long", False, "prompt", message)
    if isinstance(error, PromptRefused):
        return Failure("refused", False, "prompt", message)
    if isinstance(error, EngineGone):
        return Failure("engine_lost", True, "engine", message)
    return Failure("engine_error", True, "engine", message)


def environment_failure(effect: Effect, error: Exception) -> Failure:
    """Classify what an environment or its reward raised; user code may raise anything."""
    if isinstance(error, EnvironmentWorkerGone):
        return Failure("env_lost", True, "infrastructure", one_line(error))
    kind: FailureKind = "reward_error" if effect == "reward" else "env_error"
    return Failure(kind, True, "environment", f"{type(error).__name__}: {one_line(error)}")


def expiry_failure(effect: Effect, limit_s: float) -> Failure:
    """Describe an effect that took longer than it may."""
    message = f"no answer within {limit_s:g} s"
    if effect == "llm_call":
        return Failure("llm_expired", True, "engine", message)
    return Failure("reward_expired" if effect == "reward" else "env_expired", True, "environment", message)


def defect(error: BaseException) -> Failure:
    """Describe an attempt that an unexpected exception ended, and with it the run."""
    return Failure("defect", False, "infrastructure", f"{type(error).__name__}: {one_line(error)}")


CANCELLED = Failure("cancelled", False, "nobody", "given up with its group or with the run")


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the trajectory again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Fail the group; `quarantine` keeps the prompt from ever being drawn again."""

    quarantine: bool


@dataclass(frozen=True, slots=True)
class Drop:
    """Let the group go on without the trajectory."""


def respond(
    failed: TrajectoryFailed, group: Group, strikes: int, limits: FailureSection, spare: int = 0
) -> Retry | Drop | GiveUp:
    """Decide what follows a failed attempt.

    Permanent failures quarantine their prompt at once. Retryable ones are tried again with a delay that doubles,
    on a budget of their own for what the engines did and for what the prompt or its environment did. Its siblings
    go on meanwhile, and what they have is kept. When the budget is used up, the trajectory alone is given up where
    the group can do without it (`spare` is how many it still can), else the group.

    Either is a strike against the prompt; `strikes` is how many of this sort its earlier groups have. The last one
    ends the group in any case, and quarantines the prompt.
    """
    if not failed.retryable:
        return GiveUp(quarantine=failed.blame == "prompt")
    charged = is_charged(failed)
    failures = group.prompt_failures if charged else group.engine_failures
    delay_s = retry_delay_s(failed, failures[failed.trajectory], limits)
    if delay_s is not None:
        return Retry(delay_s)
    strikes_max = limits.strikes_max if charged else limits.engine_strikes_max
    if strike_of(failed.failure, failed.blame) and strikes + 1 >= strikes_max:
        return GiveUp(quarantine=True)
    return Drop() if spare > 0 else GiveUp(quarantine=False)


def is_charged(failed: TrajectoryFailed) -> bool:
    """Return whether the failure is the prompt's or its environment's own."""
    return failed.blame in ("prompt", "environment")


def retry_delay_s(failed: TrajectoryFailed, failures: int, limits: FailureSection) -> float | None:
    """Return the wait before the next attempt after `failures` ones of this sort, None when that was the last."""
    allowed = limits.attempts_max if is_charged(failed) else limits.engine_attempts_max
    if not failed.retryable or failures >= allowed:
        return None
    return min(limits.backoff_max_s, limits.backoff_s * 2.0 ** (failures - 1))


def outcome_of(error: BaseException) -> Outcome:
    """Return how an effect ended that ended with `error`."""
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, Expired):
        return "expired"
    return "lost" if isinstance(error, EngineGone | LearnerGone) else "failed"


def check_failure_share(attempts: Attempts, limits: FailureSection, *, whole_window: bool) -> None:
    """Raise `RunFailure` when too large a share of the recent attempts failed.

    With `whole_window` a window that is not full yet says nothing; at the end of the data it has to do.
    """
    judged = len(attempts.recent)
    if whole_window and judged < min(limits.window, attempts.keep):
        return
    first = attempts.first_failure
    if first is None or attempts.failed_share() <= limits.share_max:
        return
    raise RunFailure(
        "too_many_failures",
        f"{attempts.failed_share():.0%} of the last {judged} trajectories failed (limit "
        f"failures.share_max = {limits.share_max:g}); the first one: {first.failure}: {first.message}",
        first.seq,
    )


def check_filtered(groups: Groups, limit: int) -> None:
    """Raise `RunFailure` when more than `limit` groups were filtered for one step; 0 is no limit.

    A step that finds no group with different rewards would go through all the data: what is wrong is then the
    task, which is too easy or too hard, or the reward.
    """
    for step, filtered in groups.filtered_for.items():
        count = filtered.rewards.total()
        if not limit or count <= limit:
            continue
        kinds = [f"{number} of mean reward {reward:.4g}" for reward, number in filtered.rewards.most_common(3)]
        others = count - sum(number for _, number in filtered.rewards.most_common(3))
        listed = ", ".join([*kinds, f"{others} of others"] if others else kinds)
        raise RunFailure(
            "too_many_filtered",
            f"{count} groups for step {step} had equal rewards and were filtered (limit algorithm.filtered_max = "
            f"{limit}): {listed}",
            filtered.first_seq,
        )


def one_line(error: BaseException) -> str:
    """Return the error's message as one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def first_leaf(error: BaseException) -> BaseException:
    """Return the first exception inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
