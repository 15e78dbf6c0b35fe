"""Which settings may change when a run goes on, and which may not because the log has decided by them.

A log holds groups of a size, of prompts of a dataset in an order, meant for steps by a policy. What those follow from
cannot change under them; everything else can, at a resume or a fork.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .config import RunConfig

_PROMPTS = "the prompts that are drawn follow from it"
_GROUPS = "the groups that are kept were made with it"
_WEIGHTS = "the weights that the run goes on with follow from it"

FIXED: dict[str, str] = {
    "run.seed": _PROMPTS,
    "model.path": _WEIGHTS,
    "model.init": _WEIGHTS,
    "data.kind": _PROMPTS,
    "data.path": _PROMPTS,
    "data.task": _PROMPTS,
    "data.size": _PROMPTS,
    "data.shuffle": _PROMPTS,
    "data.options": _PROMPTS,
    "rollout.group_size": _GROUPS,
    "rollout.group_floor": _GROUPS,
    "scheduler.policy": "the targets of the groups that are kept are its",
    "scheduler.groups_per_step": "the batches that are trained again have this many",
    "scheduler.oversample_groups": _GROUPS,
}
"""Settings that never change in a run, and why."""


class Change(NamedTuple):
    """A setting that is to be another one from now on."""

    key: str
    old: Any
    new: Any


def changes(before: RunConfig, after: RunConfig) -> list[Change]:
    """Return every setting in which `after` differs from `before`."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return [
        Change(f"{section}.{key}", old[section][key], new[section][key])
        for section in new
        for key in new[section]
        if old[section][key] != new[section][key]
    ]


def refused(before: RunConfig, after: RunConfig, step: int) -> Iterator[str]:
    """Yield one line for each change that a run, which goes on at `step`, cannot make."""
    for key, old, new in changes(before, after):
        if key in FIXED:
            yield f"{key} = {new}: cannot change in a run that has begun with {old}: {FIXED[key]}"
        elif key == "scheduler.max_staleness" and new < old:
            yield f"{key} = {new}: can be raised, not lowered: the groups that are kept may lag by {old}"
        elif key == "data.epochs" and new < old:
            yield f"{key} = {new}: can be raised, not lowered: {old} may have been drawn from"
        elif key == "run.steps" and new <= step:
            yield f"{key} = {new}: must be more than the {step} steps that the run goes on from"
