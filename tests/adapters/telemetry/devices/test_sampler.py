"""The actor that samples, in virtual time under seeds, and its thread for real."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from worlds import World, config

from eventrain.adapters.clock import SystemClock
from eventrain.adapters.simulated.seeded_loop import run_seeded
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.simulated.virtual_time import VirtualClock, run_virtual
from eventrain.adapters.telemetry.devices import sources_for
from eventrain.adapters.telemetry.devices.loop_lag import Lags, LoopLagSampler
from eventrain.adapters.telemetry.devices.pools import DevicePools
from eventrain.adapters.telemetry.devices.sampler import DEADLINE_S, GAP_S, DeviceSampler
from eventrain.adapters.telemetry.devices.source import Reading, SourceAbsent
from eventrain.adapters.telemetry.devices.worker_thread import WorkerThread
from eventrain.core.projections import View
from eventrain.events.bus import Bus
from eventrain.events.record import Record
from eventrain.events.types import (
    LOOP_LAG_BOUNDS_S,
    DeviceSampled,
    EngineUp,
    Event,
    LearnerUp,
    LoopLagSampled,
    PhaseEntered,
    RunFinished,
    RunStarted,
    TelemetryDegraded,
)

T = TypeVar("T")
STARTED = RunStarted(
    run="r", config=config().model_dump(mode="json"), code_version="", seed=0, host="", pid=0, prompts=1
)
FINISHED = RunFinished(outcome="completed", steps=0, version=0, seconds=0)


class AtOnce:
    """Makes calls where it is asked, in no time: virtual time has no threads."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def ask(self, work: Callable[[], T]) -> T:
        result = work()
        if asyncio.iscoroutine(result):
            await result
        return result

    def end(self, work: Callable[[], object]) -> None:
        work()


@dataclass
class Always:
    """A source that is always at half its device, or does what `then` says."""

    name: str = "made up"
    exact: bool = True
    then: Callable[[int], Any] = lambda call: None
    absent: bool = False
    calls: int = 0
    closed: int = 0
    since_s: float = 0.0
    device: str = "cuda:0"

    def open(self) -> None:
        if self.absent:
            raise SourceAbsent("nothing here")
        self.since_s = asyncio.get_running_loop().time()

    def sample(self) -> Any:
        self.calls += 1
        said = self.then(self.calls)
        if said is not None:
            return said
        now_s = asyncio.get_running_loop().time()
        window_s, self.since_s = now_s - self.since_s, now_s
        return [Reading(self.device, None, 0.5, 0, window_s, self.name)]

    def close(self) -> None:
        self.closed += 1


@dataclass
class Stage:
    """A bus with a script of phases on it, and the sampler beside it."""

    script: Sequence[tuple[float, Any]]
    """(seconds, event): the script waits so long, then publishes."""
    sources: Sequence[Any] = field(default_factory=lambda: [Always()])
    interval_s: float = 1.0
    log: list[Record] = field(default_factory=list)
    unsaved_max: int = 4096
    bus_of: Callable[[Any], Bus] = Bus

    async def play(self) -> Stage:
        clock = VirtualClock()
        bus = self.bus = self.bus_of(clock)
        view = bus.register(View())
        bus.register(self)
        sampler = DeviceSampler(
            bus, clock, self.sources, self.interval_s, view, unsaved_max=self.unsaved_max, worker=AtOnce
        )
        bus.publish("run", STARTED)

        async def act() -> None:
            for seconds, event in self.script:
                await asyncio.sleep(seconds)
                bus.publish("trainer", event)
            await asyncio.sleep(0.1)
            bus.publish("run", FINISHED)
            bus.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sampler.run())
            tasks.create_task(act())
        return self

    def apply(self, record: Record) -> None:
        self.log.append(record)

    def times(self) -> list[float]:
        return [
            round((r.mono - self.log[0].mono) / 1e9, 6)
            for r in self.log
            if isinstance(r.event, DeviceSampled)
        ]

    def degraded(self) -> list[TelemetryDegraded]:
        return [r.event for r in self.log if isinstance(r.event, TelemetryDegraded)]


def entered(phase: Any) -> PhaseEntered:
    return PhaseEntered(phase=phase, step=0)


