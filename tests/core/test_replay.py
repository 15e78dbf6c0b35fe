"""A check of a log: what a run decided is decided again, and whatever is not the same is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from legacy import WindowBehind, hole_behind_the_window
from worlds import World, config

from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.core import collector, engine_pool, resume, stalls
from eventrain.core.config import RunConfig
from eventrain.core.failures import GiveUp, respond
from eventrain.core.policies.targeted import Targeted
from eventrain.core.policies.windowed import Windowed
from eventrain.core.ports import PromptTooLong
from eventrain.core.replay import Agreement, Divergence, NotReplayable, check
from eventrain.events.codec import decode, encode
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    Blocked,
    EngineRestarted,
    EvalStarted,
    Event,
    GroupBuffered,
    GroupDispatched,
    GroupEvicted,
    LlmCallStarted,
    PromptDrawn,
    PromptQuarantined,
    RetryScheduled,
    RunFailed,
    RunResumed,
    StallDetected,
    Unblocked,
)

EVERY_KIND = {
    "batch_taken",
    "checkpoint_started",
    "data_exhausted",
    "engine_restarted",
    "eval_started",
    "group_buffered",
    "group_discarded",
    "group_dispatched",
    "group_failed",
    "group_filtered",
    "group_restored",
    "learner_up",
    "llm_call_started",
    "phase_entered",
    "prompt_drawn",
    "prompt_quarantined",
    "prompt_returned",
    "retry_scheduled",
    "run_failed",
    "run_finished",
    "run_resumed",
    "stall_cleared",
    "stall_detected",
    "sync_started",
    "trajectory_dropped",
    "weights_published",
}


def chaos(seed: int) -> list[Record]:
    """Return the log of the world that `seed` draws."""
    tape = Tape(seed)
    return simulate(draw_scenario(tape), tape).records


def agree(seeds: range) -> Counter[str]:
    """Check the log of every seed; return how many decisions of each kind were compared."""
    compared: Counter[str] = Counter()
    for seed in seeds:
        log = chaos(seed)
        found = check(log)
        assert isinstance(found, Agreement), f"seed {seed}: {found}"
        assert found.events == len(log)
        compared += found.decisions
        compared["waits"] += found.waits
    return compared


def diverged(log: Sequence[Record], **changed: Any) -> Divergence:
    """Return the divergence that a check of `log` finds."""
    found = check(log, **changed)
    assert isinstance(found, Divergence), found
    return found


def first(log: Sequence[Record], kind: type[Event], which: Callable[[Any], bool] = lambda event: True) -> Record:
    """Return the first record of `kind` in `log`."""
    return next(record for record in log if type(record.event) is kind and which(record.event))


# Agreement


def test_the_decisions_of_sixty_random_worlds_agree() -> None:
    """With faults, losses of engines, evaluations, kills and resumes, every policy decides the same again."""
    compared = agree(range(60))
    assert set(compared) >= EVERY_KIND - {"group_evicted"}
    assert compared["waits"] > 500


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_decisions_of_a_thousand_random_worlds_agree() -> None:
    """The same with a thousand other seeds."""
    assert set(agree(range(1000, 2000))) >= {*EVERY_KIND, "group_evicted"}


@pytest.mark.parametrize("policy", ["targeted", "capacity", "windowed", "token_windowed"])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_run_of_every_policy_agrees(policy: str, staleness: int) -> None:
    """On engines of different speed, with evaluations and checkpoints, each policy's decisions agree."""
    world = World(
        config(
            run={"steps": 8},
            scheduler={"policy": policy, "max_staleness": staleness},
            engine={"count": 2},
            eval={"every_steps": 2, "prompts": 4},
            checkpoint={"every_steps": 3},
        ),
        engines=2,
        turns=2,
    )
    world.pool[1].seconds = lambda request: 2.5
    world.go()
    found = check(world.log)
    assert isinstance(found, Agreement), found
    assert found.decisions["batch_taken"] == 8
    assert found.decisions["eval_started"] == len(world.events(EvalStarted))
    assert found.decisions["llm_call_started"] == len(world.events(LlmCallStarted))


def test_a_log_that_went_to_the_disk_and_back_agrees() -> None:
    """What is compared survives the encoding: no float, tuple or None is another after it."""
    for seed in range(60, 70):
        log = [decode(encode(record)) for record in chaos(seed)]
        found = check(log)
        assert isinstance(found, Agreement), f"seed {seed}: {found}"


