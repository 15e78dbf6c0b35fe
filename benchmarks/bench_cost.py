"""What one group costs when generation costs nothing: CPU microseconds per group of the shipped run.

The whole of it runs as in a real run, on the real event loop: collector, rollouts, engine pool, trainer, watchdog,
ledger, log writer and payload store on a disk. Only the ports are instant, and in memory. CPU time is that of the
process, the writer's thread included; it is taken between two steps in the middle of the run, so neither the start
nor the end is in it. Beside it, in the same run: the floor, which is to construct, publish and encode the same
events and nothing else::

    python benchmarks/bench_cost.py [--quick] [--folder DIR]

That so many groups are in flight takes an engine that answers as a busy one does: it holds its requests, and answers
the oldest when a new one comes, so that always the same number of groups moves and all others wait. A configuration
asks for groups of at least two, whose rewards give the baseline; one trajectory per group is set around that check.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import platform
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from eventrain.adapters.clock import SystemClock
from eventrain.adapters.garbage import settle
from eventrain.adapters.simulated.world import NumberedPrompts, SimulatedArtifacts
from eventrain.core.config import RunConfig
from eventrain.core.ports import (
    Action,
    EngineInfo,
    GenerateRequest,
    Generation,
    LearnerInfo,
    Message,
    Payloads,
    Ports,
    Receipt,
    StepOutcome,
    SyncMode,
    TrainBatch,
    TrainResult,
    Weights,
    WrittenFile,
    WrittenWeights,
)
from eventrain.core.run import Run
from eventrain.events import Bus, LogReader, LogWriter, PayloadStore
from eventrain.events.types import PayloadRef

PER_STEP = 256
"""Groups that a step trains."""
MOVING = 16
"""Groups that are not held by the engine, whatever the number in flight."""
TOKENS = 8
"""Sampled in every answer."""
IDLE_S = 0.02
"""Without a new request for so long, the engine answers all it has: the run is ending."""
PEERS = (
    ("SkyRL, generation manager and queue", "27 (64)", "168 (2,560)"),
    ("NeMo-RL, legacy buffer", "28 (32)", "977 (512)"),
    ("NeMo-RL, single controller's buffer", "55 (32)", "319 (512)"),
    ("AReaL, dispatcher", "73", "83"),
    ("prime-rl, dispatcher", "98 (64)", "250 (1,024)"),
    ("miles, fully async rollout", "198 (64)", "394 (1,024)"),
    ("slime, async worker that polls", "8,000 (64)", "837"),
)
"""Microseconds per group with instant generation, in brackets the groups in flight; none of them records events.
Measured on another machine, in August 2026; some are of a part alone, where ours is of the whole run."""


# Ports that cost next to nothing


@dataclass
class InstantEngine:
    """Answers at once when it holds more than `hold` requests, the oldest first."""

    hold: int
    name: str = "engine-0"
    version: int = 0
    _held: deque[asyncio.Future[None]] = field(default_factory=deque)
    _asked: int = 0

    async def prepare(self) -> None:
        """Have nothing to prepare."""

    async def start(self, weights: Weights) -> EngineInfo:
        """Serve, and begin to look whether requests have stopped coming."""
        self.version = weights.version
        self._look(-1)
        return EngineInfo(4096, self.hold + 1, "none")

    def _look(self, asked: int) -> None:
        if asked == self._asked:
            self._answer(0)
        asyncio.get_running_loop().call_later(IDLE_S, self._look, self._asked)

    def _answer(self, keep: int) -> None:
        while len(self._held) > keep:
            held = self._held.popleft()
            if not held.done():
                held.set_result(None)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Answer when it is this request's turn."""
        self._asked += 1
        if self.hold:
            turn = asyncio.get_running_loop().create_future()
            self._held.append(turn)
            self._answer(self.hold)
            await turn
        return Generation([7] * TOKENS, [-1.0] * TOKENS, ((self.version, TOKENS),), "stop", 0.0)

    async def fetch(self, weights: Weights) -> None:
        """Have them."""

    async def pause(self, mode: SyncMode) -> None:
        """Go on."""

    async def begin_update(self, weights: Weights, lease: int) -> None:
        """Make ready."""
        self._announced = weights

    async def transfer(self, bucket: int, lease: int) -> None:
        """Take no time."""

    async def finish_update(self, lease: int) -> Receipt:
        """Take new weights."""
        weights = self._announced
        self.version = weights.version
        return Receipt(weights.version, weights.tensors, weights.digest)

    async def resume(self) -> None:
        """Go on."""

    async def close(self) -> None:
        """End."""


