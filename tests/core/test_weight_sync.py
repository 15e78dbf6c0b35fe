"""Weight sync as one state machine: announced, paused, transferred, verified, acknowledged; and what it repairs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from worlds import World, config

from eventrain.adapters.simulated.world import simulated_weights
from eventrain.core.ports import EngineError, Receipt
from eventrain.core.weight_update import differs
from eventrain.events.bus import Bus
from eventrain.events.types import (
    EngineLost,
    EnginePaused,
    EngineResumed,
    LlmCallFinished,
    LlmCallStarted,
    SyncAcknowledged,
    SyncFailed,
    SyncRetried,
    SyncStarted,
    SyncVerified,
    TrajectoryCompleted,
    TrajectoryFailed,
    WeightsPublished,
)


def outcome(world: World) -> str:
    """Return how the run ended."""
    assert world.outcome is not None
    return world.outcome.outcome


MODES = ["in_flight", "pause", "abort", "drain"]


def told(world: World, engine: str, version: int) -> list[str]:
    """Return the kinds of all events of one sync, in order."""
    started = next(
        r for r in world.records(SyncStarted) if (r.event.engine, r.event.version) == (engine, version)
    )
    kinds = (
        SyncStarted,
        EnginePaused,
        SyncRetried,
        SyncVerified,
        SyncAcknowledged,
        SyncFailed,
        EngineResumed,
    )
    ours = [r for r in world.records(*kinds) if r.seq >= started.seq and r.event.engine == engine]
    later = [r.seq for r in ours[1:] if isinstance(r.event, SyncStarted)]
    return [r.event.kind for r in ours if not later or r.seq < later[0]]


def tapped(world: World, method: str, act: Callable[..., Awaitable[Any]], engine: int = 0) -> None:
    """Put `act`, which is given the original and its arguments, in the place of a method of an engine."""
    port = world.pool[engine]
    original = getattr(port, method)
    setattr(port, method, lambda *args: act(original, *args))


@pytest.mark.parametrize("mode", MODES)
def test_a_sync_goes_through_its_states_in_order(mode: str) -> None:
    """Announced, paused unless it is in flight, verified, acknowledged, resumed; the receipt is what was published."""
    world = World(config(engine={"sync_mode": mode}), engines=2)
    world.go()
    assert outcome(world) == "completed"
    paused = mode != "in_flight"
    assert told(world, "engine-1", 2) == [
        "sync_started",
        *(["engine_paused"] if paused else []),
        "sync_verified",
        "sync_acknowledged",
        *(["engine_resumed"] if paused else []),
    ]
    published = {event.version: event for event in world.events(WeightsPublished)}
    for event in world.events(SyncVerified):
        assert (event.digest, event.tensors) == (
            published[event.version].digest,
            published[event.version].tensors,
        )


def test_calls_of_an_update_bear_the_seq_of_its_announcement() -> None:
    """The lease is the seq of SyncStarted, and every bucket is asked for once, in order."""
    world = World(config(run={"steps": 3}), engines=1)
    calls: list[tuple[str, int, int]] = []

    async def begun(original: Any, weights: Any, lease: int) -> None:
        calls.append(("begin", weights.version, lease))
        await original(weights, lease)

    async def transferred(original: Any, bucket: int, lease: int) -> None:
        calls.append(("transfer", bucket, lease))
        await original(bucket, lease)

    async def finished(original: Any, lease: int) -> Receipt:
        calls.append(("finish", 0, lease))
        return await original(lease)  # type: ignore[no-any-return]

    tapped(world, "begin_update", begun)
    tapped(world, "transfer", transferred)
    tapped(world, "finish_update", finished)
    world.go()
    wanted = []
    for record in world.records(SyncStarted):
        lease, buckets = record.seq, simulated_weights(0).buckets
        wanted += [("begin", record.event.version, lease)]
        wanted += [("transfer", bucket, lease) for bucket in range(buckets)]
        wanted += [("finish", 0, lease)]
    assert calls == wanted
    assert wanted


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", ["begin_update", "transfer", "finish_update"])
def test_an_update_that_fails_is_made_again_before_anything_is_sampled(mode: str, part: str) -> None:
    """One error costs a second attempt, under the same lease and in the same pause, and no engine."""
    world = World(config(engine={"sync_mode": mode}), engines=2)
    failures: list[int] = []

    async def once(original: Any, *args: Any) -> Any:
        lease = args[-1]
        if not failures:
            failures.append(lease)
            raise EngineError("a hiccup")
        return await original(*args)

    tapped(world, part, once)
    world.go()
    assert outcome(world) == "completed"
    (retried,) = world.events(SyncRetried)
    assert (retried.engine, retried.attempt, retried.message) == ("engine-0", 1, "a hiccup")
    kinds = told(world, "engine-0", retried.version)
    assert kinds.count("sync_retried") == kinds.count("sync_verified") == 1
    assert kinds.index("sync_retried") < kinds.index("sync_verified")
    assert world.events(EngineLost) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"version": 99}, "version 99, not 2"),
        ({"tensors": 2}, "2 tensors, not 3"),
        ({"digest": "other"}, "digest other, not digest of 2"),
    ],
)
def test_an_engine_that_took_other_weights_is_lost(other: dict[str, Any], said: str) -> None:
    """A receipt that differs from what was published is never acknowledged: two attempts, and the engine is lost."""
    world = World(config(engine={"sync_mode": "pause"}), engines=2)

    async def wrong(original: Any, lease: int) -> Receipt:
        receipt: Receipt = await original(lease)
        return replace(receipt, **other) if receipt.version == 2 else receipt

    tapped(world, "finish_update", wrong)
    world.go()
    assert outcome(world) == "completed"
    (failed,) = world.events(SyncFailed)
    assert (failed.engine, failed.version) == ("engine-0", 2)
    assert failed.message == f"took other weights than were published: {said}"
    assert [event.attempt for event in world.events(SyncRetried)] == [1]
    acknowledged = [(e.engine, e.version) for e in world.events(SyncAcknowledged)]
    assert ("engine-0", 2) not in acknowledged
    assert ("engine-1", 2) in acknowledged
    assert differs(simulated_weights(2), replace(Receipt(2, 3, "digest of 2"), **other)) == said


def test_one_attempt_is_all_there_is_where_one_is_configured() -> None:
    """With engine.sync_attempts = 1 the first error costs the engine."""
    world = World(config(engine={"sync_attempts": 1}), engines=2)
    failures: list[int] = []

    async def once(original: Any, *args: Any) -> Any:
        if not failures:
            failures.append(1)
            raise EngineError("a hiccup")
        return await original(*args)

    tapped(world, "transfer", once)
    world.go()
    assert outcome(world) == "completed"
    assert world.events(SyncRetried) == []
    assert [event.engine for event in world.events(EngineLost)] == ["engine-0"]


def test_an_acknowledgement_without_proof_breaks_a_law() -> None:
    """The books notice an engine that is acknowledged and whose weights nobody verified."""
    world = World(config(engine={"sync_mode": "pause"}), engines=1)

    def forgetful(bus: Bus) -> None:
        publish = bus.publish

        def published(actor: str, event: Any, **envelope: Any) -> Any:
            if isinstance(event, SyncVerified) and event.version == 2:
                event = event.model_copy(update={"digest": "other"})
            return publish(actor, event, **envelope)

        bus.publish = published  # type: ignore[method-assign]

    world.on_bus = forgetful
    world.go()
    (breach,) = [breach for breach in world.ledger.breaches if breach.law == "versions"]
    assert breach.found == "engine-0 acknowledged others"


def test_an_aborted_answer_is_taken_up_again_with_the_new_weights() -> None:
    """Its parts are calls of the same turn; together they have every token once, and the versions that sampled them."""
    world = World(config(engine={"sync_mode": "abort"}, rollout={"max_tokens": 40}), engines=1)
    world.pool[0].seconds = lambda request: 0.1 * request.max_tokens
    world.pool[0].length = lambda request: request.max_tokens
    world.learner.seconds = 0.5
    world.go()
    assert outcome(world) == "completed"
    assert world.events(TrajectoryFailed) == []
    cut = [event for event in world.events(LlmCallFinished) if event.finish_reason == "abort"]
    assert any(event.tokens for event in cut)
    parts = {(e.trajectory, e.turn, e.part) for e in world.events(LlmCallStarted)}
    for event in cut:
        assert (event.trajectory, event.turn, event.part + 1) in parts
    mixed = [event for event in world.events(TrajectoryCompleted) if len(event.version_spans) > 1]
    assert mixed
    for event in world.events(TrajectoryCompleted):
        assert event.completion_tokens == sum(count for _, count in event.version_spans)
        assert event.completion_tokens % 40 == 0
        versions = [version for version, _ in event.version_spans]
        assert versions == sorted(set(versions))


def test_an_abort_that_nobody_asked_for_is_an_error_of_the_engine() -> None:
    """It costs the attempt, is not charged to the prompt, and never becomes a short answer."""
    world = World(config(), engines=1)
    original = world.pool[0].generate
    aborted: list[str] = []

    async def abort_one(request: Any) -> Any:
        answer = await original(request)
        if request.request.startswith("3/") and not aborted:
            aborted.append(request.request)
            return replace(answer, finish_reason="abort")
        return answer

    world.pool[0].generate = abort_one  # type: ignore[method-assign]
    world.go()
    assert outcome(world) == "completed"
    (failed,) = world.events(TrajectoryFailed)
    assert (failed.failure, failed.blame) == ("engine_error", "engine")
    assert failed.message == "aborted the call, and no weight sync had asked for it"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fails", [False, True])
def test_weights_are_fetched_while_the_engine_decodes(mode: str, fails: bool) -> None:
    """They are within reach before it is paused; where that fails, the update finds out, and nothing is lost by it."""
    world = World(config(engine={"sync_mode": mode}), engines=2)
    done: list[str] = []

    async def fetched(original: Any, weights: Any) -> None:
        done.append(f"fetch {weights.version}")
        if fails:
            raise EngineError("not now")
        await original(weights)

    async def paused(original: Any, *args: Any) -> None:
        done.append("pause")
        await original(*args)

    async def begun(original: Any, weights: Any, lease: int) -> None:
        done.append(f"begin {weights.version}")
        await original(weights, lease)

    tapped(world, "fetch", fetched)
    tapped(world, "pause", paused)
    tapped(world, "begin_update", begun)
    world.go()
    assert outcome(world) == "completed"
    wanted = []
    for event in world.events(SyncStarted):
        if event.engine == "engine-0":
            pause = ["pause"] if mode != "in_flight" else []
            wanted += [f"fetch {event.version}", *pause, f"begin {event.version}"]
    assert done == wanted
    assert wanted
    assert world.events(SyncRetried) == []


def test_an_engine_to_which_weights_do_not_come_is_lost_at_the_deadline() -> None:
    """Fetching is part of what deadlines.weight_sync_s bounds, and the other engine goes on."""
    world = World(config(engine={"sync_mode": "pause"}, deadlines={"weight_sync_s": 5}), engines=2)
    asked: list[int] = []

    async def never(original: Any, weights: Any) -> None:
        asked.append(weights.version)
        if len(asked) == 1:
            await asyncio.Event().wait()
        await original(weights)

    tapped(world, "fetch", never)
    world.go()
    assert outcome(world) == "completed"
    (failed,) = world.events(SyncFailed)
    assert (failed.engine, failed.outcome) == ("engine-0", "expired")
    assert [event.engine for event in world.events(EngineLost)] == ["engine-0"]
    assert told(world, "engine-0", failed.version) == ["sync_started", "sync_failed"]
    assert len(asked) > 1


def test_weights_are_dropped_once_every_engine_has_newer_ones() -> None:
    """While engines go from one version to the next both are there; afterwards only the newer one is."""
    world = World(config(engine={"sync_mode": "pause"}), engines=2)
    there: list[tuple[int, list[str]]] = []

    async def begun(original: Any, weights: Any, lease: int) -> None:
        there.append((weights.version, list(world.artifacts.dropped)))
        await original(weights, lease)

    tapped(world, "begin_update", begun)
    world.go()
    for version, dropped in there:
        assert [path for path in dropped if path.startswith("weights")] == [
            world.artifacts.weights(older) for older in range(version - 1)
        ]
    newest = world.events(WeightsPublished)[-1].version
    assert there[-1][0] == newest
    assert world.artifacts.dropped == [world.artifacts.weights(version) for version in range(newest)]