def play(stage: Stage) -> Stage:
    return run_virtual(stage.play())


SCRIPT = [(2.5, entered("training")), (0.25, entered("weight_sync")), (1.75, entered("generating"))]


def test_samples_are_taken_every_interval_and_where_phases_change() -> None:
    """The interval runs from sample to sample; a change of phase ends a window at that instant."""
    assert play(Stage(SCRIPT)).times() == [1.0, 2.0, 2.5, 2.75, 3.75, 4.5]


def test_phases_that_change_fast_share_a_window() -> None:
    """Two changes within 20 ms are followed by one sample, 20 ms after the one before."""
    script = [(0.5, entered("training")), (0.005, entered("eval")), (0.005, entered("checkpoint"))]
    assert play(Stage(script)).times() == [0.5, 0.5 + GAP_S]


def test_a_source_that_is_not_exact_keeps_to_the_interval() -> None:
    """Where windows do not end when they are read, changes of phase are not worth a look."""
    assert play(Stage(SCRIPT, [Always(exact=False)])).times() == [1.0, 2.0, 3.0, 4.0]


def test_the_windows_cover_the_time_once() -> None:
    """Windows end where they are published and add up to the time of the last one."""
    stage = play(Stage(SCRIPT))
    windows = [r.event.window_s for r in stage.log if isinstance(r.event, DeviceSampled)]
    assert sum(windows) == pytest.approx(stage.times()[-1])


@pytest.mark.parametrize("seed", range(20))
def test_nothing_follows_the_end_of_the_run(seed: int) -> None:
    """Under any order of tasks and lateness of timers the last event is the run's end, and all sources are closed."""
    script = [(0.1 * n, entered("training" if n % 2 else "generating")) for n in range(6)]
    sources = [Always(), Always("second", then=lambda call: 1 / 0)]
    stage, _ = run_seeded(Stage(script, sources, interval_s=0.3).play(), Tape(seed))
    assert isinstance(stage.log[-1].event, RunFinished)
    assert [source.closed for source in sources] == [1, 1]


def stopped_by(stop: Callable[[Bus, asyncio.Task[None]], object], source: Always) -> list[Event]:
    """Sample for 2.5 s, stop as `stop` says, and return the events once the actor has ended."""

    async def go() -> list[Event]:
        clock = VirtualClock()
        bus = Bus(clock)
        view, seen = bus.register(View()), bus.register(Seen())
        sampler = DeviceSampler(bus, clock, [source], 1.0, view, worker=AtOnce)
        bus.publish("run", STARTED)
        task = asyncio.get_running_loop().create_task(sampler.run())
        await asyncio.sleep(2.5)
        stop(bus, task)
        await asyncio.wait({task}, timeout=5)
        assert task.done()
        assert task.cancelled() or task.exception() is None
        return seen.events

    return run_virtual(go())


def test_a_closed_bus_ends_it() -> None:
    """A run that was torn down before it could say so gets no more samples, and nothing is raised."""
    source = Always()
    assert len(stopped_by(lambda bus, task: bus.close(), source)) == 1 + 2
    assert source.closed == 1


def test_cancelled_it_stops_at_once() -> None:
    """What a source is just reading is not published, and what it held is let go of."""
    source = Always(then=lambda call: asyncio.sleep(3))
    assert len(stopped_by(lambda bus, task: task.cancel(), source)) == 1
    assert source.closed == 1


def test_a_source_that_fails_now_and_then_stays() -> None:
    """One failure costs one sample, and nobody is told."""
    stage = play(Stage(SCRIPT, [Always(then=lambda call: 1 / 0 if call in {1, 3} else None)]))
    assert len(stage.times()) == 4
    assert stage.degraded() == []


def test_a_source_that_keeps_failing_is_given_up_once() -> None:
    """The third failure in a row is reported with its message, and the others go on."""
    bad, good = Always("bad", then=lambda call: 1 / 0), Always("good")
    stage = play(Stage([(9.5, entered("eval"))], [bad, good]))
    assert bad.calls == 3
    assert len(stage.times()) == 10
    assert stage.degraded() == [
        TelemetryDegraded(
            part="devices",
            missing="samples of bad: division by zero",
            works="samples of good",
        )
    ]


