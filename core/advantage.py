"""Group-relative advantages, and the batch that the learner gets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from ..events.trajectory import TrajectoryPayload, decode_trajectory, int32_list
from .ports import Payloads, TrainBatch, TrainRow
from .projections import Group


def advantages(rewards: Sequence[float], kind: Literal["grpo", "dr_grpo"]) -> list[float]:
    """Return each trajectory's advantage over its group.

    ``grpo``: ``(r_i - mean(r)) / (std(r) + 1e-6)`` (arXiv 2402.03300, section 4.1.2; the standard deviation is the
    population's). ``dr_grpo``: ``r_i - mean(r)`` (arXiv 2503.20783, section 3.2). Equal rewards give zeros.
    """
    mean = statistics.fmean(rewards)
    if kind == "dr_grpo":
        return [reward - mean for reward in rewards]
    spread = deviation(rewards, mean)
    if spread == 0:
        return [0.0] * len(rewards)
    return [(reward - mean) / (spread + 1e-6) for reward in rewards]


def deviation(rewards: Sequence[float], mean: float) -> float:
    """Return the standard deviation of the population; 0 only when all rewards are equal."""
    if max(rewards) == min(rewards):
        return 0.0  # whatever the rounding of the mean
    return math.hypot(*(reward - mean for reward in rewards)) / math.sqrt(len(rewards))


def train_batch(
    step: int,
    version: int,
    groups: Sequence[Group],
    payloads: Payloads,
    kind: Literal["grpo", "dr_grpo"],
    oldest: int = 0,
) -> TrainBatch:
    """Read the groups' payloads and return one row per trajectory, groups in the order given.

    Tokens of versions before `oldest` are not trained: their rows do not call them sampled. The group's mean counts
    every reward all the same, also of a trajectory without any token left to train.

    Raises `PayloadMissing`, `PayloadDamaged` or `PayloadInvalid`.
    """
    rows: list[TrainRow] = []
    for group in groups:
        completed = sorted(group.completed.values(), key=lambda c: int(c.trajectory.rpartition("/")[2]))
        for one, advantage in zip(completed, advantages([c.reward for c in completed], kind), strict=True):
            payload = decode_trajectory(payloads.get(one.payload))
            rows.append(
                TrainRow(
                    trajectory=one.trajectory,
                    tokens=payload.tokens,
                    sampled=masked(payload, oldest) if one.tokens_before(oldest) else payload.sampled,
                    logprobs=payload.logprobs,
                    versions=payload.versions,
                    advantage=advantage,
                )
            )
    return TrainBatch(step=step, version=version, rows=tuple(rows))


def masked(payload: TrajectoryPayload, oldest: int) -> bytes:
    """Return uint8[T]: 1 where the policy sampled the token with version `oldest` or a newer one."""
    versions = int32_list(payload.versions)
    return bytes(by >= oldest and flag for flag, by in zip(payload.sampled, versions, strict=True))
