"""How long a step would take: by the simulator, with times that a run recorded, or with rough figures."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ...core.config import RunConfig
from ..simulated.frontier import Latencies, Model, Seen

SEEDS = 3
"""Simulated runs where times differ from group to group; where they do not, one says it all."""
GROUPS_MADE_UP = 8
BUSY_SHARE = 0.75
"""Share of a step that engines or learner must be busy in to be what bounds it."""


class PaceUnknown(Exception):
    """Nothing can be said of the pace; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What a step comes to; means over the simulated runs."""

    step_s: float
    lag_mean: float
    generation_s: float
    """In which the engines make the groups of a step, were they never idle."""
    training_s: float
    """In which the trainer is busy in a step: converting, training, weight sync, evaluation and checkpoint."""
    group_s: float
    """That a group takes from its dispatch on, in the mean."""
    source: str
    """Where the times are from, in words."""
    assumed: str

    @property
    def bound(self) -> str:
        """What bounds the step: ``engines``, ``learner``, or ``groups`` where both have room and groups take long."""
        if max(self.generation_s, self.training_s) < BUSY_SHARE * self.step_s:
            return "groups"
        return "engines" if self.generation_s > self.training_s else "learner"


def pace_like(config: RunConfig, latencies: Latencies, run: str) -> Pace:
    """Return the pace of `config` with the times in the log of `run`. Raises `PaceUnknown`."""
    lacks = latencies.lacks()
    if lacks:
        raise PaceUnknown(f"{run}: {lacks}")
    return _simulated(
        config,
        Model(latencies),
        source=f"the times of groups, training and weight sync in {run}",
        assumed="a group and a step take as long as there",
        seeds=SEEDS,
    )


def pace_of_figures(config: RunConfig, tokens_per_s: float, train_tokens_per_s: float) -> Pace:
    """Return the pace of `config` where an engine samples and the learner trains so many tokens a second.

    Every trajectory counts as long as it may become, and engines as busy whatever they hold: an upper bound. Raises
    `PaceUnknown`.
    """
    rollout, engine, scheduler = config.rollout, config.engine, config.scheduler
    sampled = min(rollout.context_tokens, rollout.max_turns * rollout.max_tokens)
    in_flight = min(engine.engines * engine.slots, scheduler.permits_or_default * rollout.group_size)
    group_s = sampled * in_flight / (engine.engines * tokens_per_s)
    batch = scheduler.groups_per_step * rollout.group_size
    latencies = Latencies(
        config=config,
        groups=[Seen(number, group_s, whole=True) for number in range(GROUPS_MADE_UP)],
        train_s=[batch * rollout.context_tokens / train_tokens_per_s],
        sync_s=[0.0],
        aside_s=[0.0],
        engine_s=rollout.group_size * group_s,
        whole_s=group_s,
        slots={"all": in_flight},
    )
    return _simulated(
        config,
        Model(latencies),
        source=f"{tokens_per_s:g} tokens/s an engine, {train_tokens_per_s:g} tokens/s trained",
        assumed=f"every trajectory samples {sampled} tokens and is trained as {rollout.context_tokens}, the most they "
        "may; environments, weight sync, evaluation and checkpoints take no time",
        seeds=1,
    )


def _simulated(config: RunConfig, model: Model, *, source: str, assumed: str, seeds: int) -> Pace:
    setting = model.changed(config, own=False)
    if setting is None:
        raise PaceUnknown("the simulator does not take these numbers of the scheduler together")
    rows = [setting.simulate(seed) for seed in range(seeds)]
    places = setting.places * model.scale
    return Pace(
        step_s=statistics.fmean(row.step_s for row in rows),
        lag_mean=statistics.fmean(row.lag_mean for row in rows),
        generation_s=config.scheduler.groups_per_step * model.draws.mean_group_s() / places,
        training_s=model.draws.mean_step_s(),
        group_s=model.draws.mean_group_s(),
        source=source,
        assumed=assumed,
    )
