"""One simulated run: the shipped core, bus and codec in a seeded world, and what came out.

The world is built from a `Scenario`, and everything in it that varies is drawn from a `Tape`. A run has several
*lives* when its controller is killed: what was durable by then survives, and the next life resumes from it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ...core.config import RunConfig
from ...core.resume import Past, resumption
from ...core.run import Run, RunOutcome
from ...events.bus import Bus
from ...events.codec import encode
from ...events.record import Record
from ...events.types import RunFailed, RunFinished
from .devices import SimulatedDevices
from .faults import Fault
from .scenario import Scenario
from .seeded_loop import Endless, Killed, SeededLoop, seeded_loop
from .seeded_world import SeededWorld
from .tape import Family, Tape
from .virtual_time import Stalled

STEPS_MAX = 3_000_000
DOWN_S = 5.0
"""Virtual seconds between a kill and the resume."""
KILL_PLACES = 1000
"""Places of a run at which it may be killed; 0 is nowhere."""


@dataclass
class Simulated:
    """What came out of one simulated run."""

    scenario: Scenario
    config: RunConfig
    records: list[Record]
    outcome: str
    """How it ended; empty where it did not."""
    seconds: float
    """Virtual ones."""
    steps: int
    """Of the event loop."""
    digest: str
    """Of the schedule and of every byte of the log."""
    struck: Counter[str]
    choices: dict[Family, list[int]]
    trained: list[tuple[str, ...]]
    """What the learner's weights are made of: the trajectories of each step."""
    stalled: str = ""
    errors: list[str] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    """What the shipped ledger found while it ran."""


def simulate(
    scenario: Scenario,
    tape: Tape,
    *,
    evaluating: bool = False,
    killing: bool = False,
    jitter_s: float = 0.02,
) -> Simulated:
    """Run `scenario` once as `tape` says; `killing` kills it once, at an event that the tape picks, and resumes it.

    A run that a full disk ended is then resumed as well: somebody has made room. Raises pydantic's ValidationError
    where its settings are refused.
    """
    config = scenario.run_config(evaluating=evaluating)
    if killing:
        place = tape.draw("fault", KILL_PLACES)
        whole = _lives(scenario, config, tape.twin(), jitter_s, resuming=False)
        at_event = place * len(whole.records) // KILL_PLACES
        kill = Fault(where="run", what="kill", at_event=at_event)
        if place:
            scenario = scenario.model_copy(update={"fault": (*scenario.fault, kill)})
    return _lives(scenario, config, tape, jitter_s, resuming=killing)


def _lives(
    scenario: Scenario, config: RunConfig, tape: Tape, jitter_s: float, *, resuming: bool
) -> Simulated:
    world = SeededWorld(scenario, config, tape)
    digest, steps = blake2b(digest_size=8), 0
    while True:
        with seeded_loop(tape, jitter_s=jitter_s, steps_max=STEPS_MAX, start_s=world.now_s) as loop:
            run = _run(world, config)
            stalled, outcome, killed = "", None, False
            try:
                outcome = loop.run_until_complete(_conducted(run, world, loop))
            except (Stalled, Endless) as error:
                stalled = f"{error}; {_open_waits(run)}"
            except Killed:
                killed = True
            # Taken down before the loop's leftovers are cancelled: what they publish then is no part of the run.
            steps, world.now_s = steps + loop.steps, loop.now_s
            digest.update(loop.digest.encode())
            filled = resuming and world.disk.full
            if killed or filled:
                world.survive()
            else:
                world.records += world.disk.records
            errors = list(loop.errors)
        if not (killed or filled) or errors or _is_over(world.records):
            return _result(scenario, world, run, outcome, stalled, errors, steps, digest)
        world.now_s += DOWN_S
        world.begin()


def _is_over(records: list[Record]) -> bool:
    """Return whether a killed run had reached its end before: there is nothing to resume."""
    return bool(records) and isinstance(records[-1].event, RunFinished | RunFailed)


def _run(world: SeededWorld, config: RunConfig) -> Run:
    """Return the run of a new life: a fresh one, or the one that the surviving log goes on with."""
    ports = world.ports(lambda: run.view)
    if not world.records:
        run = Run(config, ports, Bus(world.clock, world.disk), world.payloads)
        return run
    past = Past.of(world.records)
    opening = resumption(
        past,
        present=world.saved.__contains__,
        readable=lambda ref: ref.offset < len(world.payloads.stored),
        facts={},
    )
    bus = Bus(world.clock, world.disk, next_seq=world.records[-1].seq + 1)
    run = Run(config, ports, bus, world.payloads, past=past, opening=opening)
    return run


async def _conducted(run: Run, world: SeededWorld, loop: SeededLoop) -> RunOutcome:
    def kill() -> None:
        loop.killed = True

    stop = asyncio.Event()
    run.bus.register(world.injector)
    world.injector.on_stop, world.injector.on_kill = stop.set, kill
    try:
        if not world.world.device_s:
            return await run.conduct(stop)
        devices = SimulatedDevices(run, world.clock, world.engines, world.learner, world.world.device_s)
        async with asyncio.TaskGroup() as beside:
            sampling = beside.create_task(devices.publish(), name="devices")
            outcome = await run.conduct(stop)
            sampling.cancel()
        return outcome
    finally:
        run.bus.close()


def _open_waits(run: Run) -> str:
    waits = [f"{wait.waiter} waits for {wait.edge}: needs {wait.awaited}, has {wait.present}"
             for wait in run.view.waits.open.values()]  # fmt: skip
    return " <- ".join(waits) or "no wait is open"


def _result(
    scenario: Scenario,
    world: SeededWorld,
    run: Run,
    outcome: RunOutcome | None,
    stalled: str,
    errors: list[str],
    steps: int,
    digest: Any,
) -> Simulated:
    if world.was_full or world.disk.full:
        world.injector.struck["disk full"] += 1
    for record in world.records:
        digest.update(encode(record))
    return Simulated(
        scenario=scenario,
        config=run.config,
        records=world.records,
        outcome=outcome.outcome if outcome is not None else _ending(world.records),
        seconds=world.now_s,
        steps=steps,
        digest=digest.hexdigest()[:12],
        struck=world.injector.struck,
        choices={family: list(values) for family, values in world.tape.values.items()},
        trained=[tuple(row.trajectory for row in batch.rows) for batch in world.learner.batches],
        stalled=stalled,
        errors=errors,
        breaches=[
            f"{breach.law}: expected {breach.expected}, found {breach.found} (seq {breach.seq})"
            for breach in run.ledger.breaches
        ],
    )


def _ending(records: list[Record]) -> str:
    """Return how the log says that the run ended; empty if it does not."""
    last = records[-1].event if records else None
    return last.outcome if isinstance(last, RunFinished) else "failed" if isinstance(last, RunFailed) else ""