def test_a_log_that_was_cut_off_anywhere_agrees() -> None:
    """At the end of a log nothing is demanded, also in the middle of what was decided at once."""
    log = failing().log
    assert len(log) > 400
    for end in range(1, len(log), 3):
        assert isinstance(check(log[:end]), Agreement), f"cut off after {end}"


def test_a_log_of_before_the_watchdog_agrees() -> None:
    """Settings and fields that an older log lacks take their defaults."""
    world = World().go()
    log = [r for r in world.log if not isinstance(r.event, StallDetected)]
    settings = {name: section for name, section in log[0].event.config.items() if name != "watchdog"}  # type: ignore[attr-defined]
    log[0] = log[0]._replace(event=log[0].event.model_copy(update={"config": settings, "engines": None}))
    assert isinstance(check(log), Agreement)


def test_a_log_without_its_start_is_refused() -> None:
    """Without run_started there is no configuration: the check says so and does not guess."""
    log = World().go().log
    with pytest.raises(NotReplayable, match="does not begin with run_started"):
        check(log[1:])
    with pytest.raises(NotReplayable):
        check([])


# Another code, another setting: the first divergence


def test_another_window_is_found_at_the_first_group_that_it_would_not_start() -> None:
    """The policy with a hole behind its window leaves the failed group of step 3 without a successor."""
    world = hole_behind_the_window(legacy=False).go()
    refill = first(world.log, GroupDispatched, lambda event: event.group == 20)
    found = diverged(world.log, policy=WindowBehind())
    assert found.seq == refill.seq - 1  # its prompt is drawn first
    assert found.actor == "collector"
    assert [decided.kind for decided in found.recorded] == ["prompt_drawn", "group_dispatched"]
    assert found.produced == ()
    assert found.state["targets"].startswith("3: 3 buffered, 0 in flight of 4")
    assert found.before.decisions["group_dispatched"] == 20


def test_the_fix_is_found_in_the_log_of_the_stall() -> None:
    """The log of a run that stood still shows where the shipped window goes on: the collector waits there instead."""
    world = hole_behind_the_window(legacy=True).go()
    assert isinstance(check(world.log, policy=WindowBehind()), Agreement)
    found = diverged(world.log)
    assert found.recorded[0].kind == "blocked"
    assert [decided.kind for decided in found.produced] == ["prompt_drawn", "group_dispatched"]
    assert found.produced[1].fields["target"] == 3
    quarantined = first(world.log, PromptQuarantined)
    assert found.seq == first(world.log[quarantined.seq :], Blocked, lambda event: event.waiter == "collector").seq


def failing() -> World:
    """Return a run in which calls fail: some once, those of prompt 5 always, and one engine dies."""
    world = World(config(failures={"backoff_s": 0.5, "engine_attempts_max": 3}), engines=2)

    async def fail(request: Any) -> None:
        group = request.request.split("/")[0]
        if group == "5" or (group == "7" and "+" not in request.request):
            raise engine_pool.PortError("no")

    world.pool[0].on_generate = world.pool[1].on_generate = fail
    return world.go()


def test_another_delay_of_a_retry_is_found() -> None:
    """A shorter backoff diverges at the first retry."""
    world = failing()
    settings = world.config.model_copy(
        update={"failures": world.config.failures.model_copy(update={"backoff_s": 0.25})}
    )
    found = diverged(world.log, config=settings)
    retry = first(world.log, RetryScheduled)
    assert (found.seq, found.recorded[0].fields["delay_s"]) == (retry.seq, 0.5)
    assert found.produced[0].fields["delay_s"] == 0.25


