"""What the controller costs with thousands of trajectories in flight at remote engines over HTTP on loopback.

    python benchmarks/bench_controller.py [--in-flight 4096] [--turns 8] [--quick]

The whole of it runs: scheduler, rollouts, HTTP client, weight sync, log and payloads on disk. Only what is behind the
HTTP interface is a double (`_vllm_double.py`, in processes of its own), and the learner takes no time. Every turn is a
request with the whole conversation so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench_cost import NumberedPrompts, SimulatedArtifacts, opened

from eventrain.adapters.clock import SystemClock
from eventrain.adapters.engine_setup import EngineSetup
from eventrain.adapters.garbage import settle
from eventrain.adapters.simulated.world import SimulatedEnvironment, SimulatedRenderer
from eventrain.adapters.vllm.server import VllmServerEngine
from eventrain.adapters.weights.file import TensorSpec, WeightsWriter
from eventrain.core.config import RunConfig
from eventrain.core.ports import LearnerInfo, Ports, TrainBatch, TrainResult, WrittenFile, WrittenWeights
from eventrain.core.run import Run

TOKENS = 64
"""Sampled in every turn."""
ENGINES = 2
GROUP = 8
MODEL = {
    "model_type": "none",
    "vocab_size": 1000,
    "hidden_size": 1,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 4096,
}
TARGETS = {"CPU per turn": "< 1,000 us", "loop lag p99": "< 50 ms", "memory": "< 1.5 GB"}
LOOK_S = 0.01


@dataclass
class Instantly:
    """A learner that takes no time, and publishes weights of one number."""

    version: int = 0

    async def start(self, checkpoint: str | None) -> LearnerInfo:
        """Come up."""
        return LearnerInfo(0, 1, "none")

    async def train(self, batch: TrainBatch) -> TrainResult:
        """Count."""
        self.version += 1
        return TrainResult(0.5, {}, {})

    async def publish(self, path: str) -> WrittenWeights:
        """Write one number."""
        with WeightsWriter(Path(path), [TensorSpec("w", "F32", (1,))], 2**20) as writer:
            writer.write([self.version.to_bytes(4, "little")])
            size = writer.finish()
        return WrittenWeights(path, size, 1, 1, writer.digest)

    async def checkpoint(self, path: str) -> WrittenFile:
        """Name the checkpoint."""
        return WrittenFile(path, 1)

    async def close(self) -> None:
        """End."""


class Artifacts(SimulatedArtifacts):
    """Weights in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def absolute(self, path: str) -> str:
        """Return the path of the file."""
        (self.folder / path).parent.mkdir(exist_ok=True, parents=True)
        return str(self.folder / path)

    def drop(self, path: str) -> None:
        """Remove it."""
        (self.folder / path).unlink(missing_ok=True)


@contextlib.contextmanager
def doubles(model: Path, seconds: float) -> Iterator[list[str]]:
    """Start the servers, and yield their URLs."""
    script = str(Path(__file__).with_name("_vllm_double.py"))
    with contextlib.ExitStack() as stack:
        urls = []
        for _ in range(ENGINES):
            command = [sys.executable, script, str(model), str(seconds), str(TOKENS)]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            urls.append(f"http://127.0.0.1:{int(process.stdout.readline())}")
        yield urls


def configured(in_flight: int, turns: int, steps: int, urls: list[str]) -> RunConfig:
    """Return a run that keeps `in_flight` trajectories going."""
    groups = in_flight // GROUP
    per_step = groups // 2
    return RunConfig.model_validate(
        {
            "run": {"steps": steps},
            "model": {"path": "none"},
            "data": {"kind": "generated", "size": (steps + 4) * per_step},
            "environment": {"kind": "none"},
            "scheduler": {"groups_per_step": per_step, "max_staleness": 2, "permits": groups},
            "rollout": {
                "group_size": GROUP,
                "max_turns": turns,
                "max_tokens": TOKENS,
                "context_tokens": 4096,
            },
            "engine": {"kind": "vllm_server", "urls": urls, "sync_mode": "in_flight"},
            "checkpoint": {"at_end": False},
        }
    )


