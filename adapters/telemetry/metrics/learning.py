"""What is learned: steps, weights, rewards, losses, tokens."""

from __future__ import annotations

from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import EvalCompleted, EvalStarted, LearnerUp, RunResumed, StepCompleted
from .part import Part, bounded
from .snapshot import Snapshot

FIGURES_MAX = 128
"""Figures of the learner that have a series each."""


class Learning(Part):
    """The last figures of training and evaluation, and sums over all steps, also those that were rolled back."""

    def __init__(self) -> None:
        self.evaluating = False
        self._steps = 0
        self._version = 0
        self._tokens = {"trained": 0, "masked": 0}
        self._last: StepCompleted | None = None
        self._figures: dict[str, float] = {}
        self._eval_reward: float | None = None

    def interrupted(self, at_ns: int) -> None:
        """End the evaluation that was going on."""
        self.evaluating = False

    @on(LearnerUp, RunResumed)
    def _loaded(self, record: Record, event: LearnerUp | RunResumed) -> None:
        self._version = event.version

    @on(StepCompleted)
    def _stepped(self, record: Record, event: StepCompleted) -> None:
        self._steps += 1
        self._version, self._last = event.version, event
        self._tokens["trained"] += event.trained_tokens
        self._tokens["masked"] += event.masked_tokens
        for name, value in event.metrics.items():
            self._figures[bounded(name, self._figures, len(self._figures), FIGURES_MAX)] = value

    @on(EvalStarted)
    def _eval_started(self, record: Record, event: EvalStarted) -> None:
        self.evaluating = True

    @on(EvalCompleted)
    def _evaluated(self, record: Record, event: EvalCompleted) -> None:
        self.evaluating = False
        if event.reward_mean is not None:
            self._eval_reward = event.reward_mean

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write the newest figures; those that there are not yet have no series."""
        into.set("rl_steps_total", self._steps)
        into.set("rl_weight_version", self._version)
        into.set_each("rl_tokens_total", self._tokens)
        if self._last is not None:
            into.set("rl_reward_mean", self._last.reward_mean)
            into.set("rl_loss", self._last.loss)
        into.set_each("rl_learner_metric", self._figures)
        if self._eval_reward is not None:
            into.set("rl_eval_reward_mean", self._eval_reward)