def test_another_answer_to_a_failure_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a prompt is not quarantined any more, the check stops at its quarantine; the group fails as before."""
    world = hole_behind_the_window(legacy=False).go()

    def lenient(*asked: Any) -> Any:
        answer = respond(*asked)
        return GiveUp(quarantine=False) if isinstance(answer, GiveUp) else answer

    monkeypatch.setattr(collector, "respond", lenient)
    found = diverged(world.log)
    assert found.seq == first(world.log, PromptQuarantined).seq
    assert [decided.kind for decided in found.produced] == ["group_failed", "prompt_returned"]


def test_another_order_of_the_batch_is_found() -> None:
    """The same groups in another order are another batch."""

    class Reversed(Targeted):
        def batch(self, view: Any, config: RunConfig) -> tuple[int, ...] | None:
            groups = super().batch(view, config)
            return groups and groups[::-1]

    world = World().go()
    taken = first(world.log, BatchTaken)
    found = diverged(world.log, policy=Reversed())
    assert (found.seq, found.actor) == (taken.seq, "trainer")
    assert found.produced[0].fields["groups"] == taken.event.groups[::-1]  # type: ignore[attr-defined]


def test_another_route_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that always takes the last engine diverges at the first call that went to another."""
    world = World(engines=2).go()
    monkeypatch.setattr(engine_pool, "route", lambda engines: (engines.serving() or [None])[-1])
    found = diverged(world.log)
    call = first(world.log, LlmCallStarted, lambda event: event.engine == "engine-0")
    assert (found.seq, found.actor) == (call.seq, "rollout" if call.actor == "rollout" else "engine_pool")
    assert found.produced[0].fields == {"engine": "engine-1"}


def test_a_policy_that_evicts_nothing_is_found() -> None:
    """Where slow groups were given up and are not any more, the first eviction is the divergence."""

    class Patient(Windowed):
        def evict(self, view: Any, config: RunConfig) -> list[Any]:
            return []

    world = World(config(run={"steps": 8}, scheduler={"policy": "windowed", "max_staleness": 1}))
    world.pool[0].seconds = lambda request: 9.0 if request.request.startswith("6/") else 1.0
    world.go()
    evicted = first(world.log, GroupEvicted)
    assert diverged(world.log, policy=Patient()).seq == evicted.seq


def test_another_verdict_of_the_watchdog_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadlock that is none by the code of now is the divergence."""
    world = hole_behind_the_window(legacy=True).go()
    policy = WindowBehind()
    stall = first(world.log, StallDetected)
    monkeypatch.setattr(stalls, "deadlock", lambda *asked: None)
    found = diverged(world.log, policy=policy)
    assert (found.seq, found.actor, found.produced) == (stall.seq, "watchdog", ())


def test_fewer_restarts_are_found() -> None:
    """Without a restart left a lost engine stays lost, and the last one ends the run."""
    world = World(config(engine={"restarts_max": 1}))
    world.stop_after = lambda record: _die(world) if record.seq == 150 else False
    world.go()
    restarted = first(world.log, EngineRestarted)
    settings = world.config.model_copy(
        update={"engine": world.config.engine.model_copy(update={"restarts_max": 0})}
    )
    found = diverged(world.log, config=settings)
    assert found.seq == restarted.seq
    assert found.produced[0].fields["error"] == "no_engine_left"


def _die(world: World) -> bool:
    world.pool[0].die()
    return False


def test_an_evaluation_that_would_not_be_made_is_found() -> None:
    """Other settings are the question what would have been different: the first place is named."""
    world = World(config(eval={"every_steps": 2, "prompts": 4})).go()
    settings = world.config.model_copy(
        update={"eval": world.config.eval.model_copy(update={"every_steps": 3})}
    )
    found = diverged(world.log, config=settings)
    assert found.seq == first(world.log, EvalStarted, lambda event: event.version == 2).seq
    assert found.produced[0].kind == "batch_taken"


def test_another_staleness_is_found() -> None:
    """A wider window would have started more groups at once."""
    world = World().go()
    settings = world.config.model_copy(
        update={"scheduler": world.config.scheduler.model_copy(update={"max_staleness": 2})}
    )
    found = diverged(world.log, config=settings)
    assert len(found.produced) > len(found.recorded)
    assert found.produced[: len(found.recorded)] == found.recorded


def test_another_resume_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a resume restored and gave back is compared with what it would do now."""
    log = next(log for log in map(chaos, range(60)) if any(isinstance(r.event, RunResumed) for r in log))
    monkeypatch.setattr(resume, "_adrift", lambda view: [10_000])
    found = diverged(log)
    resumed = first(log, RunResumed)
    assert resumed.seq <= found.seq
    assert found.actor == "run"
    assert found.produced[-1].fields == {"prompt": 10_000, "reason": "discarded"}


