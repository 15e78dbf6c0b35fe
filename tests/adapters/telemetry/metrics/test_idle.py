"""Why devices are idle: each rule, in a run told for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
from told_runs import ToldRun

from eventrain.adapters.telemetry.metrics.idle import CAUSES, RULES
from eventrain.adapters.telemetry.metrics.meter import Meter
from eventrain.events.types import (
    Blocked,
    DeviceSampled,
    EngineLost,
    EnginePaused,
    EnvStepStarted,
    EvalStarted,
    GroupBuffered,
    LlmCallStarted,
    Phase,
    PhaseEntered,
    StallDetected,
    SyncStarted,
)


def idle(told: ToldRun, pool: str, window_s: float = 1.0) -> dict[str, float]:
    """Return the idle seconds by cause of a device that did nothing for the last `window_s` seconds."""
    told.publish(
        "telemetry",
        DeviceSampled(device="d", pool=pool, utilization=0.0, memory_bytes=1, window_s=window_s),
    )
    meter = Meter()
    for record in told.records:
        meter.apply(record)
    series = meter.snapshot(0).values["rl_gpu_idle_seconds_total"]
    return {cause: seconds for (_, cause), seconds in series.items() if seconds}


def begun(phase: Phase = "waiting_for_buffer", **scheduler: int) -> ToldRun:
    """Tell a run that is in `phase`, with one engine of 8 slots."""
    told = ToldRun()
    told.begin({"scheduler": {"groups_per_step": 4, **scheduler}})
    told.publish("trainer", PhaseEntered(phase=phase, step=0))
    return told


def blocked(told: ToldRun, edge: str) -> None:
    told.publish("collector", Blocked(waiter="collector", edge=edge, awaited="", present=""))


def buffered(told: ToldRun, group: int) -> None:
    told.dispatch(group, target=0, version=0)
    told.publish(
        "collector", GroupBuffered(group=group, target=0, trajectories=2, reward_mean=0.5, reward_std=0.5)
    )


@pytest.mark.parametrize("phase", get_args(Phase))
def test_the_learner_is_idle_for_its_phase(phase: Phase) -> None:
    """A phase with a name among the causes is the cause; training leaves room, and waiting is starvation."""
    told = begun(phase)
    told.after(1.0)
    expected = {
        "training": "low_use", "finished": "low_use", "generating": "buffer_starvation",
        "waiting_for_buffer": "buffer_starvation",
    }.get(phase, phase)  # fmt: skip
    assert idle(told, "learner") == {expected: pytest.approx(1.0)}


def test_the_learner_waits_for_the_last_group() -> None:
    """Once three of four groups are there, the wait is for a straggler."""
    told = begun()
    for group in range(3):
        buffered(told, group)
        told.after(1.0)
    assert idle(told, "learner", 3.0) == {
        "buffer_starvation": pytest.approx(2.0),
        "straggler": pytest.approx(1.0),
    }


def test_the_learner_waits_for_a_group_that_takes_three_times_as_long() -> None:
    """Time alone makes a straggler: the window is split where the oldest group becomes one, without any event."""
    told = begun()
    told.dispatch(0, target=0, version=0)
    told.after(2.0)
    told.publish(
        "collector", GroupBuffered(group=0, target=0, trajectories=2, reward_mean=0.5, reward_std=0.5)
    )
    told.dispatch(1, target=0, version=0)
    told.after(10.0)
    assert idle(told, "learner", 10.0) == {
        "buffer_starvation": pytest.approx(6.0),
        "straggler": pytest.approx(4.0),
    }


def lose(told: ToldRun) -> None:
    told.publish("engine_pool", EngineLost(engine="engine-0", message=""))


def stall(told: ToldRun) -> None:
    told.publish("watchdog", StallDetected(stall=0, stall_kind="deadlock", chain=(), sentence=""))


@pytest.mark.parametrize("fault", [lose, stall])
def test_the_learner_waits_because_of_a_fault(fault: Callable[[ToldRun], None]) -> None:
    """Without an engine, or under a stall's verdict, nothing but the fault is to blame."""
    told = begun()
    buffered(told, 0)
    fault(told)
    told.after(1.0)
    assert idle(told, "learner") == {"fault": pytest.approx(1.0)}


def in_environments(told: ToldRun) -> None:
    told.dispatch(0, target=0, version=0, size=2)
    for member in range(2):
        told.publish("rollout", EnvStepStarted(trajectory=f"0/{member}", turn=0))


def in_calls(told: ToldRun, size: int) -> None:
    told.dispatch(0, target=0, version=0, size=size)
    for member in range(size):
        call = LlmCallStarted(
            trajectory=f"0/{member}", turn=0, engine="engine-0", prompt_tokens=1, max_tokens=1
        )
        told.publish("engine_pool", call)


def gated(told: ToldRun) -> None:
    blocked(told, "version")


def saturated(told: ToldRun) -> None:
    in_calls(told, 8)
    blocked(told, "permit")


def nearly_empty(told: ToldRun) -> None:
    in_calls(told, 2)
    blocked(told, "permit")


def evaluating(told: ToldRun) -> None:
    blocked(told, "version")
    told.publish("trainer", EvalStarted(eval=0, step=0, version=0, trajectories=2))


def syncing(told: ToldRun) -> None:
    told.publish("engine_pool", SyncStarted(engine="engine-0", version=1, mode="in_flight"))


def draining(told: ToldRun) -> None:
    in_calls(told, 2)
    told.publish("engine_pool", EnginePaused(engine="engine-0", mode="drain"))


@pytest.mark.parametrize(
    ("tell", "cause"),
    [
        (in_environments, "environment"),
        (gated, "staleness_gate"),
        (nearly_empty, "backpressure"),
        (saturated, "low_use"),
        (evaluating, "eval"),
        (syncing, "weight_sync"),
        (draining, "weight_sync"),
        (lose, "fault"),
    ],
)
def test_engines_are_idle_for_a_reason(tell: Callable[[ToldRun], None], cause: str) -> None:
    """Each cause of the engine pool, in the state that it is named for."""
    told = begun("training")
    tell(told)
    told.after(1.0)
    assert idle(told, "engine") == {cause: pytest.approx(1.0)}


def test_a_shared_device_waits_with_the_engines_and_trains_with_the_learner() -> None:
    """While the trainer waits its cause is the engines', and the learner's otherwise."""
    told = begun("waiting_for_buffer")
    in_environments(told)
    told.after(1.0).publish("trainer", PhaseEntered(phase="converting", step=0))
    told.after(1.0)
    assert idle(told, "shared", 2.0) == {"environment": pytest.approx(1.0), "converting": pytest.approx(1.0)}


def test_the_documented_rules_name_every_cause_and_no_other() -> None:
    """Each cause of the metric has a rule on the page."""
    named = {cause for _, causes, _ in RULES for cause in causes.split(", ")}
    assert named - {"as the learner"} == set(CAUSES)
