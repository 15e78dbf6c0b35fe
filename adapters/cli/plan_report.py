"""What `eventrain plan` says: nodes and devices, memory, pace; for a person, and the same for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import click

from ...core.placement import GIB, Node, Role, Seat
from ..planning.memory import Estimate, checkpoint_bytes, version_bytes
from ..planning.pace import Pace
from ..planning.plan import Plan
from .quantities import seconds, table

WORKERS: tuple[tuple[Role, str], ...] = (
    ("engine", "engine"),
    ("learner", "learner rank"),
    ("environment", "environment worker"),
)
BOUND = {
    "engines": "engines: more of them, or shorter answers",
    "learner": "learner: more ranks, or fewer tokens a step",
    "groups": "time that a group takes: engines and learner have room; more scheduler.max_staleness may help",
}


@dataclass(frozen=True)
class PlanReport:
    """Everything that is said."""

    plan: Plan
    nodes_from: str
    pace: Pace | None
    pace_unknown: str = ""


def plan_table(report: PlanReport) -> dict[str, Any]:
    """Return the facts as one JSON-ready table; its keys stay as they are. Sizes are in bytes."""
    plan = report.plan
    pace = report.pace
    return {
        "run": plan.config.run.name,
        "possible": True,
        "impossible": [],
        "parameters": plan.shape.parameters,
        "version_bytes": version_bytes(plan.shape),
        "checkpoint_bytes": checkpoint_bytes(plan.shape),
        "nodes_from": report.nodes_from,
        "nodes": [
            {
                "node": node.name,
                "cpus": node.cpus,
                "gpus": node.gpus,
                "memory_bytes": node.memory_bytes,
                "gpu_memory_bytes": node.gpu_memory_bytes,
            }
            for node in plan.nodes
        ],
        "workers": [_worker_table(plan, seat) for seat in plan.placement.seats],
        "pace": None
        if pace is None
        else {
            "step_s": pace.step_s,
            "generation_s": pace.generation_s,
            "training_s": pace.training_s,
            "group_s": pace.group_s,
            "lag_mean": pace.lag_mean,
            "bound": pace.bound,
            "source": pace.source,
            "assumed": pace.assumed,
        },
        "pace_unknown": report.pace_unknown,
    }


def impossible_table(run: str, lines: Sequence[str]) -> dict[str, Any]:
    """Return what `plan_table` returns where the run cannot be placed: the lines that say why."""
    return {"run": run, "possible": False, "impossible": list(lines)}


def _worker_table(plan: Plan, seat: Seat) -> dict[str, Any]:
    estimate = plan.estimate(seat)
    return {
        "worker": seat.ask.worker,
        "node": seat.node,
        "gpus": list(seat.gpus),
        "cpus": seat.ask.cpus,
        "memory_bytes": None if estimate is None else {part.name: part.size_bytes for part in estimate.parts},
        "host_bytes": None if estimate is None else estimate.host_bytes,
        "kv_tokens": None if estimate is None else estimate.kv_tokens,
        "kv_contexts": None if estimate is None else plan.contexts(estimate),
    }


def plan_lines(report: PlanReport) -> list[str]:
    """Return the facts as lines for a person, styled for a terminal."""
    plan = report.plan
    return [*_head(report), "", *_devices(plan), "", *_workers(plan), "", *_pace(report), "", *_notes(plan)]


def _head(report: PlanReport) -> list[str]:
    plan, cluster = report.plan, report.plan.config.cluster
    name = click.style(plan.config.run.name, bold=True)
    parameters = _count(plan.shape.parameters)
    kinds = [
        f"{len(list(nodes))} x {what}" if len(plan.nodes) > 1 else what
        for what, nodes in groupby(_node_words(node) for node in plan.nodes)
    ]
    machines = f"{', '.join(kinds)} ({report.nodes_from})"
    counts = Counter(seat.ask.role for seat in plan.placement.seats)
    parts = [_several(counts[role], what) for role, what in WORKERS if counts[role]]
    placement = "colocated" if plan.placement.colocated else "split"
    return [
        f"{name}  a model of {parameters} parameters; {', '.join(parts)}",
        f"{machines}; cluster.kind '{cluster.kind}', {placement}, {cluster.spread}",
    ]


def _several(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _node_words(node: Node) -> str:
    gpus = _several(node.gpus, "GPU")
    if node.gpus and node.gpu_memory_bytes:
        gpus += f" of {_gib(node.gpu_memory_bytes)}"
    return f"{node.cpus:g} CPUs, {_gib(node.memory_bytes)}, {gpus if node.gpus else 'no GPU'}"


def _devices(plan: Plan) -> list[str]:
    rows = [("node", "device", "takes", "of", "workers")]
    for node in plan.nodes:
        for gpu in range(node.gpus):
            seats = plan.placement.on(node.name, gpu)
            takes = sum(estimate.total_bytes for seat in seats if (estimate := plan.estimate(seat)) is not None)
            workers = ", ".join(seat.ask.worker for seat in seats) or "free"
            rows.append((node.name, f"cuda:{gpu}", _gib(takes), _gib(node.gpu_memory_bytes), workers))
        rows.append(_machine_row(plan, node))
    return table(rows, right=(2, 3))


def _machine_row(plan: Plan, node: Node) -> tuple[str, str, str, str, str]:
    """Return the row of the node's own memory, and of the workers that compute on its CPUs."""
    seats = plan.placement.on(node.name)
    takes = 0
    for seat in seats:
        estimate = plan.estimate(seat)
        if estimate is not None:
            takes += estimate.host_bytes if seat.gpus else estimate.total_bytes
    here = [seat.ask.worker for seat in seats if not seat.gpus]
    cpus = f"{sum(seat.ask.cpus for seat in seats):g} of {node.cpus:g} CPUs"
    named = f"{cpus}: {', '.join(_ranges(here))}" if here else cpus
    return (node.name, "machine", _gib(takes), _gib(node.memory_bytes), named)