@dataclass
class InstantLearner:
    """Takes no time for a step, and notes what the process had cost when it was asked for one."""

    version: int = 0
    cpu_s: list[float] = field(default_factory=list)
    groups_ended: list[int] = field(default_factory=list)
    ended: Callable[[], int] = lambda: 0

    async def start(self, checkpoint: str | None) -> LearnerInfo:
        """Come up."""
        return LearnerInfo(0, 1, "none")

    async def train(self, batch: TrainBatch) -> TrainResult:
        """Count."""
        self.cpu_s.append(time.process_time())
        self.groups_ended.append(self.ended())
        self.version += 1
        return TrainResult(0.5, {"grad_norm": 1.0}, {})

    async def publish(self, path: str) -> WrittenWeights:
        """Name the weights."""
        return WrittenWeights(path, 1, 1, 1, str(self.version))

    async def checkpoint(self, path: str) -> WrittenFile:
        """Name the checkpoint."""
        return WrittenFile(path, 1)

    async def close(self) -> None:
        """End."""


class InstantEnvironment:
    """One turn, done; the reward is a coin that the seed has thrown."""

    _seed = 0

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Begin."""
        self._seed = seed
        return OPENING

    async def step(self, action: Action) -> StepOutcome:
        """Answer."""
        return DONE

    async def reward(self) -> float:
        """Score."""
        return float(self._seed % 2)


OPENING, DONE = (Message("user", "go"),), StepOutcome(done=True)


class InstantRenderer:
    """Three tokens for every message, and no text."""

    stop_token_ids: Sequence[int] = (2,)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Return three tokens a message."""
        return [5] * 3 * len(messages)

    def reply(self, messages: Sequence[Message], *, after_stop: bool) -> list[int]:
        """Return three tokens a message."""
        return [6] * 3 * len(messages)

    def text(self, token_ids: Sequence[int]) -> str:
        """Return nothing."""
        return ""