async def conduct(config: RunConfig, model: Path, folder: Path) -> tuple[float, float, float, int, float]:
    """Run to the end; return CPU us per turn, lag p50 and p99 in ms, turns, and turns per second."""
    clock = SystemClock()
    with opened(folder) as (bus, payloads):
        setup = EngineSetup("", model, config.engine, config.rollout, folder / "log", config.deadlines)
        engines = [
            VllmServerEngine(replace(setup, name=f"engine-{number}"), url)
            for number, url in enumerate(config.engine.urls)
        ]
        answered = [0]

        def environment() -> SimulatedEnvironment:
            made = SimulatedEnvironment(clock, turns=config.rollout.max_turns, seconds=0.0)

            async def stepped(*_: object) -> None:
                answered[0] += 1

            made.on_step = stepped
            return made

        ports = Ports(
            clock=clock,
            engines=engines,
            learner=Instantly(),
            environments=environment,
            prompts=NumberedPrompts(config.data.size or 1),
            renderer=SimulatedRenderer(),
            artifacts=Artifacts(folder),
        )
        run = Run(config, ports, bus, payloads)
        late_s: list[float] = []
        marks: list[tuple[float, float, int]] = []

        async def look() -> None:
            while True:
                due = time.monotonic() + LOOK_S
                await asyncio.sleep(LOOK_S)
                if run.view.trainer.step >= 1:
                    marks.append((time.monotonic(), time.process_time(), answered[0]))
                    late_s.append(time.monotonic() - due)

        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(look())
            outcome = await run.conduct(asyncio.Event())
            looking.cancel()
        bus.close()
        assert outcome.outcome == "completed", outcome.message
        assert not run.ledger.breaches, run.ledger.breaches
    (began, cpu_began, before), (ended, cpu_ended, after) = marks[0], marks[-1]
    late_s.sort()
    turns = after - before
    return (
        (cpu_ended - cpu_began) / turns * 1e6,
        late_s[len(late_s) // 2] * 1e3,
        late_s[int(len(late_s) * 0.99)] * 1e3,
        turns,
        turns / (ended - began),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--in-flight", type=int, default=4096, help="trajectories")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=6.0, help="mean time of an answer")
    parser.add_argument("--quick", action="store_true", help="a quarter of the trajectories, two steps")
    arguments = parser.parse_args()
    in_flight = arguments.in_flight // 4 if arguments.quick else arguments.in_flight
    settle()
    with tempfile.TemporaryDirectory() as name:
        model, folder = Path(name) / "model", Path(name) / "run"
        model.mkdir()
        folder.mkdir()
        (model / "config.json").write_text(json.dumps(MODEL))
        with doubles(model, arguments.seconds) as urls:
            config = configured(in_flight, arguments.turns, 4, urls)
            cpu_us, p50, p99, turns, rate = asyncio.run(conduct(config, model, folder))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    print(
        f"{in_flight:,} trajectories in flight, {arguments.turns} turns each, {ENGINES} engines over HTTP; "
        f"{turns:,} turns counted, {rate:,.0f} a second\n"
    )
    print(f"{'':16}{'measured':>12}{'limit':>14}")
    print(f"{'CPU per turn':16}{f'{cpu_us:,.0f} us':>12}{TARGETS['CPU per turn']:>14}")
    print(f"{'loop lag p50':16}{f'{p50:.1f} ms':>12}")
    print(f"{'loop lag p99':16}{f'{p99:.1f} ms':>12}{TARGETS['loop lag p99']:>14}")
    print(f"{'memory':16}{f'{memory / 1e9:.2f} GB':>12}{TARGETS['memory']:>14}")


if __name__ == "__main__":
    main()
