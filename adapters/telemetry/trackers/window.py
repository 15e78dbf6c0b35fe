"""What happened from one step's wait to the next: the sums behind the figures of a step."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ....events.types import (
    TRAJECTORY_PARTS,
    BatchTaken,
    DeviceSampled,
    EvalCompleted,
    StepCompleted,
    StepStarted,
)

SAMPLED_EVERY = 16
"""One in so many values of a batch says about where its percentiles lie."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished trajectory."""

    reward: float
    seconds: tuple[float, ...] | None
    """Of its parts; None where the log only has the trajectory itself."""


@dataclass(slots=True)
class Use:
    """Use of one device in a window: busy seconds of measured seconds."""

    pool: str
    source: str
    measured_s: float = 0.0
    busy_s: float = 0.0


@dataclass
class Window:
    """A step's share of the run, from `start_ns` of the run's monotonic time on."""

    start_ns: int
    queued: int
    """Finished groups in the buffer when it began."""
    end_ns: int = 0
    phases_ns: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    generated_tokens: int = 0
    taken: BatchTaken | None = None
    lags: Sequence[int] = ()
    rollouts: Sequence[Rollout] = ()
    started: StepStarted | None = None
    completed: StepCompleted | None = None
    evaluated: EvalCompleted | None = None
    devices: dict[str, Use] = field(default_factory=dict)

    def measure(self, event: DeviceSampled, ended_ns: int) -> None:
        """Count the part of a sample that ended at `ended_ns` and lies in this window."""
        until_ns = min(ended_ns, self.end_ns) if self.end_ns else ended_ns
        from_ns = max(ended_ns - round(event.window_s * 1e9), self.start_ns)
        overlap_s = (until_ns - from_ns) / 1e9
        if overlap_s > 0:
            use = self.devices.setdefault(event.device, Use(event.pool, event.source))
            use.pool = event.pool
            use.measured_s += overlap_s
            use.busy_s += overlap_s * event.utilization

    def figures(self, capacity: int) -> dict[str, float]:
        """Return the figures of the step; `capacity` is how many finished groups the buffer may hold."""
        seconds = (self.end_ns - self.start_ns) / 1e9
        figures: dict[str, float] = {"timing/step": seconds}
        figures |= {f"timing/{phase}": ns / 1e9 for phase, ns in self.phases_ns.items()}
        figures |= {"async/gen_buffer_qsize": self.queued, "async/gen_buffer_maxsize": capacity}
        figures |= _spread("async/staleness", self.lags)
        figures |= _rollout_figures(self.rollouts)
        figures |= self._learner_figures(seconds)
        figures |= _device_figures(self.devices)
        figures |= {
            f"groups/{what}": self.groups[what] for what in ("filtered", "failed", "evicted", "discarded")
        }
        if self.evaluated is not None and self.evaluated.reward_mean is not None:
            figures["eval/reward_mean"] = self.evaluated.reward_mean
            figures["eval/completed"], figures["eval/failed"] = (
                self.evaluated.completed,
                self.evaluated.failed,
            )
        return {key: float(value) for key, value in figures.items()}

    def _learner_figures(self, seconds: float) -> dict[str, float]:
        done = self.completed
        if done is None:
            return {}
        figures = {"policy/loss": done.loss, "reward/mean": done.reward_mean}
        figures |= {f"policy/{name}": value for name, value in done.metrics.items() if name != "tokens"}
        figures |= {f"learner/{part}_time": value for part, value in done.parts_s.items()}
        trained = done.trained_tokens or done.metrics.get("tokens", 0.0)
        figures |= {
            "tokens/generated": self.generated_tokens,
            "tokens/trained": trained,
            "tokens/masked": done.masked_tokens,
        }
        if self.started is not None:
            figures["tokens/batch"] = self.started.tokens
        if seconds > 0:
            figures["throughput/tokens_generated_per_s"] = self.generated_tokens / seconds
            figures["throughput/tokens_trained_per_s"] = trained / seconds
        return figures


def _rollout_figures(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return what the batch's trajectories took; nothing about times where those of one are not known."""
    figures: dict[str, float] = {}
    if rollouts:
        figures["reward/std"] = _deviation([rollout.reward for rollout in rollouts])
    splits = [rollout.seconds for rollout in rollouts if rollout.seconds is not None]
    if not splits or len(splits) < len(rollouts):
        return figures
    columns = dict(zip(TRAJECTORY_PARTS, zip(*splits, strict=True), strict=True))
    for part, times in columns.items():
        figures |= _tail(f"generate/trajectory_{part}_time", times)
    walls = list(map(sum, splits))
    figures |= _tail("generate/trajectory_completion_time", walls)
    wall_s = sum(walls)
    figures["generate/frac_time_in_env"] = min(1.0, sum(columns["env"]) / wall_s) if wall_s > 0 else 0.0
    return figures


def _device_figures(devices: Mapping[str, Use]) -> dict[str, float]:
    """Return the mean use of each device, and of all those of a kind that work for the same."""
    figures: dict[str, float] = {}
    pools: dict[str, list[float]] = {}
    for device, use in devices.items():
        mean = use.busy_s / use.measured_s
        if use.source == "ray":
            figures[f"ray/{device}_utilization_mean"] = mean
            continue
        kind, name = ("cpu", device.removeprefix("cpu:")) if device.startswith("cpu:") else ("gpu", device)
        figures[f"{kind}/{name}_utilization_mean"] = mean
        pools.setdefault(f"{kind}/{use.pool}_utilization_mean", []).append(mean)
    for key, means in pools.items():
        figures[key] = statistics.fmean(means)
    return figures


def _tail(key: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{key}_mean": statistics.fmean(values),
        f"{key}_p90": percentile(values, 0.9),
        f"{key}_max": max(values),
    }


def _deviation(values: Sequence[float]) -> float:
    """Return the population's standard deviation; `statistics.pstdev` computes in fractions, ten times as long."""
    mean = statistics.fmean(values)
    return math.dist(values, [mean] * len(values)) / math.sqrt(len(values))


def _spread(key: str, values: Sequence[int]) -> dict[str, float]:
    if not values:
        return {}
    return {f"{key}_mean": statistics.fmean(values), f"{key}_max": max(values), f"{key}_min": min(values)}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of `values` lie, linearly between neighbours as numpy does.

    A large batch is not sorted whole, which would hold up the event loop: a sample of it says about where the
    value lies, and only what is above that is put in order.
    """
    place = share * (len(values) - 1)
    below = int(place)
    from_top = len(values) - below
    ordered = _top(values, from_top)
    low, high = ordered[-from_top], ordered[min(1 - from_top, -1)]
    return low + (high - low) * (place - below)


def _top(values: Sequence[float], count: int) -> list[float]:
    """Return at least the `count` largest of `values`, in ascending order."""
    sample = sorted(values[::SAMPLED_EVERY])
    margin = 2 * math.isqrt(len(sample))
    least = len(sample) - count // SAMPLED_EVERY - margin
    if least > 0:
        found = [value for value in values if value >= sample[least]]
        if len(found) >= count:
            return sorted(found)
    return sorted(values)
