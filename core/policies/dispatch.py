"""What a policy decides."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import RunConfig
from ..projections import View
from ..waits import Edge


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One group that is due: for step `target`, generated from `version` on."""

    target: int
    version: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """One live group that the policy gives up; its rollouts end and its prompt goes back."""

    group: int
    lag: int
    """Versions by which the next step that could train it is ahead of the group's dispatch."""
    surplus: bool = False
    """Whether no step is left for it at all: the run needs no more groups."""


def room(view: View, config: RunConfig) -> int:
    """Return how many groups may start now, by the permits and by the room of the buffer; may be negative."""
    groups, scheduler = view.groups, config.scheduler
    return min(
        scheduler.permits_or_default - groups.in_flight,
        scheduler.buffer_or_default - groups.in_flight - groups.buffered,
    )


def why_no_more(view: View, config: RunConfig) -> Edge:
    """Return what has to happen before more groups can be due: a permit, a version, an engine, or nothing any more."""
    version, step = view.engines.generation_version, view.trainer.step
    if version is None:
        return Edge("engine_available", "an engine", "none is up")
    if step >= config.run.steps:
        return Edge("drained", "the end of the run", f"step {step}/{config.run.steps}")
    if room(view, config) <= 0:
        limit = config.scheduler.permits_or_default
        return Edge("permit", "a free permit", f"{view.groups.in_flight}/{limit} in flight")
    return Edge("version", f"version {version + 1}", f"version {version}")


def data_ended(view: View) -> bool:
    """Return whether no group can be added to what is buffered: no prompt is left, and nothing is in flight."""
    return view.prompts.exhausted and not view.groups.in_flight


def whole_buffer(view: View, config: RunConfig) -> Edge:
    """Return what a step waits for that takes any buffered group: so many of them, and how many there are."""
    groups = view.groups
    return Edge(
        "buffer_ready",
        f"step {view.trainer.step}: {config.scheduler.groups_per_step} groups",
        f"{groups.buffered} buffered, {groups.in_flight} in flight",
    )
