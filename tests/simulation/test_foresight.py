"""Foresight: what cannot make progress is refused with its chain, and nothing else is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from legacy import WindowBehind
from worlds import World, config

from eventrain.adapters.simulated.foresight import refusal, smaller
from eventrain.core.config import RunConfig, SchedulerSection
from eventrain.core.policies import Dispatch
from eventrain.core.policies.targeted import Targeted
from eventrain.core.projections import View

POLICIES = SchedulerSection.model_fields["policy"].annotation.__args__  # type: ignore[union-attr]
MODES = ("drain", "pause", "in_flight")  # the first is refused where groups go on through new weights


class WholeSteps(Targeted):
    """Starts nothing unless a whole step's permits are free: a double that fewer permits stop for ever."""

    def plan(self, view: View, config: RunConfig) -> Sequence[Dispatch]:
        """Return what is due once so many permits are free."""
        free = config.scheduler.permits_or_default - view.groups.in_flight
        return super().plan(view, config) if free >= config.scheduler.groups_per_step else []


@st.composite
def healthy(draw: Any) -> dict[str, dict[str, Any]]:
    """Draw settings that look odd and are sound."""
    per_step, staleness = draw(st.integers(1, 9)), draw(st.integers(0, 6))
    steps, epochs = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    window = per_step * (staleness + 1)
    policy = draw(st.sampled_from(POLICIES))
    most = window if policy == "capacity" else window + 9
    scheduler: dict[str, Any] = {
        "policy": policy,
        "groups_per_step": per_step,
        "max_staleness": staleness,
        "permits": draw(st.none() | st.integers(1, most)),
        "buffer_groups": draw(st.none() | st.integers(per_step, window + 9)),
    }
    need = -(-steps * per_step // epochs)
    return {
        "run": {"steps": steps, "seed": draw(st.integers(0, 9))},
        "data": {"size": need + draw(st.sampled_from([0, 0, 1, 7, 1000])), "epochs": epochs},
        "scheduler": scheduler,
        "rollout": {"group_size": draw(st.integers(2, 5)), "max_turns": draw(st.integers(1, 5))},
        "algorithm": {"drop_zero_variance": draw(st.booleans())},
        "engine": {
            "count": draw(st.integers(1, 3)),
            "slots": draw(st.integers(1, 100)),
            "sync_mode": draw(st.sampled_from(MODES[policy == "token_windowed":])),
            "restarts_max": draw(st.integers(0, 2)),
        },
        "eval": {"every_steps": draw(st.integers(0, 20)), "at_end": draw(st.booleans())},
        "checkpoint": {"every_steps": draw(st.integers(0, 20)), "at_end": draw(st.booleans())},
        "failures": {
            "attempts_max": draw(st.integers(1, 3)),
            "strikes_max": draw(st.integers(1, 3)),
            "share_max": draw(st.sampled_from([0.001, 0.5, 1.0])),
            "window": draw(st.sampled_from([1, 64])),
            "backoff_s": draw(st.sampled_from([0.0, 30.0])),
        },
        "log": {"unsaved_max": draw(st.sampled_from([1, 2, 3, 8192]))},
        "watchdog": {
            "on_stall": draw(st.sampled_from(["warn", "abort"])),
            "livelock_s": draw(st.sampled_from([0.001, 600])),
            "degraded_s": draw(st.sampled_from([0.001, 120])),
        },
        "deadlines": {"llm_call_s": draw(st.sampled_from([1, 600])), "buffer_wait_s": draw(st.sampled_from([2, 7200]))},
    }


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(healthy())
def test_sound_settings_are_never_refused(drawn: dict[str, dict[str, Any]]) -> None:
    """Whatever the permits, the room, the data and the staleness are: what can go on is let through."""
    assert refusal(config(**drawn)) is None


@pytest.mark.timeout(600)  # whole worlds, some of hundreds of steps: beside other work they take their time
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(healthy(), st.sampled_from([Targeted, WindowBehind, WholeSteps]))
def test_the_copy_goes_on_exactly_when_the_whole_run_does(drawn: dict[str, dict[str, Any]], policy: Any) -> None:
    """A policy that some settings stop: the run in full size stops wherever the copy does, in a healthy world."""
    drawn["scheduler"]["policy"] = "targeted"
    drawn["deadlines"], drawn["algorithm"] = {}, {}
    whole = config(**drawn)
    world = World(whole, policy=policy(), engines=whole.engine.count).go()
    assert world.outcome is not None
    refused = refusal(whole, policy=policy())
    # With fewer permits than a step has groups, the time that each part takes decides whether the old window loses one.
    by_time = policy is WindowBehind and whole.scheduler.permits_or_default < whole.scheduler.groups_per_step
    if world.outcome.outcome != "completed" and not by_time:
        assert refused is not None
    if policy is not WindowBehind:  # which stands still only where a prompt fails late, and none does in that world
        assert (refused is None) == (world.outcome.outcome == "completed")


@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_a_window_that_loses_a_hole_is_refused_with_its_chain(staleness: int) -> None:
    """The collector of the over-long prompt is refused before it runs, with the chain that it would end with."""
    refused = refusal(config(scheduler={"max_staleness": staleness}), policy=WindowBehind())
    assert refused is not None
    step = min(staleness, 3) + 1
    links = refused.why.split(" <- ")
    assert links[0] == f"trainer waits buffer_ready({step})"
    assert links[-2:] == [f"collector waits version({step + 1 if staleness else step})", "trainer"]
    if staleness:  # with 0 its window is empty after the first step, and no prompt has to fail
        assert links[1] == f"target {step} short by 1"
        assert links[2].endswith("failed, permanent: prompt too long")
    assert "scheduler.policy = WindowBehind" in str(refused)


def test_the_setting_to_change_is_named() -> None:
    """Where one setting's default would do, the refusal names that setting, and not the others."""
    odd = config(scheduler={"groups_per_step": 4, "permits": 2}, eval={"every_steps": 2}, engine={"slots": 3})
    assert str(refusal(odd, policy=WholeSteps())) == (
        "with scheduler.permits = 2, no step can be trained: trainer waits buffer_ready(0) <- target 0 short by 3 "
        "<- collector waits permit"
    )


@pytest.mark.parametrize(
    ("key", "limit_s", "why"),
    [
        ("start_s", 0.01, "learner_start of learner: no end within 0.01 s"),
        ("llm_call_s", 1e-4, "llm_expired"),
        ("train_step_s", 1e-4, "train_step of step 0: no end within 0.0001 s"),
        ("publish_s", 1e-5, "publish of weights/0: no end within 1e-05 s"),
        ("weight_sync_s", 1e-5, "weight_sync of engine-0: no end within 1e-05 s"),
        ("eval_s", 1e-5, "eval of eval0: no end within 1e-05 s"),
        ("checkpoint_s", 1e-5, "checkpoint of checkpoints/"),
        ("buffer_wait_s", 0.01, "trainer waits engine_available <- no engine is up"),
        ("durable_s", 1e-5, "wait of durable(seq"),
    ],
)
def test_a_deadline_that_nothing_can_keep_is_refused(key: str, limit_s: float, why: str) -> None:
    """A deadline below what the fastest parts take can only expire; the refusal names it and its default."""
    refused = refusal(config(deadlines={key: limit_s}, eval={"every_steps": 2}))
    assert refused is not None
    assert why in refused.why
    assert refused.settings[0].startswith(f"deadlines.{key} = {limit_s} (its default ")


def test_the_copy_keeps_the_place_of_permits_and_room() -> None:
    """Below a step, whole steps, between, the window and more than it: the copy has them in the same order."""

    def copied(permits: int, per_step: int, staleness: int) -> tuple[int, int]:
        settings = {"groups_per_step": per_step, "max_staleness": staleness, "permits": permits}
        copy = smaller(config(scheduler=settings, data={"size": 100_000})).scheduler
        assert copy.permits is not None
        return copy.permits, copy.groups_per_step

    for per_step in (1, 2, 3, 4, 100):
        for staleness in (0, 1, 3, 8):
            window = per_step * (staleness + 1)
            for permits in range(1, window + 3):
                small, step = copied(permits, per_step, staleness)
                room = step * (min(staleness, 3) + 1)
                assert small >= 1
                assert (small < step) == (permits < per_step)
                assert (small % step == 0) == (permits % per_step == 0) or permits > window
                assert (small == room) == (permits == window)
                assert (small > room) == (permits > window)


def test_a_large_run_is_looked_at_as_quickly_as_a_small_one() -> None:
    """Hundreds of groups of dozens of trajectories a step cost nothing more: the copy is small."""
    large = config(
        run={"steps": 5000},
        data={"size": 10**7},
        scheduler={"groups_per_step": 512, "max_staleness": 8, "permits": 1000},
        rollout={"group_size": 64, "max_turns": 20},
        engine={"count": 32},
        eval={"every_steps": 100, "prompts": 5000},
        checkpoint={"every_steps": 50},
    )
    began = time.process_time()
    assert refusal(large) is None
    assert time.process_time() - began < 1.0
