"""What a run asks of Ray: bundles of CPUs and GPUs, and which worker lies in which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...core.placement import Ask

ROUNDING = 1e-9


class ClusterRefused(ValueError):
    """The cluster cannot carry this run; the message is one line that says why, and what would do."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one worker is given, and in which bundle of the run's placement group."""

    cpus: float
    gpus: float
    bundle: int | None
    """None: it asks for nothing, and goes anywhere."""


def bundled(asked: Sequence[Ask], *, colocated: bool) -> tuple[dict[str, Place], list[tuple[float, float]]]:
    """Return the place of each worker, and the CPUs and GPUs of each bundle that they lie in.

    A worker has a bundle of its own; colocated, a learner rank lies in that of the engine with its number, and each
    has half of the GPU. Raises `ClusterRefused` where engines have several, of which Ray gives no halves.
    """
    places: dict[str, Place] = {}
    bundles: list[tuple[float, float]] = []
    for ask in asked:
        host = places.get(f"engine-{ask.worker.rpartition('-')[2]}") if ask.role == "learner" else None
        if colocated and host is not None and host.gpus and ask.gpus:
            if host.gpus != 1 or host.bundle is None:
                raise ClusterRefused(
                    f"cluster.placement = 'colocated': {ask.worker} cannot share an engine's {host.gpus:g} GPUs in "
                    "Ray, which divides one alone; give engines one GPU each, or say 'split'"
                )
            cpus, gpus = bundles[host.bundle]
            bundles[host.bundle] = (cpus + ask.cpus, gpus)
            places |= {worker: replace(place, gpus=0.5) for worker, place in places.items() if place is host}
            places[ask.worker] = Place(ask.cpus, 0.5, host.bundle)
        elif ask.cpus or ask.gpus:
            places[ask.worker] = Place(ask.cpus, ask.gpus, len(bundles))
            bundles.append((ask.cpus, ask.gpus))
        else:
            places[ask.worker] = Place(0, 0, None)
    return places, bundles


def misfit(
    asked: Sequence[Ask], bundles: Sequence[tuple[float, float]], nodes: Sequence[tuple[float, float]]
) -> str:
    """Return why `nodes`, each with so many CPUs and GPUs, are too few, in one line; empty: they may do."""
    cpus, gpus = (sum(bundle[part] for bundle in bundles) for part in (0, 1))
    cpus_there, gpus_there = (sum(node[part] for node in nodes) for part in (0, 1))
    if cpus > cpus_there + ROUNDING or gpus > gpus_there + ROUNDING:
        return (
            f"{counted(asked)} ask for {cpus:g} CPUs and {gpus:g} GPUs, it has {cpus_there:g} CPUs and {gpus_there:g} "
            "GPUs; cluster.engine_cpus and its like say how many each is given"
        )
    for cpus, gpus in bundles:
        if not any(cpus <= node[0] and gpus <= node[1] for node in nodes):
            return f"a worker asks for {cpus:g} CPUs and {gpus:g} GPUs on one machine, and none has as many"
    return ""


def counted(asked: Sequence[Ask]) -> str:
    """Return ``2 engines, 1 learner rank and 4 environment workers``."""
    words = {"engine": "engine", "learner": "learner rank", "environment": "environment worker"}
    counts = {role: sum(ask.role == role for ask in asked) for role in words}
    parts = [f"{n} {words[role]}{'s' * (n > 1)}" for role, n in counts.items() if n]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
