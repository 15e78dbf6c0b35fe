"""What another setting would have come to: the frontier's model of a log, with what the devices wait for.

The model knows the scheduler and how many requests the engines hold. The recorded setting is simulated, too, beside
what was measured: by how much it is off is how far the rest is to be believed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...core.config import RunConfig
from ...events.record import Record
from ...events.types import (
    Blocked,
    EngineLost,
    EngineUp,
    LlmCallFinished,
    LlmCallStarted,
    PhaseEntered,
    RunResumed,
    StepCompleted,
    Unblocked,
)
from .cluster import Row
from .frontier import Latencies, Setting, counted_off

MODELLED = (
    "scheduler.policy",
    "scheduler.max_staleness",
    "scheduler.permits",
    "scheduler.buffer_groups",
    "scheduler.oversample_groups",
    "engine.count",
    "engine.slots",
)
"""Settings whose effect the model knows: all others change how long things take."""
LEARNER = {
    "waiting_for_buffer": "learner: no batch",
    "generating": "learner: no batch",
    "weight_sync": "learner: weight sync",
    "eval": "learner: evaluation, checkpoint",
    "checkpoint": "learner: evaluation, checkpoint",
}
ENGINES = {"version": "engines: window is full", "permit": "engines: no permit"}
CAUSES = (*dict.fromkeys(LEARNER.values()), *ENGINES.values(), "engines: other")


@dataclass
class Idle:
    """The fold of a log into idle device-seconds by cause, and trained tokens, up to each step.

    The learner is one device; the engines are `engines` of them, idle by the share of their slots that no call holds.
    """

    engines: int
    marks: list[Counter[str]] = field(default_factory=list)
    _sum: Counter[str] = field(default_factory=Counter)
    _slots: dict[str, int] = field(default_factory=dict)
    _calls: int = 0
    _phase: str = "starting"
    _edge: str = ""
    _now_ns: int | None = None

    def apply(self, record: Record) -> None:
        """Fold one record."""
        self._pass(record.mono)
        match record.event:
            case LlmCallStarted():
                self._calls += 1
            case LlmCallFinished():
                self._calls -= 1
            case PhaseEntered() as event:
                self._phase = event.phase
            case Blocked(waiter="collector") as event:
                self._edge = event.edge
            case Unblocked(waiter="collector"):
                self._edge = ""
            case EngineUp() as event:
                self._slots[event.engine] = event.slots
            case EngineLost() as event:
                self._slots.pop(event.engine, None)
            case StepCompleted() as event:
                self._sum["tokens"] += event.trained_tokens
                self.marks.append(Counter(self._sum))
            case RunResumed():
                self.marks, self._calls, self._phase, self._edge = [], 0, "starting", ""
                self._slots.clear()

    def _pass(self, now_ns: int) -> None:
        seconds = (now_ns - self._now_ns) / 1e9 if self._now_ns is not None else 0.0
        self._now_ns = now_ns
        learner, slots = LEARNER.get(self._phase), sum(self._slots.values())
        if learner is not None:
            self._sum[learner] += seconds  # type: ignore[assignment]
        if slots:
            idle = self.engines * max(0.0, 1 - self._calls / slots)
            self._sum[ENGINES.get(self._edge, "engines: other")] += seconds * idle  # type: ignore[assignment]

    def per_step(self, skipped: int, last: int) -> dict[str, float]:
        """Return the means over all steps but the first `skipped` and the `last` ones."""
        first, end = skipped - 1, len(self.marks) - 1 - last
        before, after = self.marks[first], self.marks[end]
        return {what: (after[what] - before[what]) / (end - first) for what in (*CAUSES, "tokens")}


@dataclass(frozen=True)
class Result:
    """What a setting came to."""

    step_s: float
    groups_per_hour: float
    tokens_per_hour: float
    """Tokens in the loss."""
    idle_s: dict[str, float]
    """Device-seconds a step, by cause."""
    lag_mean: float
    lag_max: int
    """Of any token that was trained."""
    waste: float
    """Work given up per work trained."""

    @classmethod
    def of(cls, rows: Sequence[Row], idle: Sequence[dict[str, float]], groups: int, tokens: float) -> Result:
        """Return the mean of `rows` of steps of `groups` groups with `tokens` tokens, before any is masked."""
        step_s = statistics.fmean(row.step_s for row in rows)
        kept = statistics.fmean(1 - row.masked for row in rows)
        return cls(
            step_s=step_s,
            groups_per_hour=groups * 3600 / step_s,
            tokens_per_hour=tokens * kept * 3600 / step_s,
            idle_s={cause: statistics.fmean(one[cause] for one in idle) for cause in CAUSES},
            lag_mean=statistics.fmean(row.lag_mean for row in rows),
            lag_max=max(row.token_lag_max for row in rows),
            waste=statistics.fmean(row.given_up for row in rows),
        )


@dataclass
class Log:
    """A log as the model reads it, and what it came to itself."""

    latencies: Latencies
    idle: Idle

    @classmethod
    def of(cls, records: Iterable[Record], engines: int) -> Log:
        """Fold `records` of a run with so many engines."""
        idle = Idle(engines)

        def folded() -> Iterator[Record]:
            for record in records:
                idle.apply(record)
                yield record

        return cls(Latencies.of(folded()), idle)

    @property
    def config(self) -> RunConfig:
        """Return the configuration of the run."""
        assert self.latencies.config is not None
        return self.latencies.config

    def _counted_off(self) -> tuple[int, int]:
        skipped, last = counted_off(self.config.scheduler.max_staleness)
        return skipped, last if self.latencies.ended else 0

    @property
    def tokens(self) -> float:
        """Return the sampled tokens of a step, in the loss or masked."""
        masked = self.latencies.measured().masked
        return self.idle.per_step(*self._counted_off())["tokens"] / max(1e-9, 1 - masked)

    def measured(self) -> Result:
        """Return what the run itself came to."""
        idle = self.idle.per_step(*self._counted_off())
        return Result.of(
            [self.latencies.measured()], [idle], self.config.scheduler.groups_per_step, self.tokens
        )


def simulated(setting: Setting, seed: int, engines: int) -> tuple[Row, dict[str, float]]:
    """Return what one simulated run comes to, and its idle device-seconds a step."""
    idle = Idle(engines)
    row = setting.simulate(seed, idle)
    return row, idle.per_step(*counted_off(setting.staleness))
