"""What a person follows: rewards, losses and times, step by step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...events.record import Record
from ...events.types import (
    TRAJECTORY_PARTS,
    EvalCompleted,
    RunResumed,
    StepCompleted,
    TrajectoryCompleted,
    part_seconds,
)
from .fold import Folded, on


@dataclass(frozen=True, slots=True)
class StepRow:
    """One trained step."""

    step: int
    reward_mean: float
    loss: float
    lag_mean: float
    lag_max: int
    ended_ns: int
    parts_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One evaluation."""

    eval: int
    version: int
    reward_mean: float | None
    completed: int
    failed: int


@dataclass
class Progress(Folded):
    """History of steps and evaluations, and the sums over all trajectories."""

    steps: list[StepRow] = field(default_factory=list)
    evals: list[EvalRow] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    """'prompt' and 'completion' tokens of completed training trajectories."""
    seconds: Counter[str] = field(default_factory=Counter)
    """Sums over completed training trajectories, by `TRAJECTORY_PARTS`."""

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        """Drop what is rolled back: it is trained, and evaluated, again."""
        self.steps = [row for row in self.steps if row.step < event.step]
        self.evals = [row for row in self.evals if row.version <= event.version]

    @on(StepCompleted)
    def _step(self, record: Record, event: StepCompleted) -> None:
        self.steps.append(
            StepRow(
                event.step,
                event.reward_mean,
                event.loss,
                event.lag_mean,
                event.lag_max,
                record.mono,
                dict(event.parts_s),
            )
        )

    @on(EvalCompleted)
    def _eval(self, record: Record, event: EvalCompleted) -> None:
        self.evals.append(
            EvalRow(event.eval, event.version, event.reward_mean, event.completed, event.failed)
        )

    @on(TrajectoryCompleted)
    def _trajectory(self, record: Record, event: TrajectoryCompleted) -> None:
        if event.group is None:
            return
        self.tokens["prompt"] += event.prompt_tokens
        self.tokens["completion"] += event.completion_tokens
        seconds: dict[str, float] = self.seconds  # type: ignore[assignment]  # a Counter's values are ints to mypy
        for part, spent in zip(TRAJECTORY_PARTS, part_seconds(event), strict=True):
            seconds[part] += spent
