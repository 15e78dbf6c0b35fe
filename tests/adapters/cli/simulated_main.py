"""``eventrain`` with simulated engines, learner and environment in real time: the whole command without torch.

`environment.options` of the configuration chooses: ``seconds`` of a generation, ``fail`` (the environment raises),
``defect`` (the learner raises what no port may raise), ``hang`` (no answer ever comes), ``equal`` (all rewards are 1).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import types
from pathlib import Path

from eventrain.adapters.cli.main import main
from eventrain.adapters.clock import SystemClock
from eventrain.adapters.simulated.world import (
    NumberedPrompts,
    SimulatedArtifacts,
    SimulatedEngine,
    SimulatedEnvironment,
    SimulatedLearner,
    SimulatedRenderer,
)
from eventrain.core.config import RunConfig
from eventrain.core.ports import EnvironmentFailed, Ports
from eventrain.events.folder import RunFolder
from eventrain.events.record import Record


def build(config: RunConfig, folder: RunFolder, base: Path, *, after: Record | None = None) -> Ports:
    options = config.environment.options
    if options.get("refuse"):
        raise ValueError(f"environment '{config.environment.kind}': no such class")
    clock = SystemClock(after)
    seconds = float(options.get("seconds", 0.01))

    async def step(*_: object) -> None:
        if options.get("fail"):
            raise EnvironmentFailed("ZeroDivisionError: division by zero")

    async def generate(*_: object) -> None:
        if options.get("hang"):
            await asyncio.Event().wait()

    async def train(*_: object) -> None:
        if options.get("defect"):
            raise KeyError("no such weight")

    return Ports(
        clock=clock,
        engines=[SimulatedEngine("e0", clock, seconds=lambda _: seconds, on_generate=generate)],
        learner=SimulatedLearner(clock, seconds=seconds, start_s=0.01, on_train=train),
        environments=lambda: SimulatedEnvironment(
            clock,
            turns=2,
            seconds=0.001,
            on_step=step,
            score=lambda item, seed: 1.0 if options.get("equal") else float(seed % 2),
        ),
        prompts=NumberedPrompts(config.data.size or 1),
        renderer=SimulatedRenderer(),
        artifacts=SimulatedArtifacts(),
        facts={"code_version": "test", "host": socket.gethostname(), "pid": os.getpid()},
    )


if __name__ == "__main__":
    wire = types.ModuleType("eventrain.adapters.wire")
    wire.build = build  # type: ignore[attr-defined]
    sys.modules["eventrain.adapters.wire"] = wire
    main()
