"""The seeded director: worlds of messages keep every law, and a seed gives the same world again."""

from __future__ import annotations

from typing import Any

import pytest
from legacy import ClearsBeforeSleep, WindowBehind

from eventrain.adapters.simulated.director import Directed, Endless, direct
from eventrain.adapters.simulated.message_world import Setting, setting
from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.tape import Tape
from eventrain.core.policies import Policy
from eventrain.events.codec import encode

FAULTS: tuple[dict[str, Any], ...] = (
    {"where": "engine.generate", "what": "refuse", "times": 2},
    {"where": "engine.generate", "what": "gone", "times": 2, "one_in": 30},
    {"where": "engine.generate", "what": "hang", "one_in": 20},
    {"where": "environment.step", "what": "error", "one_in": 20},
    {"where": "environment.reward", "what": "nan", "one_in": 20},
    {"where": "engine.finish_update", "what": "lose_reply", "times": 1},
    {"where": "engine.start", "what": "error", "times": 1},
    {"where": "learner.checkpoint", "what": "error", "times": 1},
    {"where": "learner.train", "what": "gone", "one_in": 40},
    {"where": "run", "what": "stop", "at_event": 0, "times": 1, "one_in": 3000},
)


def world(
    number: int = 0, *, faults: tuple[dict[str, Any], ...] = FAULTS, double: Policy | None = None
) -> Setting:
    """Return world `number`: policies, sync modes, sizes and bounds vary with it."""
    staleness, per_step = number // 3 % 4, 1 + number // 5 % 3
    config: dict[str, dict[str, Any]] = {
        "run": {"steps": 6},
        "data": {"size": 90},
        "scheduler": {
            "policy": ("targeted", "capacity", "windowed")[number % 3],
            "groups_per_step": per_step,
            "max_staleness": staleness,
        },
        "rollout": {"group_size": 2 + number % 3},
        "algorithm": {"drop_zero_variance": number % 2 == 0},
        "engine": {"sync_mode": ("in_flight", "pause", "drain")[number // 2 % 3]},
        "eval": {"every_steps": number % 4 and 2, "prompts": 2},
        "failures": {"share_max": 1.0},
    }
    about = {"engines": 1 + number % 3, "rewards": "any" if faults else "mixed"}
    scenario = Scenario.model_validate({"config": config, "world": about, "fault": faults})
    return setting(scenario, policy=double, fine=number % 7 != 0, tick_ns=10_000_000)


def sound(seeds: range) -> dict[str, int]:
    """Run a world for each seed; return how they ended."""
    ends: dict[str, int] = {}
    for seed in seeds:
        ended = direct(world(seed), Tape(seed))
        assert ended.stall is None, f"seed {seed}: {ended.stall}"
        assert not ended.breaches, f"seed {seed}: {ended.breaches}"
        end = f"{ended.outcome} {ended.error}".strip()
        ends[end] = ends.get(end, 0) + 1
    return ends


def test_every_law_holds_in_a_hundred_worlds() -> None:
    """With everything going wrong now and then nothing stalls, and each run ends as its faults allow."""
    ends = sound(range(100))
    assert {"completed", "interrupted", "failed learner_lost", "failed no_engine_left"} <= set(ends)
    assert set(ends) <= {
        "completed", "interrupted", "data_exhausted", "failed learner_lost", "failed no_engine_left"
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_law_holds_in_five_thousand_worlds() -> None:
    """The same with more seeds."""
    sound(range(1000, 6000))


def summary(ended: Directed) -> tuple[Any, ...]:
    assert ended.log is not None
    return (ended.outcome, ended.moves, [encode(record) for record in ended.log])


@pytest.mark.parametrize("number", [1, 5, 9])
def test_a_seed_and_its_tape_give_the_same_log(number: int) -> None:
    """The same seed gives the same log, its recorded tape too, another seed another one."""
    tape = Tape(number)
    first = summary(direct(world(number), tape, keep_log=True))
    assert summary(direct(world(number), Tape(number), keep_log=True)) == first
    assert summary(direct(world(number), tape.replayed(), keep_log=True)) == first
    assert summary(direct(world(number), Tape(number + 1), keep_log=True)) != first


def test_zeros_are_the_plain_order_without_a_fault() -> None:
    """A tape of zeros strikes nobody, whatever the rules allow."""
    for number in range(6):
        ended = direct(world(number), Tape(0, {}))
        assert ended.outcome == "completed"


def test_a_planted_hole_is_found_by_a_seed_and_told() -> None:
    """The legacy window stalls under some seed, and the shipped verdict names the chain."""
    refused = ({"where": "engine.generate", "what": "refuse", "times": 1},)
    stalls = [
        ended.stall
        for seed in range(20)
        if (ended := direct(world(3, faults=refused, double=WindowBehind()), Tape(seed))).stall
    ]
    assert stalls
    assert all(stall.kind == "deadlock" for stall in stalls)
    assert any("refused" in link for stall in stalls for link in stall.chain)


def test_a_sleeper_is_found_by_a_seed() -> None:
    """A collector that clears its flag too late sleeps for ever under some seed, and the verdict says so."""
    found = [
        direct(world(3, faults=()), Tape(seed), attention=ClearsBeforeSleep()).stall for seed in range(200)
    ]
    chains = [stall.chain[-1] for stall in found if stall is not None]
    assert "collector asleep although its decision is due: predicate true, waiter asleep" in chains


def test_what_makes_no_end_is_ended() -> None:
    """After its limit of moves a world is given up as endless."""
    with pytest.raises(Endless, match="no end after 100 moves"):
        direct(world(), Tape(0), moves_max=100)
