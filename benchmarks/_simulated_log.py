"""A long log to read: the shipped run on simulated ports in virtual time, written as a real run writes it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from eventrain.adapters.simulated.engine import SimulatedEngine
from eventrain.adapters.simulated.virtual_time import VirtualClock, run_virtual
from eventrain.adapters.simulated.world import (
    NumberedPrompts,
    SimulatedArtifacts,
    SimulatedEnvironment,
    SimulatedLearner,
    SimulatedPayloads,
    SimulatedRenderer,
)
from eventrain.core.config import RunConfig
from eventrain.core.ports import GenerateRequest, Ports
from eventrain.core.run import Run
from eventrain.events import Bus, LogWriter, RunFolder

PER_STEP, GROUP_SIZE, TURNS = 16, 8, 3
EVENTS_PER_STEP = PER_STEP * GROUP_SIZE * (TURNS * 4 + 7) + 64
"""At least, as counted in such runs."""


def write_log(path: Path, events: int) -> int:
    """Write the log of a run of about `events` events to a new folder; return its last seq.

    Groups of 8 trajectories of 3 turns on 4 engines of 64 slots, generations of a lognormal length, 16 groups a
    step, evaluations and checkpoints now and then. The run is stopped, so its log ends like that of one.
    """
    folder = RunFolder.create(path)
    writer = LogWriter(folder.events, run="bench", epoch=1, first_seq=0, segment_bytes=64 * 2**20)
    writer.start(lambda _seq: None, lambda _error: None)
    last = run_virtual(_run(writer, events))
    writer.close()
    return last


async def _run(writer: LogWriter, events: int) -> int:
    clock = VirtualClock()
    steps = max(4, events * 2 // EVENTS_PER_STEP)
    config = RunConfig.model_validate(
        {
            "run": {"steps": steps},
            "model": {"path": "model"},
            "data": {"kind": "generated", "size": 2 * steps * PER_STEP},
            "environment": {"kind": "number_hunt"},
            "scheduler": {"groups_per_step": PER_STEP, "max_staleness": 2},
            "rollout": {"group_size": GROUP_SIZE, "max_turns": TURNS},
            "eval": {"every_steps": 50, "prompts": 16},
            "checkpoint": {"every_steps": 25},
        }
    )
    choose = random.Random(0)

    def seconds(_: GenerateRequest) -> float:
        return min(20.0, choose.lognormvariate(0.0, 0.7))

    engines = [SimulatedEngine(f"engine-{number}", clock) for number in range(4)]
    for engine in engines:
        engine.seconds = seconds
    learner = SimulatedLearner(clock)
    learner.seconds = 4.0
    ports = Ports(
        clock=clock,
        engines=engines,
        learner=learner,
        environments=lambda: SimulatedEnvironment(clock, turns=TURNS),
        prompts=NumberedPrompts(2 * steps * PER_STEP),
        renderer=SimulatedRenderer(),
        artifacts=SimulatedArtifacts(),
        eval_prompts=NumberedPrompts(16),
    )
    bus = Bus(clock)
    run = Run(config, ports, bus, SimulatedPayloads())
    stop = asyncio.Event()
    log = bus.subscribe("log")
    last = -1

    async def keep() -> None:
        nonlocal last
        async for batch in log:
            for record in batch:
                writer.append(record)
                last = record.seq
            if last >= events - 2000:
                stop.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keep())
        try:
            await run.conduct(stop)
        finally:
            bus.close()
    return last
