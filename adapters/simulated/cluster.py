"""A simulated cluster under the shipped run, and what a schedule comes to on it: step time, staleness, waste.

A group is one draw: its trajectories take equally long and hold one place of the engines together. So the cluster
has `places` for groups, and what a policy does with them is all that counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.config import RunConfig
from ...core.ports import GenerateRequest, TrainBatch
from ...core.run import Run
from ...events.bus import Bus, Projection
from ...events.record import Record
from ...events.types import (
    BatchTaken,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrajectoryCompleted,
)
from .engine import SimulatedEngine
from .trial import Parts, trial
from .virtual_time import VirtualClock
from .world import SimulatedEnvironment, SimulatedLearner

GROUP_SIZE = 2
"""The smallest that is allowed."""
TOKENS = 100
"""Of every answer, sampled evenly over its time."""


@dataclass(frozen=True)
class Cluster:
    """How many groups are generated at once, and how long things take; each a function of a seed and a number."""

    places: float
    group_s: Callable[[int, int], float]
    """Of (seed, group): from the first place it holds until it is whole."""
    train_s: Callable[[int, int], float]
    """Of (seed, step)."""
    sync_s: Callable[[int, int], float]
    """Of (seed, version)."""
    aside_s: Callable[[int, int], float] = lambda seed, version: 0.0
    """Of (seed, version): evaluation and checkpoint before its batch; asked if `checkpoint.every_steps` is 1."""


@dataclass(frozen=True)
class Row:
    """What a schedule came to, over the steps that count."""

    step_s: float
    lag_max: int
    lag_mean: float
    waste: float
    """Groups given up, evicted or surplus, per group trained."""
    token_lag_max: int = 0
    """Largest lag of a token that was trained."""
    masked: float = 0.0
    """Share of the tokens of trained groups that were left out of the loss."""

    @property
    def given_up(self) -> float:
        """Work given up per work trained: groups, and tokens that were masked."""
        return self.waste + self.masked / max(1e-9, 1 - self.masked)


@dataclass
class Tally:
    """The fold that a `Row` is read from, of a simulated log or a real one.

    A resumed run is looked at from its last resume on.
    """

    ends_ns: list[int] = field(default_factory=list)
    """Of each step."""
    _versions: dict[int, int] = field(default_factory=dict)
    _lags: list[list[int]] = field(default_factory=list)
    _evicted: list[int] = field(default_factory=list)
    _given_up: int = 0
    _bound: int | None = None  # on the lag of a token, where there is one
    _tokens: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _token_lags: list[int] = field(default_factory=list)
    _counts: list[tuple[int, int]] = field(default_factory=list)  # trained, masked

    def apply(self, record: Record) -> None:
        """Fold one record."""
        match record.event:
            case RunStarted() as event:
                scheduler = event.config["scheduler"]
                self._bound = scheduler["max_staleness"] if scheduler.get("policy") == "token_windowed" else None
            case GroupDispatched() as event:
                self._versions[event.group] = event.version
            case TrajectoryCompleted() as event if event.group is not None:
                self._tokens.setdefault(event.group, []).extend(event.version_spans)
            case BatchTaken() as event:
                self._lags.append([event.step - self._versions[group] for group in event.groups])
                self._token_lags.append(self._oldest(event))
            case GroupEvicted():
                self._given_up += 1
            case GroupDiscarded(reason="surplus"):
                self._given_up += 1
            case StepCompleted() as event:
                self.ends_ns.append(record.mono)
                self._evicted.append(self._given_up)
                self._counts.append((event.trained_tokens, event.masked_tokens))
            case RunResumed() as event:
                if event.config is not None:
                    scheduler = event.config["scheduler"]
                    by_token = scheduler.get("policy") == "token_windowed"
                    self._bound = scheduler["max_staleness"] if by_token else None
                self.ends_ns, self._lags, self._evicted, self._token_lags, self._counts = [], [], [], [], []

    def _oldest(self, batch: BatchTaken) -> int:
        """Return the lag of the oldest token that `batch` trains."""
        spans = (span for group in batch.groups for span in self._tokens.pop(group, ()))
        lags = (batch.step - version for version, _ in spans)
        return max((lag for lag in lags if self._bound is None or lag <= self._bound), default=0)

    def row(self, skipped: int, last: int) -> Row:
        """Return the row of all steps but the first `skipped` and the `last` ones; at least one must remain."""
        first, end = skipped - 1, len(self.ends_ns) - 1 - last
        lags = [lag for batch in self._lags[skipped : end + 1] for lag in batch]
        trained, masked = (sum(count) for count in zip(*self._counts[skipped : end + 1], strict=True))
        return Row(
            step_s=(self.ends_ns[end] - self.ends_ns[first]) / 1e9 / (end - first),
            lag_max=max(lags),
            lag_mean=statistics.fmean(lags),
            waste=(self._evicted[end] - self._evicted[first]) / len(lags),
            token_lag_max=max(self._token_lags[skipped : end + 1]),
            masked=masked / max(1, trained + masked),
        )


def measure(
    cluster: Cluster, config: RunConfig, *, skipped: int, last: int, also: Sequence[Projection] = ()
) -> Row:
    """Run `config` on `cluster` in virtual time and return what it came to; the projections `also` fold its log.

    Raises RuntimeError when the run does not complete, or breaks a law of the accounting.
    """
    tally = Tally()

    def watching(run: Run, bus: Bus) -> None:
        for projection in (tally, *also):
            bus.register(projection)

    run, outcome = trial(config, _parts(cluster, config), watching=watching)
    if outcome.outcome != "completed" or run.ledger.breaches:
        raise RuntimeError(f"the simulated run {outcome.outcome}: {outcome.message} {run.ledger.breaches}")
    return tally.row(skipped, last)


def settings(policy: str, per_step: int, staleness: int, steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """Return the settings of a run of `steps` steps for `measure`, to be changed before they are validated."""
    return {
        "run": {"steps": steps, "seed": seed},
        "model": {"path": "simulated"},
        "data": {"kind": "generated", "size": 4 * per_step * steps},
        "environment": {"kind": "simulated:None"},
        "rollout": {"group_size": GROUP_SIZE},
        "checkpoint": {"at_end": False},
        "scheduler": {"policy": policy, "groups_per_step": per_step, "max_staleness": staleness},
    }


def _parts(cluster: Cluster, config: RunConfig) -> Parts:
    clock, seed = VirtualClock(), config.run.seed

    def seconds(request: GenerateRequest) -> float:
        return cluster.group_s(seed, int(request.request.split("/")[0]))

    async def take_weights(version: int) -> None:
        await clock.sleep(cluster.sync_s(seed, version))

    engine = SimulatedEngine(
        "engine-0",
        clock,
        seconds=seconds,
        length=lambda request: TOKENS,
        slots=max(1, round(cluster.places * GROUP_SIZE)),
        on_load=take_weights,
    )
    learner = SimulatedLearner(clock, start_s=0.0)

    async def train(batch: TrainBatch) -> None:
        learner.seconds = cluster.train_s(seed, batch.step)

    async def stand_aside(path: str) -> None:
        await clock.sleep(cluster.aside_s(seed, learner.version))

    learner.on_train, learner.on_checkpoint = train, stand_aside
    assert config.data.size is not None
    return Parts(clock, [engine], learner, lambda: SimulatedEnvironment(clock, seconds=0.0), config.data.size)
