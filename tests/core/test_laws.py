"""The laws of the design, each with a test that fails without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import World, config

from eventrain.adapters.simulated.world import SimulatedEnvironment
from eventrain.core.ports import EngineError, EngineGone, GenerateRequest, PromptTooLong
from eventrain.core.projections.accounting import ALIVE, ENDED, Ledger
from eventrain.events.bus import Bus
from eventrain.events.errors import LogWriteError
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    Blocked,
    CheckpointCommitted,
    CheckpointStarted,
    DeadlineExpired,
    EngineLost,
    EnginePaused,
    EngineRestarted,
    EngineResumed,
    EngineUp,
    EnvStepFinished,
    EnvStepStarted,
    EvalCompleted,
    EvalStarted,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupFailed,
    InvariantBroken,
    LlmCallFinished,
    LlmCallStarted,
    PromptDrawn,
    PromptReturned,
    RunFailed,
    StepCompleted,
    StepStarted,
    SyncAcknowledged,
    SyncStarted,
    TrajectoryCompleted,
    TrajectoryDropped,
    TrajectoryFailed,
    TrajectoryStarted,
    Unblocked,
    WeightsPublished,
)


def encoded(log: list[Record]) -> list[str]:
    """Return every record as text, envelope and all."""
    return [repr(record) for record in log]


# Law 1 is in test_run.py (the state is the fold of the log) and in tests/project (core/ cannot reach a clock).


# Law 2: decide, append, act


class SlowDisk:
    """A writer that acknowledges what it got after a while of virtual time."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.last = -1

    def start(self, on_durable: Callable[[int], None], on_error: Callable[[LogWriteError], None]) -> None:
        self.on_durable = on_durable
        self.loop = asyncio.get_running_loop()
        for seq in range(self.last + 1):
            self.loop.call_later(self.delay_s, on_durable, seq)

    def append(self, record: Record) -> None:
        self.last = record.seq
        if hasattr(self, "loop"):
            self.loop.call_later(self.delay_s, self.on_durable, record.seq)

    def hurry(self) -> None:
        pass


