"""One simulated run: the shipped core, bus and codec in a seeded world, and a verdict on what came out.

The world is built from a `Scenario`, everything in it that varies is drawn from a `Tape`, and the judge knows nothing
of the core's own projections: it reads the log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ...core.config import RunConfig
from ...core.ports import Engine, GenerateRequest, Learner, Ports
from ...core.run import Run, RunOutcome
from ...events.bus import Bus
from ...events.codec import encode
from ...events.record import Record
from .disk import SimulatedDisk
from .faults import FaultyPort, Injector
from .scenario import Scenario, Surroundings
from .seeded_loop import Endless, SeededLoop, seeded_loop
from .tape import Family, Tape
from .virtual_time import Stalled, VirtualClock
from .world import (
    NumberedPrompts,
    SimulatedArtifacts,
    SimulatedEngine,
    SimulatedEnvironment,
    SimulatedLearner,
    SimulatedPayloads,
    SimulatedRenderer,
)

LATENCIES = 32
"""Different latencies that a call may have; the longest ones are rare."""
STEPS_MAX = 3_000_000
EVAL_ITEMS = 20


@dataclass
class Simulated:
    """What came out of one simulated run."""

    scenario: Scenario
    config: RunConfig
    records: list[Record]
    outcome: RunOutcome | None
    seconds: float
    """Virtual ones."""
    steps: int
    """Of the event loop."""
    digest: str
    """Of the schedule and of every byte of the log."""
    struck: Counter[str]
    choices: dict[Family, list[int]]
    stalled: str = ""
    errors: list[str] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    """What the shipped ledger found while it ran."""


class _World:
    """Ports with drawn latencies and an injector in front of them."""

    def __init__(self, scenario: Scenario, config: RunConfig, tape: Tape) -> None:
        self.world, self.config, self.tape = scenario.world, config, tape
        self.clock = VirtualClock()
        self.score = _score(scenario.world, tape)
        self.injector = Injector(scenario.fault, tape, scenario.world.heal_s)
        self.engines = [self._engine(f"engine-{n}") for n in range(self.world.engines)]
        self.learner = SimulatedLearner(self.clock, start_s=self.world.learner_start_s)
        self.learner.on_train = self._train_for
        self.injector.on_die = self._die
        self.disk = SimulatedDisk(self._commit_s, full_at=self.injector.full_at)

    def _late(self, seconds: float) -> float:
        """Return a latency: `seconds`, or by chance up to `spread` times as long."""
        if self.world.spread == 1.0 or not seconds:
            return seconds
        place = self.tape.draw("latency", LATENCIES) / (LATENCIES - 1)
        return seconds * float(1 + (self.world.spread - 1) * place**4)

    def _commit_s(self) -> float:
        return self._late(self.world.commit_s) + self.injector.disk_s()

    async def _train_for(self, batch: Any) -> None:
        self.learner.seconds = self._late(self.world.train_s)

    def _engine(self, name: str) -> SimulatedEngine:
        world, clock = self.world, self.clock

        async def starting(version: int) -> None:
            await clock.sleep(self._late(world.engine_start_s))

        async def loading(version: int) -> None:
            await clock.sleep(self._late(world.load_s))

        return SimulatedEngine(
            name,
            clock,
            seconds=lambda request: self._late(world.rollout_s),
            on_start=starting,
            on_load=loading,
        )

    def _die(self, name: str) -> None:
        for engine in self.engines:
            if engine.name == name:
                engine.die()

    def ports(self, run_view: Callable[[], Any]) -> Ports:
        """Return the ports, each behind the injector."""
        config = self.config
        evaluating = config.eval.every_steps > 0
        return Ports(
            clock=self.clock,
            engines=[self._faulty_engine(engine, run_view) for engine in self.engines],
            learner=self._faulty_learner(),
            environments=self._environment,
            prompts=NumberedPrompts(config.data.size or 1),
            renderer=SimulatedRenderer(),
            artifacts=SimulatedArtifacts(),
            eval_prompts=NumberedPrompts(EVAL_ITEMS) if evaluating else None,
        )

    def _faulty_engine(self, engine: SimulatedEngine, run_view: Callable[[], Any]) -> Engine:
        name = engine.name

        def plain(*_: object) -> dict[str, object]:
            return {"engine": name}

        def versioned(_: str, version: int) -> dict[str, object]:
            return {"engine": name, "version": version}

        def request(asked: GenerateRequest) -> dict[str, object]:
            return {"engine": name, "version": engine.version, **_about_request(asked, run_view())}

        about = dict.fromkeys(("prepare", "pause", "resume", "close"), plain)
        port: Any = FaultyPort(
            engine,
            "engine",
            self.injector,
            {**about, "start": versioned, "load": versioned, "generate": request},
        )
        return port  # type: ignore[no-any-return]

    def _faulty_learner(self) -> Learner:
        learner = self.learner

        def about(*_: object) -> dict[str, object]:
            return {"version": learner.version}

        calls = dict.fromkeys(("start", "train", "publish", "checkpoint"), about)
        port: Any = FaultyPort(learner, "learner", self.injector, calls)
        return port  # type: ignore[no-any-return]

    def _environment(self) -> Any:
        world = self.world
        made = SimulatedEnvironment(
            self.clock, turns=world.turns, seconds=self._late(world.environment_s), score=self.score
        )

        def begun(item: dict[str, int], _seed: int) -> dict[str, object]:
            return {"prompt": item["number"]}

        def asked(*_: object) -> dict[str, object]:
            return {"prompt": made._item["number"]}

        return FaultyPort(
            made, "environment", self.injector, {"reset": begun, "step": asked, "reward": asked}
        )


def _score(world: Surroundings, tape: Tape) -> Callable[[Any, int], float]:
    by_chance: dict[int, bool] = {}

    def score(item: dict[str, int], seed: int) -> float:
        number = item["number"]
        equal = world.rewards == "equal" or (world.rewards == "every_third_equal" and number % 3 == 2)
        if world.rewards == "any":
            if number not in by_chance:
                by_chance[number] = tape.happens("data", 3)
            equal = by_chance[number]
        return 1.0 if equal else float(seed % 2)

    return score


def _about_request(asked: GenerateRequest, view: Any) -> dict[str, object]:
    """Return what a rule may ask about a request: ``57/3/0+1`` is trajectory 3 of group 57, attempt 1."""
    path, _, attempt = asked.request.partition("+")
    owner, trajectory, _ = path.split("/")
    about: dict[str, object] = {"attempt": int(attempt or 0)}
    if owner.isdecimal():
        about["trajectory"] = int(trajectory)
        group = view.groups.live.get(int(owner))
        if group is not None:
            about["prompt"] = group.prompt
    return about


def simulate(
    scenario: Scenario, tape: Tape, *, evaluating: bool = False, jitter_s: float = 0.02
) -> Simulated:
    """Run `scenario` once as `tape` says. Raises pydantic's ValidationError where its settings are refused."""
    config = scenario.run_config(evaluating=evaluating)
    world = _World(scenario, config, tape)
    with seeded_loop(tape, jitter_s=jitter_s, steps_max=STEPS_MAX) as loop:
        bus = Bus(world.clock, world.disk)
        run = Run(config, world.ports(lambda: run.view), bus, SimulatedPayloads())
        bus.register(world.injector)
        stalled, outcome = "", None
        try:
            outcome = loop.run_until_complete(_conducted(run, bus, world.injector))
        except (Stalled, Endless) as error:
            stalled = f"{error}; {_open_waits(run)}"
        return _result(scenario, config, world, loop, run, outcome, stalled)


