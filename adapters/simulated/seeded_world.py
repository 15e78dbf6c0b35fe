"""The world of a simulated run: what outlives its controller, with drawn latencies and faults at every port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.config import RunConfig
from ...core.ports import Engine, EnvironmentWorker, GenerateRequest, Learner, Ports, TrainBatch, Weights
from ...core.projections.environment_workers import worker_name
from ...events.record import Record
from .disk import SimulatedDisk
from .engine import SimulatedEngine
from .environment_worker import SimulatedEnvironmentWorker
from .faults import FaultyPort, Injector
from .scenario import Scenario, Surroundings
from .tape import Tape
from .virtual_time import VirtualClock
from .world import (
    NumberedPrompts,
    SimulatedArtifacts,
    SimulatedEnvironment,
    SimulatedLearner,
    SimulatedPayloads,
    SimulatedRenderer,
)

LATENCIES = 32
"""Different latencies that a call may have; the longest ones are rare."""
EVAL_ITEMS = 20
"""Of the eval set of a run that evaluates."""


class SeededWorld:
    """What outlives the controller, and for each of its lives ports with drawn latencies behind an injector."""

    def __init__(self, scenario: Scenario, config: RunConfig, tape: Tape) -> None:
        self.world, self.config, self.tape = scenario.world, config, tape
        self.clock = VirtualClock()
        self.score = _score(scenario.world, tape)
        self.injector = Injector(scenario.fault, tape, scenario.world.heal_s)
        self.injector.on_die = self._die
        self.payloads = SimulatedPayloads()
        self.saved: dict[str, list[TrainBatch]] = {}
        self.records: list[Record] = []
        """The log, as far as it has survived the lives before this one."""
        self.now_s = 0.0
        self.was_full = False
        self.begin()

    def begin(self) -> None:
        """Start the processes and the log writer of a life: none of the one before is left."""
        self.engines = [self._engine(f"engine-{n}") for n in range(self.world.engines)]
        workers = self.config.environment.workers
        self.workers = [self._worker(worker_name(number)) for number in range(workers)]
        self.learner = SimulatedLearner(
            self.clock, start_s=self.world.learner_start_s, saved=self.saved
        )
        self.learner.on_train = self._train_for
        full_at = None if self.was_full else self.injector.full_at
        self.disk = SimulatedDisk(self._commit_s, full_at=full_at)

    def survive(self) -> None:
        """Keep what the disk has of a killed life: what was durable, and by chance the commit on its way."""
        kept = self.disk.durable_seq
        self.was_full = self.was_full or self.disk.full
        if not self.disk.full and self.disk.committing_seq > kept and self.tape.draw("fault", 2):
            kept = self.disk.committing_seq
        self.records += [record for record in self.disk.records if record.seq <= kept]

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

    def _worker(self, name: str) -> SimulatedEnvironmentWorker:
        async def starting() -> None:
            await self.clock.sleep(self._late(self.world.worker_start_s))

        return SimulatedEnvironmentWorker(name, self._environment, on_start=starting)

    def _die(self, name: str) -> None:
        deaths = {process.name: process.die for process in self.engines}
        deaths |= {process.name: process.die for process in self.workers}
        deaths.get(name, lambda: None)()

    def ports(self, run_view: Callable[[], Any]) -> Ports:
        """Return the ports, each behind the injector."""
        config = self.config
        evaluating = config.eval.every_steps > 0
        return Ports(
            clock=self.clock,
            engines=[self._faulty_engine(engine, run_view) for engine in self.engines],
            learner=self._faulty_learner(),
            environments=self._environment,
            environment_workers=[self._faulty_worker(worker) for worker in self.workers],
            prompts=_FaultyPrompts(config.data.size or 1, self.injector),
            renderer=SimulatedRenderer(),
            artifacts=SimulatedArtifacts(saved=self.saved),
            eval_prompts=NumberedPrompts(EVAL_ITEMS) if evaluating else None,
        )

    def _faulty_engine(self, engine: SimulatedEngine, run_view: Callable[[], Any]) -> Engine:
        name = engine.name

        def plain(*_: object) -> dict[str, object]:
            return {"engine": name}

        announced = -1

        def versioned(weights: Weights, *_: object) -> dict[str, object]:
            nonlocal announced
            announced = weights.version
            return {"engine": name, "version": announced}

        def updating(*_: object) -> dict[str, object]:
            return {"engine": name, "version": announced}

        def request(asked: GenerateRequest) -> dict[str, object]:
            return {"engine": name, "version": engine.version, **_about_request(asked, run_view())}

        about = dict.fromkeys(("prepare", "pause", "resume", "close"), plain)
        port: Any = FaultyPort(
            engine,
            "engine",
            self.injector,
            {
                **about,
                "start": versioned,
                "fetch": versioned,
                "begin_update": versioned,
                "transfer": updating,
                "finish_update": updating,
                "generate": request,
            },
        )
        return port  # type: ignore[no-any-return]

    def _faulty_worker(self, worker: SimulatedEnvironmentWorker) -> EnvironmentWorker:
        def about(*_: object) -> dict[str, object]:
            return {"worker": worker.name}

        calls = {"start": about, "ping": about}
        port: Any = FaultyPort(worker, "environment_worker", self.injector, calls)
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


@dataclass(frozen=True)
class _FaultyPrompts(NumberedPrompts):
    """Items that a rule may make a defect of: the collector's own port."""

    injector: Injector

    def item(self, epoch: int, position: int) -> tuple[int, Mapping[str, Any]]:
        """Return item `position`, or raise."""
        self.injector.check("data.item")
        return NumberedPrompts.item(self, epoch, position)


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
    path, _, attempt = asked.request.partition(".")[0].partition("+")
    owner, trajectory, _ = path.split("/")
    about: dict[str, object] = {"attempt": int(attempt or 0)}
    if owner.isdecimal():
        about["trajectory"] = int(trajectory)
        group = view.groups.live.get(int(owner))
        if group is not None:
            about["prompt"] = group.prompt
    return about
