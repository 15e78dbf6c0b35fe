"""What a run asks of Ray: bundles of CPUs and GPUs, and which worker lies in which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...core.placement import Ask
from ..launching import LauncherRefused


class ClusterRefused(LauncherRefused):
    """The cluster cannot carry this run."""


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