async def _conducted(run: Run, bus: Bus, injector: Injector) -> RunOutcome:
    stop = asyncio.Event()
    injector.on_stop = stop.set
    try:
        return await run.conduct(stop)
    finally:
        bus.close()


def _open_waits(run: Run) -> str:
    waits = [f"{wait.waiter} waits for {wait.edge}: needs {wait.awaited}, has {wait.present}"
             for wait in run.view.waits.open.values()]  # fmt: skip
    return " <- ".join(waits) or "no wait is open"


def _result(
    scenario: Scenario,
    config: RunConfig,
    world: _World,
    loop: SeededLoop,
    run: Run,
    outcome: RunOutcome | None,
    stalled: str,
) -> Simulated:
    """Take down everything before the loop's leftovers are cancelled: what they publish then is no part of it."""
    records = list(world.disk.records)
    if world.disk.full:
        world.injector.struck["disk full"] += 1
    content = blake2b(loop.digest.encode(), digest_size=8)
    for record in records:
        content.update(encode(record))
    return Simulated(
        scenario=scenario,
        config=config,
        records=records,
        outcome=outcome,
        seconds=loop.now_s,
        steps=loop.steps,
        digest=content.hexdigest()[:12],
        struck=world.injector.struck,
        choices={family: list(values) for family, values in world.tape.values.items()},
        stalled=stalled,
        errors=loop.errors,
        breaches=[
            f"{breach.law}: expected {breach.expected}, found {breach.found} (seq {breach.seq})"
            for breach in run.ledger.breaches
        ],
    )
