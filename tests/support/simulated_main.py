"""``eventrain`` with simulated engines, learner and environment in real time: the whole command without torch.

`environment.options` of the configuration chooses: ``seconds`` of a generation, ``fail`` (the environment raises),
``defect`` (the learner raises what no port may raise), ``hang`` (no answer ever comes), ``equal`` (all rewards are 1).
Checkpoints are files, so that a run that was killed goes on in another process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
import types
from pathlib import Path

from eventrain.adapters.artifacts import FolderArtifacts
from eventrain.adapters.cli.main import main
from eventrain.adapters.clock import SystemClock
from eventrain.adapters.launching import LOCAL, Launcher
from eventrain.adapters.simulated.engine import SimulatedEngine
from eventrain.adapters.simulated.world import (
    NumberedPrompts,
    SimulatedEnvironment,
    SimulatedLearner,
    SimulatedRenderer,
)
from eventrain.core.config import RunConfig
from eventrain.core.ports import EnvironmentFailed, LearnerInfo, Ports, TrainBatch, TrainResult, WrittenFile
from eventrain.events.folder import RunFolder
from eventrain.events.record import Record


class FileLearner(SimulatedLearner):
    """A learner whose weights are a digest of all that it has trained, and whose loss tells it."""

    state = ""

    async def start(self, checkpoint: str | None) -> LearnerInfo:
        info = await super().start(None)
        if checkpoint is None:
            return info
        self.version, self.state = _read(Path(checkpoint))
        return LearnerInfo(self.version, 1, "simulated")

    async def train(self, batch: TrainBatch) -> TrainResult:
        result = await super().train(batch)
        rows = "".join(f"{row.trajectory} {row.advantage}" for row in batch.rows)
        self.state = hashlib.sha256(f"{self.state}{rows}".encode()).hexdigest()
        return TrainResult(int(self.state[:8], 16) / 2**32, result.metrics, result.seconds)

    async def checkpoint(self, path: str) -> WrittenFile:
        _write(Path(path), f"{self.version} {self.state}")
        return WrittenFile(path, 70)


def _read(path: Path) -> tuple[int, str]:
    version, state = (path / "weights").read_text().split()
    return int(version), state


def _write(path: Path, text: str) -> None:
    """Write the checkpoint, whole or not at all, as the real learner does."""
    unfinished = path.with_name(f"{path.name}.partial")
    unfinished.mkdir(parents=True, exist_ok=True)
    (unfinished / "weights").write_text(text)
    if path.exists():  # of steps that do not count any more
        (path / "weights").unlink()
        path.rmdir()
    unfinished.rename(path)


def build(
    config: RunConfig, folder: RunFolder, base: Path, *, after: Record | None = None, launcher: Launcher = LOCAL
) -> Ports:
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
        learner=FileLearner(clock, seconds=seconds, start_s=0.01, on_train=train),
        environments=lambda: SimulatedEnvironment(
            clock,
            turns=2,
            seconds=0.001,
            on_step=step,
            score=lambda item, seed: 1.0 if options.get("equal") else float(seed % 2),
        ),
        prompts=NumberedPrompts(config.data.size or 1),
        renderer=SimulatedRenderer(),
        artifacts=FolderArtifacts(folder.path),
        facts={"code_version": "test", "host": socket.gethostname(), "pid": os.getpid()},
    )


if __name__ == "__main__":
    wire = types.ModuleType("eventrain.adapters.wire")
    wire.build = build  # type: ignore[attr-defined]
    wire.launcher_of = lambda config, base: LOCAL  # type: ignore[attr-defined]
    sys.modules["eventrain.adapters.wire"] = wire
    main()
