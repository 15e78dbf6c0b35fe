"""Devices: who is busy, and with what, while the run goes on."""

from __future__ import annotations

import os
from collections.abc import Callable

from ....core.config import RunConfig
from ....core.ports import Ports
from .loop_lag import LoopLagSampler
from .nvidia import NvidiaSource
from .processes import HasProcess, HasProcesses, ProcessSource, Watched
from .ray_nodes import RaySource
from .sampler import DeviceSampler
from .source import DeviceSource, Reading, SourceAbsent, SourceFailed

__all__ = [
    "DeviceSampler",
    "DeviceSource",
    "HasProcess",
    "HasProcesses",
    "LoopLagSampler",
    "NvidiaSource",
    "ProcessSource",
    "RaySource",
    "Reading",
    "SourceAbsent",
    "SourceFailed",
    "sources_for",
]


def sources_for(config: RunConfig, ports: Ports) -> list[DeviceSource]:
    """Return what can measure the devices of this run; nothing is opened, and no library loaded.

    With ``telemetry.devices = "auto"`` that is whatever this machine has. Pages of Ray nodes are looked at wherever
    they are named.
    """
    telemetry = config.telemetry
    nodes: list[DeviceSource] = [RaySource(url) for url in telemetry.ray_metrics]
    if telemetry.devices == "off":
        return nodes
    return [ProcessSource(_watched(config, ports)), NvidiaSource(), *nodes]


def _watched(config: RunConfig, ports: Ports) -> list[Watched]:
    engines = [
        Watched(f"cpu:{engine.name}", "engine", config.engine.threads, _pid_of(engine))
        for engine in ports.engines
        if isinstance(engine, HasProcess)
    ]
    watched = [Watched("cpu:controller", "controller", 1, os.getpid), *engines]
    learner, threads, ranks = ports.learner, config.learner.threads, config.learner.ranks
    if isinstance(learner, HasProcesses) and ranks > 1:
        watched += [
            Watched(f"cpu:learner-{rank}", "learner", threads, _pid_of_rank(learner, rank)) for rank in range(ranks)
        ]
    elif isinstance(learner, HasProcess):
        watched.append(Watched("cpu:learner", "learner", threads, _pid_of(learner)))
    return watched


def _pid_of(part: HasProcess) -> Callable[[], int | None]:
    return lambda: part.pid


def _pid_of_rank(learner: HasProcesses, rank: int) -> Callable[[], int | None]:
    return lambda: pids[rank] if (pids := learner.pids) else None
