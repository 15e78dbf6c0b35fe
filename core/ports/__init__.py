"""The ports: what core/ asks of the outside world, as Protocols, plain data and typed errors.

Everything that core/ awaits and that is not the bus is one of these. An adapter implements a Protocol and raises
only the errors of `errors`; any other exception is a defect of the adapter and ends the run as its first cause.

Cancellation, for every async method here: cancelling the call abandons the effect (a request is aborted in the
engine, a step of an environment is no longer waited for) and leaves the adapter usable, unless the docstring says
otherwise. Deadlines are core/'s: it cancels what takes too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .clock import Clock
from .data import PromptSource, Renderer
from .engine import Engine, EngineInfo, GenerateRequest, Generation, Receipt, SyncMode, Weights
from .environment import (
    Action,
    Environment,
    EnvironmentFactory,
    EnvironmentWorker,
    EnvironmentWorkerInfo,
    HeldEnvironment,
    Message,
    StepOutcome,
)
from .errors import (
    CheckpointError,
    EngineError,
    EngineGone,
    EnvironmentFailed,
    EnvironmentWorkerGone,
    LearnerGone,
    PortError,
    PromptRefused,
    PromptTooLong,
)
from .learner import Learner, LearnerInfo, TrainBatch, TrainResult, TrainRow, WrittenFile, WrittenWeights
from .storage import Artifacts, Payloads

__all__ = [
    "Action",
    "Artifacts",
    "CheckpointError",
    "Clock",
    "Engine",
    "EngineError",
    "EngineGone",
    "EngineInfo",
    "Environment",
    "EnvironmentFactory",
    "EnvironmentFailed",
    "EnvironmentWorker",
    "EnvironmentWorkerGone",
    "EnvironmentWorkerInfo",
    "GenerateRequest",
    "Generation",
    "HeldEnvironment",
    "Learner",
    "LearnerGone",
    "LearnerInfo",
    "Message",
    "Payloads",
    "PortError",
    "Ports",
    "PromptRefused",
    "PromptSource",
    "PromptTooLong",
    "Receipt",
    "Renderer",
    "StepOutcome",
    "SyncMode",
    "TrainBatch",
    "TrainResult",
    "TrainRow",
    "Weights",
    "WrittenFile",
    "WrittenWeights",
]


@dataclass(slots=True)
class Ports:
    """Everything a run needs from outside, in one place."""

    clock: Clock
    engines: Sequence[Engine]
    learner: Learner
    environments: EnvironmentFactory
    prompts: PromptSource
    renderer: Renderer
    artifacts: Artifacts
    eval_prompts: PromptSource | None = None
    environment_workers: Sequence[EnvironmentWorker] = ()
    """Where environments live; none: in the controller, made by `environments`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What RunStarted says of the surroundings: ``code_version``, ``host``, ``pid``."""