class MemoryPayloads:
    """Payloads in memory, the last ones of them, where no disk is to take part."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.count = 0

    def put(self, data: bytes) -> PayloadRef:
        """Keep `data`."""
        self.stored[self.count] = data
        self.stored.pop(self.count - 50_000, None)
        self.count += 1
        return PayloadRef(digest="", length=len(data), pack=1, offset=self.count - 1)

    def get(self, ref: PayloadRef) -> bytes:
        """Return it."""
        return self.stored[ref.offset]


# Measuring


@dataclass(frozen=True)
class Cost:
    """Of one group."""

    cpu_us: float
    events: float
    in_flight: float
    """The mean over the steps that were measured."""
    floor_us: float | None = None


def configured(size: int, in_flight: int, steps: int, per_step: int) -> RunConfig:
    """Return the configuration of a run with groups of `size`, as many in flight as asked for."""
    ahead = -(-in_flight // per_step) + 3  # far enough that only the permits bound what is in flight
    config = RunConfig.model_validate(
        {
            "run": {"steps": steps},
            "model": {"path": "none"},
            "data": {"kind": "generated", "size": (steps + ahead + 1) * per_step},
            "environment": {"kind": "none"},
            "scheduler": {"groups_per_step": per_step, "max_staleness": ahead, "permits": in_flight},
            "rollout": {"max_tokens": 64},
            "checkpoint": {"at_end": False},
        }
    )
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"group_size": size})})


@contextlib.contextmanager
def opened(folder: Path | None) -> Iterator[tuple[Bus, Payloads]]:
    """Yield a bus that writes to `folder`, and the payload store there; both in memory without one."""
    if folder is None:
        yield Bus(SystemClock()), MemoryPayloads()
        return
    events, payloads = folder / "events", folder / "payloads"
    events.mkdir()
    payloads.mkdir()
    with contextlib.closing(PayloadStore(payloads)) as store:
        writer = LogWriter(
            events, run="bench", epoch=1, first_seq=0, segment_bytes=2**26, before_commit=(store.sync,)
        )
        with contextlib.closing(writer):
            yield Bus(SystemClock(), writer), store


async def conduct(config: RunConfig, bus: Bus, payloads: Payloads) -> tuple[InstantLearner, list[int]]:
    """Run to the end; return the learner with what it noted, and how many groups were in flight at each step."""
    size, permits = config.rollout.group_size, config.scheduler.permits_or_default
    learner = InstantLearner()
    ports = Ports(
        clock=SystemClock(),
        engines=[InstantEngine(max(0, permits - MOVING) * size)],
        learner=learner,
        environments=InstantEnvironment,
        prompts=NumberedPrompts(config.data.size or 1),
        renderer=InstantRenderer(),
        artifacts=SimulatedArtifacts(),
    )
    run = Run(config, ports, bus, payloads)
    flying: list[int] = []

    def ended() -> int:
        flying.append(run.view.groups.in_flight)
        return run.view.groups.dispatched - run.view.groups.in_flight

    learner.ended = ended
    outcome = await run.conduct(asyncio.Event())
    bus.close()
    assert outcome.outcome == "completed", outcome.message
    assert not run.ledger.breaches, run.ledger.breaches
    return learner, flying


def measure(size: int, in_flight: int, groups: int, folder: Path | None) -> Cost:
    """Run about `groups` groups and return what one of them cost."""
    per_step = PER_STEP
    ramp = -(-in_flight // per_step) + 3
    steps = max(6, groups // per_step) + 2 * ramp
    config = configured(size, in_flight, steps, per_step)
    with opened(folder) as (bus, payloads):
        learner, flying = asyncio.run(conduct(config, bus, payloads))
        events = bus.next_seq
    first, last = ramp, steps - ramp - 1
    count = learner.groups_ended[last] - learner.groups_ended[first]
    cpu_s = learner.cpu_s[last] - learner.cpu_s[first]
    held = flying[first:last]
    return Cost(cpu_s / count * 1e6, events / (steps * per_step), sum(held) / len(held))


def floor_us(folder: Path, place: Path) -> float:
    """Return the CPU microseconds per group to construct, publish and encode the events in `folder` once more."""
    records = list(LogReader(folder / "events").records())
    made = [(type(record.event), record.event.__dict__, record) for record in records]
    groups = Counter(record.event.kind for record in records)["group_dispatched"]  # type: ignore[attr-defined]

    async def publish(bus: Bus) -> float:
        began = time.process_time()
        for number, (cls, fields, record) in enumerate(made):
            bus.publish(record.actor, cls(**fields), cause=record.cause, corr=record.corr)
            if number % 64 == 0:
                await asyncio.sleep(0)
        await bus.durable(bus.next_seq - 1)
        return time.process_time() - began

    place.mkdir()
    writer = LogWriter(place, run="bench", epoch=1, first_seq=0, segment_bytes=2**26)
    with contextlib.closing(writer):
        return asyncio.run(publish(Bus(SystemClock(), writer))) / groups * 1e6


def rounds(size: int, in_flight: int, groups: int, logged: bool, times: int, base: str | None) -> Cost:
    """Return the median of several measurements, and with a log its floor."""
    costs, floors = [], []
    for _ in range(times):
        gc.collect()
        with tempfile.TemporaryDirectory(dir=base) as name:
            folder = Path(name) / "run"
            folder.mkdir()
            costs.append(measure(size, in_flight, groups, folder if logged else None))
            if logged:
                floors.append(floor_us(folder, Path(name) / "floor"))
    costs.sort(key=lambda cost: cost.cpu_us)
    middle = costs[len(costs) // 2]
    return Cost(middle.cpu_us, middle.events, middle.in_flight, median(floors) if floors else None)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="CPU time of one group, with generation that takes none."
    )
    parser.add_argument("--quick", action="store_true", help="a fifth of the groups, one round")
    parser.add_argument("--folder", help="where to write; default: the system's temporary folder")
    arguments = parser.parse_args()
    groups, times = (1_000, 1) if arguments.quick else (5_000, 3)
    settle()  # as a run of the command line does
    print(f"Instant generation; Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    print("CPU us per group, all threads; target for n = 1 with the log: <= 150, and flat within 20 %\n")
    print(f"{'':24}{'permits':>9}{'in flight':>11}{'us/group':>10}{'floor':>8}{'events':>8}{'us/event':>10}")
    for size, logged in ((1, True), (1, False), (8, True), (8, False)):
        seen = []
        for permits in (32, 128, 1024):
            share = groups if size == 1 else groups // 4
            cost = rounds(size, permits, share, logged, times, arguments.folder)
            seen.append(cost.cpu_us)
            name = f"n = {size}, log {'on, durable' if logged else 'off'}"
            floor = f"{cost.floor_us:,.0f}" if cost.floor_us else "-"
            print(
                f"{name:24}{permits:>9,}{cost.in_flight:>11,.0f}{cost.cpu_us:>10,.0f}{floor:>8}"
                f"{cost.events:>8.1f}{cost.cpu_us / cost.events:>10.1f}",
                flush=True,
            )
        print(f"{'':24}most / least {max(seen) / min(seen):.2f}")
    print("\nOthers, us per group (in flight), measured on another machine, none of them records events:")
    for name, small, large in PEERS:
        print(f"  {name:40}{small:>12}{large:>14}")


if __name__ == "__main__":
    main()