def _ranges(names: Sequence[str]) -> Iterator[str]:
    """Yield ``environment-0 to environment-7`` for names that follow each other."""
    for _, run in groupby(enumerate(names), key=lambda one: _number(one[1]) - one[0]):
        several = [name for _, name in run]
        yield several[0] if len(several) == 1 else f"{several[0]} to {several[-1]}"


def _number(name: str) -> int:
    role, _, number = name.rpartition("-")
    return int(number) + {"engine": 0, "learner": 10**6}.get(role, 2 * 10**6)


def _workers(plan: Plan) -> list[str]:
    """Return a line for each kind of worker: what it takes, part by part."""
    lines = []
    for role, seats in groupby(plan.placement.seats, key=lambda seat: seat.ask.role):
        seat = next(iter(seats))
        estimate = plan.estimate(seat)
        if estimate is None:
            lines.append("environment: memory unknown")
        else:
            each = " on each GPU" if len(seat.gpus) > 1 else ""
            lines.append(f"{role}: {_gib(estimate.total_bytes)}{each} = {_parts(estimate)}{_holds(plan, estimate)}")
    version, checkpoint = _gib(version_bytes(plan.shape)), _gib(checkpoint_bytes(plan.shape))
    lines.append(f"run folder: {version} for each version of the weights, {checkpoint} for each checkpoint")
    return lines


def _parts(estimate: Estimate) -> str:
    return " + ".join(f"{part.name} {_gib(part.size_bytes)}" for part in estimate.parts)


def _holds(plan: Plan, estimate: Estimate) -> str:
    said = f"; {estimate.note}" if estimate.note else ""
    contexts = plan.contexts(estimate)
    if estimate.kv_tokens is not None and contexts is not None:
        tokens, full = f"{estimate.kv_tokens:,}", plan.config.rollout.context_tokens
        said += f"; room for {tokens} tokens, {contexts:.1f} contexts of {full:,}"
    if estimate.host_bytes:
        said += f"; {_gib(estimate.host_bytes)} of the machine's memory while it loads"
    return said


def _pace(report: PlanReport) -> list[str]:
    pace = report.pace
    if pace is None:
        return [f"step time: {report.pace_unknown}"]
    parts = (
        f"the groups of a step take the engines {seconds(pace.generation_s)}, the trainer is busy "
        f"{seconds(pace.training_s)}, and a group takes {seconds(pace.group_s)} in the mean"
    )
    return [
        f"step time: {seconds(pace.step_s)}, mean lag {pace.lag_mean:.2f}; bound by the {BOUND[pace.bound]}",
        parts,
        f"by {pace.source}",
        f"assumed: {pace.assumed}",
    ]


def _notes(plan: Plan) -> list[str]:
    notes = ["memory is estimated: CUDA's own context, fragmentation and what libraries need for a moment come on top"]
    if plan.config.environment.workers == 0:
        notes.append("environments run in the controller; what they take is not known")
    if plan.config.engine.urls:
        notes.append("servers at engine.urls are not counted: their machines are their own")
    return [click.style(note, dim=True) for note in notes]


def _count(number: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _gib(size_bytes: float) -> str:
    amount = size_bytes / GIB
    if not size_bytes:
        return "-"
    if amount < 0.1:
        return f"{amount * 1024:.0f} MiB"
    return f"{amount:.0f} GiB" if amount >= 9.95 else f"{amount:.1f} GiB"