def test_a_failure_that_would_not_be_one_is_found() -> None:
    """A run that ended of too many failures would have gone on with a higher limit."""
    world = World(config(failures={"share_max": 0.5, "window": 8, "backoff_s": 0.1}))

    async def fail(request: Any) -> None:
        raise engine_pool.PortError("no")

    world.pool[0].on_generate = fail
    world.go()
    failed = first(world.log, RunFailed)
    assert failed.event.error == "too_many_failures"  # type: ignore[attr-defined]
    assert isinstance(check(world.log), Agreement)
    settings = world.config.model_copy(
        update={"failures": world.config.failures.model_copy(update={"share_max": 1.0})}
    )
    found = diverged(world.log, config=settings)
    assert (found.seq, found.produced) == (failed.seq, ())


def test_ignored_kinds_are_not_compared() -> None:
    """An intended change is passed over, and what comes after it is judged on the history that was recorded."""
    world = failing()
    settings = world.config.model_copy(
        update={"failures": world.config.failures.model_copy(update={"backoff_s": 0.25})}
    )
    found = check(world.log, config=settings, ignore_kinds=["retry_scheduled"])
    assert isinstance(found, Agreement), found
    assert found.ignored == {"retry_scheduled": len(world.events(RetryScheduled))}
    assert found.decisions["batch_taken"] == 6


# An edited log


def edited(record: Record) -> Event | None:
    """Return the event of `record` with a field that the state decides changed, None where there is none."""
    event = record.event
    kind: str = event.kind  # type: ignore[attr-defined]
    if kind == "phase_entered" and (record.actor != "trainer" or record.cause is not None):
        return None  # the phase of an action: it is not compared, the action is
    if kind == "run_failed" and event.error not in ("too_many_failures", "no_engine_left"):  # type: ignore[attr-defined]
        return None  # not decided, but met with
    if kind == "blocked" and (record.actor not in ("collector", "trainer") or event.edge == "durable"):  # type: ignore[attr-defined]
        return None
    changes: dict[str, Callable[[Any], dict[str, Any]]] = {
        "batch_taken": lambda e: {"groups": e.groups[1:]},
        "blocked": lambda e: {"edge": "eval_done"},
        "checkpoint_started": lambda e: {"version": e.version + 1},
        "data_exhausted": lambda e: {"quarantined": e.quarantined + 1},
        "engine_restarted": lambda e: {"restart": e.restart + 1},
        "eval_started": lambda e: {"eval": e.eval + 1},
        "group_buffered": lambda e: {"reward_mean": e.reward_mean + 0.125},
        "group_discarded": lambda e: {"group": e.group + 1},
        "group_dispatched": lambda e: {"target": e.target + 1},
        "group_evicted": lambda e: {"lag": e.lag + 1},
        "group_failed": lambda e: {"blame": "nobody"},
        "group_filtered": lambda e: {"reward_mean": e.reward_mean + 0.125},
        "group_restored": lambda e: {"target": e.target + 1},
        "learner_up": lambda e: {"version": e.version + 1},
        "llm_call_started": lambda e: {"engine": "engine-9"},
        "phase_entered": lambda e: {"phase": "eval" if e.phase != "eval" else "training"},
        "prompt_drawn": lambda e: {"prompt": e.prompt + 1},
        "prompt_quarantined": lambda e: {"failure": "defect"},
        "prompt_returned": lambda e: {"prompt": e.prompt + 1},
        "retry_scheduled": lambda e: {"delay_s": e.delay_s * 2},
        "run_failed": lambda e: {"message": f"not {e.message}"},
        "run_finished": lambda e: {
            "outcome": "interrupted" if e.outcome == "completed" else "completed"
        },
        "run_resumed": lambda e: {"kept": e.kept + 1},
        "stall_cleared": lambda e: {"by": e.by + 1},
        "stall_detected": lambda e: {"chain": (*e.chain[:-1], "the weather")},
        "sync_started": lambda e: {"version": e.version + 1},
        "trajectory_dropped": lambda e: {"blame": "nobody"},
        "weights_published": lambda e: {"version": e.version + 1},
    }  # fmt: skip
    change = changes.get(kind)
    return None if change is None else event.model_copy(update=change(event))