def test_what_cannot_be_undone_starts_only_once_its_intent_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training, loading weights and checkpoints begin when the event that announces them is on disk, not before."""
    disk = SlowDisk(0.4)
    monkeypatch.setattr("worlds.Bus", lambda clock: Bus(clock, disk))
    world = World(config(checkpoint={"every_steps": 2}), engines=2)
    seen: dict[str, list[bool]] = {"train": [], "load": [], "checkpoint": []}

    def durable(kind: str, **fields: Any) -> bool:
        found = [
            record.seq
            for record in world.log
            if record.event.kind == kind  # type: ignore[attr-defined]
            and all(getattr(record.event, name) == value for name, value in fields.items())
        ]
        return bool(found) and world.bus.durable_seq >= found[-1]

    async def on_train(batch: Any) -> None:
        seen["train"].append(durable("step_started", step=batch.step))

    async def on_load(version: int) -> None:
        seen["load"].append(durable("weights_published", version=version))

    async def on_checkpoint(path: str) -> None:
        seen["checkpoint"].append(durable("checkpoint_started", path=path))

    world.learner.on_train, world.learner.on_checkpoint = on_train, on_checkpoint
    for engine in world.pool:
        engine.on_load = on_load
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed"
    assert [len(calls) for calls in seen.values()] == [6, 12, 3]
    assert all(all(calls) for calls in seen.values())


def test_a_decision_is_in_the_log_before_its_effect_starts() -> None:
    """An engine is never asked for a trajectory, nor to take weights, that the log does not know yet."""
    world = World(engines=2)

    async def on_generate(request: GenerateRequest) -> None:
        trajectory = request.request.rsplit("/", 1)[0]
        world.bus.fold()
        assert trajectory in world.view.groups.running
        assert any(call[0] == trajectory for call in world.view.engines.calls)

    async def on_load(version: int) -> None:
        world.bus.fold()
        assert any(engine.syncing_to == version for engine in world.view.engines.by_name.values())

    for engine in world.pool:
        engine.on_generate, engine.on_load = on_generate, on_load
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "completed", world.outcome.message
    assert world.events(SyncStarted)


# Law 3: every wait has a name and a deadline


@pytest.mark.parametrize(
    ("where", "effect"),
    [
        ("start", "engine_start"),
        ("generate", "llm_call"),
        ("load", "weight_sync"),
        ("train", "train_step"),
        ("checkpoint", "checkpoint"),
        ("env", "env_step"),
        ("learner", "learner_start"),
    ],
)
def test_every_outside_effect_has_a_deadline_whose_expiry_is_an_event(where: str, effect: str) -> None:
    """Whatever hangs for ever, the run does not: DeadlineExpired names it, and the run ends."""
    world = World(
        config(
            checkpoint={"every_steps": 1},
            engine={"restarts_max": 1},
            failures={"attempts_max": 2, "engine_attempts_max": 2, "window": 8, "share_max": 0.6},
            run={"steps": 2},
        )
    )

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    class NeverUp:
        async def start(self, checkpoint: str | None) -> None:
            await hang()

        async def close(self) -> None:
            return None

    match where:
        case "start":
            world.pool[0].on_start = hang
        case "generate":
            world.pool[0].on_generate = hang
        case "load":
            world.pool[0].on_load = hang
        case "train":
            world.learner.on_train = hang
        case "checkpoint":
            world.learner.on_checkpoint = hang
        case "env":
            world.environment = lambda: SimulatedEnvironment(world.clock, on_step=hang)
        case "learner":
            world.learner = NeverUp()  # type: ignore[assignment]
    world.go()
    assert world.outcome is not None
    assert effect in {event.effect for event in world.events(DeadlineExpired)}
    assert world.outcome.outcome == ("completed" if where == "checkpoint" else "failed")
    assert world.log[-1].event.kind in ("run_failed", "run_finished")  # type: ignore[attr-defined]


# Law 4: time, chance and identity come through ports


def test_the_same_seed_gives_the_same_log() -> None:
    """Two runs of one configuration in virtual time write the same records, byte for byte."""

    def log() -> list[str]:
        world = World(config(eval={"every_steps": 2, "prompts": 3}), engines=3, turns=2)
        for number, engine in enumerate(world.pool):
            engine.seconds = lambda request, n=number: 0.2 + (request.seed % 11) * 0.1 + n * 0.03  # type: ignore[misc]
        return encoded(world.go().log)

    assert log() == log()


def test_another_seed_gives_another_log() -> None:
    """The test above could not pass by ignoring the seed."""

    def seeds(seed: int) -> list[int]:
        world = World(config(run={"steps": 2, "seed": seed}))
        requests: list[int] = []

        async def note(request: GenerateRequest) -> None:
            requests.append(request.seed)

        world.pool[0].on_generate = note
        world.go()
        return requests

    assert seeds(1) != seeds(2)
    assert len(set(seeds(1))) == len(seeds(1))


# Law 5: nothing disappears from the accounting


class Books(Ledger):
    """A ledger that checks its sums at every single event."""

    def apply(self, record: Record) -> None:
        super().apply(record)
        assert set(self.groups) <= {*ALIVE, *ENDED}
        assert sum(self.groups.values()) == self.dispatched
        assert sum(self.prompts.values()) == self.drawn
        assert min(self.groups.values(), default=0) >= 0
        assert self.breaches == []


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_everything_is_accounted_for_at_every_event_of_any_run(data: st.DataObject) -> None:
    """Whatever fails, hangs, dies or is slow: the sums hold at each event, the run ends, and nothing is open."""
    chance = data.draw(st.floats(0, 0.25), label="chance of a fault")
    staleness = data.draw(st.integers(0, 3), label="staleness")
    engines = data.draw(st.integers(1, 3), label="engines")
    mode = data.draw(st.sampled_from(["in_flight", "pause", "drain", "abort"]), label="sync mode")
    salt = data.draw(st.integers(0, 2**20), label="salt")
    surplus = data.draw(st.integers(0, 3), label="oversample")
    world = World(
        config(
            run={"steps": 5, "seed": salt},
            scheduler={
                "groups_per_step": 3,
                "max_staleness": staleness,
                "permits": data.draw(st.integers(1, 12), label="permits"),
                "buffer_groups": data.draw(st.integers(3, 12), label="buffer") + surplus,
                "oversample_groups": surplus,
            },
            rollout={
                "group_size": 3,
                "max_turns": 2,
                "group_floor": data.draw(st.sampled_from([None, 2]), label="floor"),
            },
            data={"kind": "generated", "size": data.draw(st.integers(5, 40), label="items"), "epochs": 5},
            algorithm={"drop_zero_variance": data.draw(st.booleans(), label="drop zero variance")},
            engine={"sync_mode": mode, "restarts_max": 3},
            eval={"every_steps": data.draw(st.integers(0, 2), label="eval every"), "prompts": 3},
            deadlines={"llm_call_s": 30, "env_step_s": 20, "weight_sync_s": 25, "eval_s": 60},
            failures={"share_max": 1.0, "attempts_max": 2, "strikes_max": 2},
        ),
        engines=engines,
        turns=2,
        on_bus=lambda bus: bus.register(Books()) and None,
    )

    def unlucky(seed: int, kind: int) -> bool:
        return ((seed ^ salt) * 2654435761 >> kind) % 1000 < chance * 1000

    async def on_generate(request: GenerateRequest) -> None:
        engine = world.pool[request.seed % engines]
        if unlucky(request.seed, 3):
            raise EngineError("reset by peer")
        if unlucky(request.seed, 7) and unlucky(request.seed, 8):
            raise PromptTooLong("too long")
        if unlucky(request.seed, 11) and unlucky(request.seed, 12):
            await asyncio.Event().wait()
        if unlucky(request.seed, 15) and unlucky(request.seed, 16):
            engine.die()
        if unlucky(request.seed, 19) and unlucky(request.seed, 20):
            raise EngineGone("killed")

    async def on_step(item: Any, seed: int, turn: int) -> None:
        if unlucky(seed, 5):
            raise KeyError("tool")
        if unlucky(seed, 9) and unlucky(seed, 10):
            await asyncio.Event().wait()

    for engine in world.pool:
        engine.seconds = lambda request: 0.1 + (request.seed % 17) * 0.2
        engine.on_generate = on_generate
    world.environment = lambda: SimulatedEnvironment(
        world.clock, turns=2, on_step=on_step, score=lambda item, seed: float(seed % 3)
    )
    if data.draw(st.booleans(), label="interrupted"):
        after = data.draw(st.integers(0, 1500), label="interrupt after")
        world.stop_after = lambda record: record.seq >= after
    world.go()
    assert world.outcome is not None
    if world.outcome.outcome == "failed":
        assert world.outcome.error == "no_engine_left", world.outcome.message
    assert not world.events(InvariantBroken)
    assert world.log[-1].event.kind in ("run_failed", "run_finished")  # type: ignore[attr-defined]


@settings(max_examples=150, deadline=None)
@given(choice=st.integers(0, 10**6), how=st.sampled_from(["drop", "double"]))
def test_a_log_that_loses_or_doubles_an_event_breaks_a_law(choice: int, how: str) -> None:
    """Take any event of the accounting out of a whole log, or enter it twice, and the ledger names that place."""
    log = whole_log()
    places = [n for n, record in enumerate(log) if type(record.event) in ACCOUNTED]
    place = places[choice % len(places)]
    changed = log[:place] + log[place + 1 :] if how == "drop" else log[: place + 1] + log[place:]
    renumbered = [record._replace(seq=n, cause=None) for n, record in enumerate(changed)]
    ledger = Ledger()
    for record in renumbered:
        ledger.apply(record)
    assert ledger.breaches
    assert ledger.breaches[0].seq >= place


ACCOUNTED = (
    PromptDrawn,
    GroupDispatched,
    GroupBuffered,
    BatchTaken,
    StepStarted,
    StepCompleted,
    TrajectoryStarted,
    TrajectoryCompleted,
    LlmCallStarted,
    LlmCallFinished,
    EnvStepStarted,
    EnvStepFinished,
    SyncStarted,
    SyncAcknowledged,
    Blocked,
    Unblocked,
    WeightsPublished,
    EvalStarted,
    EvalCompleted,
    CheckpointStarted,
    CheckpointCommitted,
    EnginePaused,
    EngineResumed,
    EngineLost,
    EngineRestarted,
    EngineUp,
    GroupFailed,
    PromptReturned,
    TrajectoryFailed,
    TrajectoryDropped,
    GroupDiscarded,
)
_whole: list[Record] = []


def whole_log() -> list[Record]:
    """Return the log of one run, made once."""
    if not _whole:
        world = World(
            config(
                run={"steps": 4},
                data={"size": 40},
                eval={"every_steps": 2, "prompts": 2},
                checkpoint={"every_steps": 2},
                engine={"sync_mode": "pause"},
                failures={"attempts_max": 1},
                rollout={"group_floor": 3},
                scheduler={"oversample_groups": 1},
            ),
            engines=2,
        )

        async def faults(request: GenerateRequest) -> None:
            if request.request.startswith("9/1") and not world.records(EngineLost):
                world.pool[1].die()
            if request.request == "6/0/0":
                raise PromptTooLong("too long")

        async def broken(item: Any, seed: int, turn: int) -> None:
            if item["number"] == 2 or (item["number"] == 5 and not world.records(TrajectoryDropped)):
                raise RuntimeError("no such tool")

        for engine in world.pool:
            engine.on_generate = faults
        world.environment = lambda: SimulatedEnvironment(world.clock, on_step=broken)
        _whole.extend(world.go().log)
        assert {type(record.event) for record in _whole} >= {*ACCOUNTED}
    return _whole


def test_a_breach_is_an_event_that_names_the_first_event_that_broke_the_law() -> None:
    """An actor that enters the same end twice is found out, and the log says at which event."""
    world = World()

    def interfere(record: Record) -> bool:
        if (
            record.event.kind == "trajectory_completed"
            and not world.events(InvariantBroken)
            and record.actor != "x"
        ):  # type: ignore[attr-defined]
            world.bus.publish("x", record.event)
        return False

    world.stop_after = interfere
    world.go()
    (broken,) = [event for event in world.events(InvariantBroken) if event.law == "trajectory"]
    culprit = world.log[broken.broken_by]
    assert culprit.actor == "x"


# Law 6: failures are typed and loud


@pytest.mark.parametrize("actor", ["collector", "trainer", "engine_pool", "rollout", "projection", "policy"])
def test_an_exception_nobody_expected_ends_the_run_with_its_first_cause(
    actor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect in any actor ends the run in the same instant, as RunFailed with that exception, exit 1 (S16)."""
    world = World(config(run={"steps": 50}))
    at: list[int] = []

    def explode(*_: Any, **__: Any) -> Any:
        at.append(world.clock.mono_ns())
        raise ZeroDivisionError("a defect")

    def arm(record: Record) -> bool:
        if record.event.kind == "step_completed" and not at:  # type: ignore[attr-defined]
            target = {
                "collector": "eventrain.core.collector.plan_dispatches",
                "trainer": "eventrain.core.trainer.train_batch",
                "engine_pool": "eventrain.core.engine_pool.route",
                "rollout": "eventrain.core.rollout.Conversation.write",
                "projection": "eventrain.core.projections.groups.Groups._end",
                "policy": "eventrain.core.policies.targeted.Targeted.plan",
            }[actor]
            monkeypatch.setattr(target, explode)
        return False

    world.stop_after = arm
    world.go()
    assert world.outcome is not None
    assert world.outcome.outcome == "failed"
    assert world.outcome.error == "ZeroDivisionError"
    assert isinstance(world.outcome.exception, ZeroDivisionError)
    assert world.log[-1].mono - at[0] < 1e9
    if actor != "projection":
        (failed,) = world.events(RunFailed)
        assert (failed.error, failed.message) == ("ZeroDivisionError", "a defect")


# Law 7: small events, payload beside them


def test_events_stay_small_however_long_the_trajectories_are() -> None:
    """A hundred times more tokens in a trajectory do not make its events larger."""

    def largest(tokens: int) -> int:
        world = World(
            config(
                rollout={"max_tokens": 10_000, "context_tokens": 100_000, "group_size": 2}, run={"steps": 2}
            )
        )
        world.pool[0].length = lambda request: tokens
        world.pool[0].context_tokens = 100_000
        world.go()
        return max(len(record.event.model_dump_json()) for record in world.log if record.corr)

    assert largest(9_000) <= largest(90) + 20