def test_a_source_that_hangs_is_given_up_and_holds_nobody() -> None:
    """No answer within its deadline: reported once, while the other is sampled all the time."""

    def hang(call: int) -> Any:
        return asyncio.sleep(3600)

    stage = play(Stage([(19.5, entered("eval"))], [Always("hung", then=hang), Always("good")]))
    assert len(stage.times()) == 20
    (said,) = stage.degraded()
    assert said.missing == f"samples of hung: no answer within {DEADLINE_S:g} s"


def test_what_is_absent_is_not_reported() -> None:
    """A machine without GPUs is no fault; the run's log has nothing about it."""
    stage = play(Stage(SCRIPT, [Always(absent=True)]))
    assert [type(record.event).__name__ for record in stage.log][-1] == "RunFinished"
    assert stage.times() == []
    assert stage.degraded() == []


def test_no_sample_is_added_to_a_log_that_is_far_behind() -> None:
    """While more events wait for the disk than allowed, nothing is asked; the window after covers that time."""

    class Behind(Bus):
        @property
        def unsaved(self) -> int:
            return 100 if 1.5 < asyncio.get_running_loop().time() < 3.5 else 0

    stage = play(Stage([(4.5, entered("eval"))], unsaved_max=99, bus_of=Behind))
    windows = [r.event.window_s for r in stage.log if isinstance(r.event, DeviceSampled)]
    assert windows == [1.0, 3.0, 0.5]


def test_pools_are_what_engines_and_learner_said() -> None:
    """One GPU each: its own pool. The same GPU, or one that nobody named: shared. 'cuda' is the first."""
    pools = DevicePools()

    def told(event: Any) -> None:
        pools.apply(Record(0, 0, 0, "", None, "", event))

    told(EngineUp(engine="engine-0", version=0, context_tokens=1, slots=1, device="cuda"))
    told(EngineUp(engine="engine-1", version=0, context_tokens=1, slots=1, device="cuda:1"))
    told(LearnerUp(version=0, parameters=1, device="cuda:2"))
    assert [pools.pool_of(f"cuda:{n}") for n in range(4)] == ["engine", "engine", "learner", "shared"]
    told(LearnerUp(version=0, parameters=1, device="cuda:0"))
    assert pools.pool_of("cuda:0") == "shared"


def test_samples_say_for_whom_a_device_works() -> None:
    """Until somebody has named the GPU it is shared; from then on it is the engine's."""
    up = EngineUp(engine="engine-0", version=0, context_tokens=1, slots=1, device="cuda")
    stage = play(Stage([(1.5, up), (1.0, entered("training"))]))
    pools = [r.event.pool for r in stage.log if isinstance(r.event, DeviceSampled)]
    assert pools == ["shared", "engine", "engine"]


def test_a_whole_run_is_as_it_is_without_samples() -> None:
    """A simulated run with the sampler beside it makes the same decisions in the same virtual time."""

    def told(world: World) -> list[Any]:
        return [
            (record.actor, record.mono, type(record.event).__name__)
            for record in world.log
            if not isinstance(record.event, DeviceSampled)
        ]

    plain = World().go()
    beside = World()
    watching: list[asyncio.Task[None]] = []

    def start(bus: Bus) -> None:
        view = bus.register(View())
        sampler = DeviceSampler(bus, beside.clock, [Always()], 0.05, view, worker=AtOnce)
        watching.append(asyncio.get_running_loop().create_task(sampler.run()))

    beside.on_bus = start
    beside.go()
    assert any(isinstance(record.event, DeviceSampled) for record in beside.log)
    assert told(beside) == told(plain)
    assert watching[0].done()