def test_an_edited_decision_is_found_where_it_stands() -> None:
    """Of every kind of decision, one that was changed in the log is the first divergence, at its own seq."""
    tried: Counter[str] = Counter()
    for seed in range(60):
        log = chaos(seed)
        for place, record in enumerate(log):
            kind: str = record.event.kind  # type: ignore[attr-defined]
            event = edited(record) if tried[kind] < 2 else None
            if event is not None:
                found = diverged([*log[:place], record._replace(event=event), *log[place + 1 :]])
                assert found.seq == record.seq, f"seed {seed}, {kind} of seq {record.seq}: {found}"
                tried[kind] += 1
    assert set(tried) >= EVERY_KIND | {"blocked"}


def test_a_number_that_was_passed_over_is_taken_for_a_quarantined_item() -> None:
    """The second epoch leaves the quarantined item out; without the quarantine a gap in the draws is found."""
    world = World(config(data={"size": 12, "epochs": 3}, run={"steps": 6}), items=12)

    async def refuse_3(request: Any) -> None:
        if request.request.split("/")[0] == "3":
            raise PromptTooLong("no")

    world.pool[0].on_generate = refuse_3
    log = world.go().log
    after_gap = first(log, PromptDrawn, lambda event: event.prompt == 16)
    assert all(event.prompt != 15 for event in world.events(PromptDrawn))
    assert isinstance(check(log), Agreement)
    gap = first(log, PromptDrawn, lambda event: event.prompt == 8)
    log[gap.seq] = gap._replace(event=gap.event.model_copy(update={"prompt": 9}))
    assert diverged(log).seq == gap.seq < after_gap.seq


@pytest.mark.parametrize("prompt", [5, 20])
def test_an_index_drawn_twice_in_an_epoch_is_found(prompt: int) -> None:
    """An order holds each item once, so the log is wrong where an item comes again, at once or later."""
    log = World().go().log
    draw = first(log, PromptDrawn, lambda event: event.prompt == prompt)
    log[draw.seq] = draw._replace(event=draw.event.model_copy(update={"index": 2}))
    assert diverged(log).seq == draw.seq


def without(log: Sequence[Record], seqs: set[int]) -> list[Record]:
    """Return the log as if the records of `seqs` had never been, with dense numbers."""
    kept = [record for record in log if record.seq not in seqs]
    number = {record.seq: place for place, record in enumerate(kept)}
    renumbered = []
    for record in kept:
        event = record.event
        if isinstance(event, Unblocked):
            event = event.model_copy(update={"blocked": number[event.blocked]})
        cause = None if record.cause is None else number.get(record.cause, 0)
        renumbered.append(record._replace(seq=number[record.seq], cause=cause, event=event))
    return renumbered


def test_a_decision_that_is_missing_is_found_where_its_actor_went_on() -> None:
    """A retry that was never scheduled shows at the collector's next decision, or where it goes to wait."""
    log = failing().log
    retry = first(log, RetryScheduled)
    behind = next(
        record for record in log[retry.seq + 1 :]
        if record.actor == "collector" and not isinstance(record.event, Unblocked)
    )  # fmt: skip
    found = diverged(without(log, {retry.seq}))
    assert found.seq == behind.seq - 1
    assert "retry_scheduled" in [decided.kind for decided in found.produced]


def test_a_group_that_was_never_buffered_is_found() -> None:
    """A whole group on which nothing was decided shows the same way."""
    log = World().go().log
    buffered = first(log, GroupBuffered)
    found = diverged(without(log, {buffered.seq}))
    assert "group_buffered" in [decided.kind for decided in found.produced]
    assert found.seq < buffered.seq + 40


def test_the_check_of_one_scenario_with_kills_and_evaluations_is_whole() -> None:
    """A killed and resumed run with evaluations: every decision of the log of its kinds was compared."""
    scenario = Scenario.model_validate(
        {
            "config": {"run": {"steps": 6}, "checkpoint": {"every_steps": 2}},
            "fault": [{"where": "run", "what": "kill", "at_event": 400}],
        }
    )
    log = simulate(scenario, Tape(1), evaluating=True).records
    found = check(log)
    assert isinstance(found, Agreement), found
    in_log = Counter(record.event.kind for record in log)  # type: ignore[attr-defined]
    for kind in EVERY_KIND - {"phase_entered", "llm_call_started"}:
        assert found.decisions[kind] == in_log[kind], kind
    assert found.decisions["llm_call_started"] == in_log["llm_call_started"]
