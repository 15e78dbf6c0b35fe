"""What a run asks of the machines: one ask for every process that it starts elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .config import RunConfig
from .projections.environment_workers import worker_name

Role = Literal["engine", "learner", "environment"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What one worker needs."""

    worker: str
    """``engine-0``, ``learner-1``, ``environment-0``: as its launcher knows it."""
    role: Role
    cpus: float
    gpus: float
    """Below 1 where it shares a GPU with another worker."""


def asks(config: RunConfig, *, gpus_there: bool) -> list[Ask]:
    """Return what `config` asks for, engines first, then learner ranks, then environment workers.

    `gpus_there` says whether the machines have GPUs; where they have not, nothing asks for one that does not have to.
    Servers that run already (`engine.urls`) ask for nothing.
    """
    cluster, engine, learner = config.cluster, config.engine, config.learner
    on_gpu = {
        "engine": gpus_there and engine.device != "cpu",
        "learner": gpus_there and learner.device != "cpu",
    }
    default = {
        "engine": float(engine.tensor_parallel if engine.kind != "torch" else 1),
        "learner": 1.0,
    }
    said = {"engine": cluster.engine_gpus, "learner": cluster.learner_gpus}
    gpus = {
        role: float(wanted) if (wanted := said[role]) is not None else default[role] * on_gpu[role]
        for role in on_gpu
    }
    started = 0 if engine.urls else engine.count
    return [
        *(Ask(f"engine-{n}", "engine", cluster.engine_cpus, gpus["engine"]) for n in range(started)),
        *(Ask(f"learner-{n}", "learner", cluster.learner_cpus, gpus["learner"]) for n in range(learner.ranks)),
        *(
            Ask(worker_name(n), "environment", cluster.environment_cpus, 0.0)
            for n in range(config.environment.workers)
        ),
    ]