def test_real_sources_on_a_real_loop() -> None:
    """This process is sampled by psutil in a thread; no GPU, no word about it; the actor ends with the run."""

    async def go() -> list[Event]:
        clock = SystemClock()
        bus = Bus(clock)
        view = bus.register(View())
        seen = bus.register(Seen())
        parts = SimpleNamespace(engines=[], learner=object())
        sampler = DeviceSampler(bus, clock, sources_for(config(), parts), 0.05, view)  # type: ignore[arg-type]
        bus.publish("run", STARTED)
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            tasks.create_task(sampler.run())
            await bus.watch(lambda: len(seen.of(DeviceSampled)) >= 3)
            bus.publish("run", FINISHED)
        return seen.events

    events = asyncio.run(go())
    samples = [event for event in events if isinstance(event, DeviceSampled)]
    assert {sample.device for sample in samples if sample.source == "psutil"} == {"cpu:controller"}
    assert all(sample.memory_bytes > 2**20 and sample.window_s >= GAP_S for sample in samples)
    assert not any(isinstance(event, TelemetryDegraded) for event in events)
    assert isinstance(events[-1], RunFinished)


@dataclass
class Seen:
    """All events, as a projection."""

    events: list[Event] = field(default_factory=list)

    def apply(self, record: Record) -> None:
        self.events.append(record.event)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


# The thread


def test_a_call_that_hangs_neither_blocks_the_loop_nor_the_exit() -> None:
    """The loop goes on, the caller's deadline works, and the thread is one that an exit does not wait for."""
    release = threading.Event()

    async def go() -> str:
        worker = WorkerThread("hung")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await worker.ask(release.wait)
        worker.end(lambda: None)
        return "went on"

    assert asyncio.run(go()) == "went on"
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "hung"]
    assert thread.daemon
    release.set()
    thread.join(5)
    assert not thread.is_alive()


def test_the_thread_hands_over_results_and_exceptions() -> None:
    """What the call returns or raises arrives where it was asked for, and the last call is made at the end."""
    ended = threading.Event()

    async def go() -> None:
        worker = WorkerThread("plain")
        assert await worker.ask(threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await worker.ask(lambda: 1 / 0)
        worker.end(ended.set)

    asyncio.run(go())
    assert ended.wait(5)


# Lag of the loop


@pytest.mark.parametrize(
    ("late_s", "bucket"),
    [(0.0, 0), (0.001, 0), (0.0010001, 1), (0.002, 1), (0.5, 9), (1.024, 10), (1.0241, 11), (99.0, 11)],
)
def test_a_timer_is_counted_in_the_first_bucket_whose_bound_it_does_not_pass(
    late_s: float, bucket: int
) -> None:
    """Bounds are upper bounds, and belong to their bucket; what is above all of them has one of its own."""
    lags = Lags()
    lags.add(late_s)
    assert lags.counts == [int(place == bucket) for place in range(len(LOOP_LAG_BOUNDS_S) + 1)]
    assert (lags.sum_s, lags.max_s) == (late_s, late_s)


async def lagging(work: Callable[[], Coroutine[Any, Any, None]]) -> list[LoopLagSampled]:
    bus = Bus(VirtualClock())
    view = bus.register(View())
    log: list[Any] = []
    subscription = bus.subscribe("log")
    bus.publish("run", STARTED)

    async def keep() -> None:
        async for batch in subscription:
            log.extend(record.event for record in batch)

    async def act() -> None:
        await work()
        bus.publish("run", FINISHED)
        bus.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keep())
        tasks.create_task(LoopLagSampler(bus, view).run())
        tasks.create_task(act())
    assert isinstance(log[-1], RunFinished)
    return [event for event in log if isinstance(event, LoopLagSampled)]


def test_an_idle_loop_is_never_late() -> None:
    """12 s are two windows with 50 timers each, all in the first bucket; the open third is not published."""
    first, second = run_virtual(lagging(lambda: asyncio.sleep(12)))
    assert first.counts[0] == pytest.approx(50, abs=1)
    assert sum(first.counts) == first.counts[0]
    assert second.window_s == pytest.approx(5.0, abs=0.11)


def test_late_timers_are_seen() -> None:
    """On a loop whose timers fire up to 20 ms late, most are late, none by more, and every timer is counted once."""
    (sampled,), _ = run_seeded(lagging(lambda: asyncio.sleep(7)), Tape(7), jitter_s=0.02)
    assert sampled.counts[0] < sum(sampled.counts) / 2
    assert 0.015 <= sampled.max_s <= 0.0201
    assert sum(sampled.counts) == pytest.approx(sampled.window_s / 0.11, rel=0.05)
