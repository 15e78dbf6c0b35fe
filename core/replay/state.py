"""The state that a decision was made on, in a few short lines for a person."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import RunConfig
from ..projections import View

SHOWN = 16
"""Numbers of a list that are printed before it is cut short."""


def state_of(view: View, config: RunConfig) -> dict[str, str]:
    """Return what decisions depend on, by the name of the part."""
    trainer, groups, prompts = view.trainer, view.groups, view.prompts
    generating = view.engines.generation_version
    lines = {
        "step": f"{trainer.step} of {config.run.steps}, phase {trainer.phase}",
        "version": f"{trainer.version} trained, {trainer.published} published, "
        + ("no engine up" if generating is None else f"{generating} generating"),
        "groups": f"{groups.in_flight} in flight, {groups.buffered} buffered, next is {groups.next_group}",
        "targets": targets_of(view, config),
        "buffer": listed(groups.buffer),
        "unanswered": listed(list(groups.unanswered)),
        "engines": "; ".join(
            f"{engine.name} {engine.state} version {engine.version}, {engine.in_flight}/{engine.slots} calls"
            for engine in view.engines.by_name.values()
        ),
        "environment workers": "; ".join(
            f"{worker.name} {worker.state}, {worker.open} environments"
            for worker in view.environment_workers.by_name.values()
        ),
        "prompts": f"next is {prompts.next_prompt}, {len(prompts.returned)} returned, "
        f"{len(prompts.set_aside)} set aside, {len(prompts.quarantined)} items quarantined"
        + (", exhausted" if prompts.exhausted else ""),
        "waits": "; ".join(
            f"{wait.waiter} for {wait.edge}"
            for wait in view.waits.by_waiter.values()
            if "/" not in wait.waiter
        ),
        "stop": trainer.stop_reason,
    }
    return {name: line for name, line in lines.items() if line}


def targets_of(view: View, config: RunConfig) -> str:
    """Return for each target with groups, and for the next step, how many there are of those needed."""
    groups, need = view.groups, config.scheduler.groups_per_step
    flying = {target: count for target, count in groups.in_flight_by_target.items() if count}
    waiting = {target: len(numbers) for target, numbers in groups.buffered_by_target.items() if numbers}
    return "; ".join(
        f"{target}: {waiting.get(target, 0)} buffered, {flying.get(target, 0)} in flight of {need}"
        for target in sorted({view.trainer.step, *flying, *waiting})
    )


def listed(numbers: Sequence[object]) -> str:
    """Return the first of `numbers`, and how many more there are."""
    shown = " ".join(map(str, numbers[:SHOWN]))
    return f"{shown} and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else shown
