"""The figures of steps: by hand on a small log, and by their laws on random ones."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import World, config

from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.telemetry.trackers.figures import SETTLE_S, StepFigures, StepRow
from eventrain.adapters.telemetry.trackers.window import Rollout, Window, percentile
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    DeviceSampled,
    EvalCompleted,
    Event,
    FinishedTrajectory,
    GroupBuffered,
    GroupDispatched,
    GroupEvicted,
    GroupFiltered,
    GroupRestored,
    LlmCallFinished,
    PayloadRef,
    PhaseEntered,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepStarted,
    TrajectoryCompleted,
)

ROOT = Path(__file__).parents[4]
PAYLOAD = PayloadRef(digest="", length=0, pack=0, offset=0)
SETTINGS = config(scheduler={"groups_per_step": 2, "max_staleness": 1}).model_dump(mode="json")
COMPONENTS = ("llm", "env", "other", "queue", "env_setup", "reward")
"""The parts in the order in which they are told here."""


def log(*script: tuple[float, Event]) -> list[Record]:
    """Return records of `script`: (seconds of monotonic time, event)."""
    return [
        Record(seq, 1000 + round(at_s * 1e9), round(at_s * 1e9), "", None, "", event)
        for seq, (at_s, event) in enumerate(script)
    ]


def fold(records: Iterable[Record]) -> list[StepRow]:
    figures = StepFigures()
    for record in records:
        figures.apply(record)
    return figures.take()


def started() -> RunStarted:
    return RunStarted(run="r", config=SETTINGS, code_version="", seed=0, host="", pid=0, prompts=9)


def entered(phase: Any) -> PhaseEntered:
    return PhaseEntered(phase=phase, step=0)


def dispatched(group: int, version: int) -> GroupDispatched:
    return GroupDispatched(group=group, prompt=group, target=0, version=version, size=2)


def trajectory(group: int, number: int, reward: float, *times: float) -> TrajectoryCompleted:
    """Return one that took `times`, in the order of COMPONENTS."""
    return TrajectoryCompleted(
        trajectory=f"{group}/{number}",
        group=group,
        attempt=0,
        turns=1,
        prompt_tokens=5,
        completion_tokens=7,
        version_spans=(),
        reward=reward,
        stop_reason="done",
        payload=PAYLOAD,
        **{f"{name}_s": value for name, value in zip(COMPONENTS, times, strict=True)},
    )


def buffered(group: int) -> GroupBuffered:
    return GroupBuffered(group=group, target=0, trajectories=2, reward_mean=0.5, reward_std=0.5)


def called(tokens: int, trajectory: str = "0/0") -> LlmCallFinished:
    return LlmCallFinished(
        trajectory=trajectory, turn=0, engine="e", outcome="completed", tokens=tokens, seconds=1
    )


def trained(step: int, **metrics: float) -> StepCompleted:
    return StepCompleted(
        step=step,
        version=step + 1,
        loss=0.25,
        reward_mean=0.5,
        lag_mean=0,
        lag_max=0,
        trained_tokens=100,
        masked_tokens=10,
        metrics=metrics,
        parts_s={"forward_backward": 1.5},
    )


def sampled(
    device: str, pool: Any, utilization: float, window_s: float, source: str = "gpm"
) -> DeviceSampled:
    return DeviceSampled(
        device=device, pool=pool, utilization=utilization, memory_bytes=0, window_s=window_s, source=source
    )


FIRST = (
    (0, started()),
    (1, dispatched(0, 0)),
    (1, dispatched(1, 0)),
    (1, dispatched(2, 0)),
    (2, entered("waiting_for_buffer")),
    (3, trajectory(0, 0, 0.0, 1, 2, 0.5, 0.25, 0.25, 0)),
    (3, trajectory(0, 1, 1.0, 3, 0, 0, 0, 0, 1)),
    (3, called(40)),
    (3, called(9, "eval0/1")),
    (3, buffered(0)),
    (3, GroupFiltered(group=2, reason="zero_variance", reward_mean=1)),
    (3, dispatched(3, 0)),
    (4, trajectory(1, 0, 1.0, 5, 1, 0, 0, 0, 0)),
    (4, trajectory(1, 1, 0.0, 7, 1, 0, 0, 0, 0)),
    (4, buffered(1)),
    (4, entered("converting")),
    (4, BatchTaken(step=0, groups=(0, 1))),
    (4.5, StepStarted(step=0, version=0, groups=2, trajectories=4, tokens=200)),
    (4.5, entered("training")),
    (6, trajectory(3, 0, 1.0, 1, 1, 1, 1, 1, 1)),
    (6, trajectory(3, 1, 0.0, 1, 1, 1, 1, 1, 1)),
    (6, buffered(3)),
    (7, trained(0, kl=0.01, entropy=1.5, clip_share=0.1, grad_norm=2.0, tokens=100.0)),
    (7, entered("weight_sync")),
    (8, entered("eval")),
    (9, EvalCompleted(eval=0, step=1, version=1, reward_mean=0.75, completed=8, failed=1, seconds=1)),
    (9.5, entered("checkpoint")),
)
"""The log of a first step whose window is 10 s long."""


def test_the_figures_of_a_step_are_those_computed_by_hand() -> None:
    """Two groups of two trajectories: every figure of the first step, and no other key."""
    (row,) = fold(log(*FIRST, (10, entered("waiting_for_buffer"))))
    assert (row.step, row.seq, row.ts) == (0, len(FIRST), 10_000_001_000)
    walls = (4, 4, 6, 8)
    want = {
        "timing/step": 10,
        "timing/starting": 2,
        "timing/waiting_for_buffer": 2,
        "timing/converting": 0.5,
        "timing/training": 2.5,
        "timing/weight_sync": 1,
        "timing/eval": 1.5,
        "timing/checkpoint": 0.5,
        "async/gen_buffer_qsize": 0,
        "async/gen_buffer_maxsize": 4,
        "async/staleness_mean": 0,
        "async/staleness_max": 0,
        "async/staleness_min": 0,
        "reward/mean": 0.5,
        "reward/std": 0.5,
        "generate/trajectory_completion_time_mean": 5.5,
        "generate/trajectory_completion_time_p90": 7.4,
        "generate/trajectory_completion_time_max": 8,
        "generate/frac_time_in_env": 4 / sum(walls),
        "policy/loss": 0.25,
        "policy/kl": 0.01,
        "policy/entropy": 1.5,
        "policy/clip_share": 0.1,
        "policy/grad_norm": 2.0,
        "learner/forward_backward_time": 1.5,
        "tokens/generated": 40,
        "tokens/trained": 100,
        "tokens/masked": 10,
        "tokens/batch": 200,
        "throughput/tokens_generated_per_s": 4,
        "throughput/tokens_trained_per_s": 10,
        "eval/reward_mean": 0.75,
        "eval/completed": 8,
        "eval/failed": 1,
        "groups/filtered": 1,
        "groups/failed": 0,
        "groups/evicted": 0,
        "groups/discarded": 0,
    }
    columns = {
        "llm": (4, 6.4, 7),
        "env": (1, 1.7, 2),
        "other": (0.125, 0.35, 0.5),
        "queue": (0.0625, 0.175, 0.25),
        "env_setup": (0.0625, 0.175, 0.25),
        "reward": (0.25, 0.7, 1),
    }
    for name, values in columns.items():
        for what, value in zip(("mean", "p90", "max"), values, strict=True):
            want[f"generate/trajectory_{name}_time_{what}"] = value
    assert row.figures == pytest.approx(want)


def test_the_next_window_begins_where_the_last_one_ended() -> None:
    """Without a wait the window begins with converting; the buffer's depth is that of its beginning."""
    second = (
        (10, entered("converting")),
        (10, BatchTaken(step=1, groups=(3,))),
        (10, entered("training")),
        (11, called(6)),
        (12, GroupEvicted(group=9, lag=3)),
        (12, trained(1)),
        (12, entered("weight_sync")),
        (13, entered("finished")),
        (19, RunFinished(outcome="completed", steps=2, version=2, seconds=19)),
    )
    _, row = fold(log(*FIRST, *second))
    figures = row.figures
    assert (figures["timing/step"], figures["timing/converting"], figures["timing/training"]) == (3, 0, 2)
    assert "timing/waiting_for_buffer" not in figures
    assert figures["async/gen_buffer_qsize"] == 1
    assert figures["async/staleness_mean"] == 1
    assert (figures["tokens/generated"], figures["groups/evicted"], figures["groups/filtered"]) == (6, 1, 0)
    assert "eval/reward_mean" not in figures


def test_device_use_is_weighted_by_its_overlap_with_the_window() -> None:
    """A sample over the boundary counts in both windows, each with its part; the row waits for it."""
    head = [*FIRST]
    head.insert(5, (2.5, sampled("cuda:0", "engine", 1.0, 2.5)))
    tail = (
        (10, entered("waiting_for_buffer")),
        (11, sampled("cuda:0", "engine", 0.5, 8.5)),
        (11, sampled("cpu:learner", "learner", 0.5, 1)),
    )
    (row,) = fold(log(*head, *tail))
    want = (2.5 * 1.0 + 7.5 * 0.5) / 10
    assert row.figures["gpu/cuda:0_utilization_mean"] == pytest.approx(want)
    assert row.figures["gpu/engine_utilization_mean"] == pytest.approx(want)
    assert "cpu/learner_utilization_mean" not in row.figures
    assert row.seq == len(head)


def test_pools_are_means_of_their_devices_and_cpus_are_apart() -> None:
    """GPUs of a pool are averaged, CPU processes are not mixed with them, and Ray's devices have their own key."""
    head = [*FIRST]
    head[5:5] = [
        (2, sampled("cuda:0", "engine", 1.0, 2)),
        (2, sampled("cuda:1", "engine", 0.5, 1)),
        (2, sampled("cpu:engine-0", "engine", 0.25, 2, "psutil")),
        (2, sampled("10.0.0.7/gpu0", "shared", 0.125, 2, "ray")),
    ]
    (row,) = fold(log(*head, (10, entered("waiting_for_buffer")), (10 + SETTLE_S, called(0))))
    used = {key: value for key, value in row.figures.items() if "utilization" in key}
    assert used == {
        "gpu/cuda:0_utilization_mean": 1.0,
        "gpu/cuda:1_utilization_mean": 0.5,
        "gpu/engine_utilization_mean": 0.75,
        "cpu/engine-0_utilization_mean": 0.25,
        "cpu/engine_utilization_mean": 0.25,
        "ray/10.0.0.7/gpu0_utilization_mean": 0.125,
    }


def test_a_row_does_not_wait_long_for_a_device_that_is_gone() -> None:
    """Without a sample after the window the row comes with the first event `SETTLE_S` later, and not before."""
    head = [*FIRST]
    head.insert(5, (2.5, sampled("cuda:0", "engine", 1.0, 2.5)))
    script = (
        *head,
        (10, entered("waiting_for_buffer")),
        (9.9 + SETTLE_S, called(1)),
        (10 + SETTLE_S, called(1)),
    )
    records = log(*script)
    assert fold(records[:-1]) == []
    (row,) = fold(records)
    assert row.figures["tokens/generated"] == 40


def test_times_are_left_out_where_one_trajectory_has_none() -> None:
    """A batch with a restored group, of which the log has no times, has rewards and no split at all."""
    restored = GroupRestored(
        group=8,
        prompt=8,
        index=0,
        target=0,
        version=0,
        size=2,
        step=0,
        trajectories=tuple(
            FinishedTrajectory(trajectory=f"8/{n}", reward=float(n), completion_tokens=1, payload=PAYLOAD)
            for n in range(2)
        ),
    )
    script = [
        (at, BatchTaken(step=0, groups=(0, 8)) if isinstance(event, BatchTaken) else event)
        for at, event in FIRST
    ]
    (row,) = fold(log(script[0], (0.5, restored), *script[1:], (10, entered("waiting_for_buffer"))))
    assert not any(key.startswith("generate/") for key in row.figures)
    assert row.figures["reward/std"] == 0.5


def test_a_resume_takes_steps_back_and_they_come_again() -> None:
    """A step that is rolled back before its window ended leaves no row; trained again, it has one, without the gap."""
    again = (
        (30, RunResumed(step=0, version=0, last_mono=9_500_000_000)),
        (31, entered("converting")),
        (31, BatchTaken(step=0, groups=())),
        (31, entered("training")),
        (32, trained(0)),
        (32, entered("waiting_for_buffer")),
    )
    (row,) = fold(log(*FIRST, *again))
    assert row.step == 0
    assert row.figures["timing/step"] == 2


def test_a_step_that_survives_a_kill_ends_where_the_log_did() -> None:
    """The process was killed after the checkpoint: the window ends with the last event, not with the resume."""
    (row,) = fold(log(*FIRST, (30, RunResumed(step=1, version=1, last_mono=9_750_000_000))))
    assert row.figures["timing/step"] == 9.75


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
def test_percentiles_are_numpys(share: float) -> None:
    """Linear between neighbours, for few values and many."""
    numpy = pytest.importorskip("numpy")
    for values in ([3.0], [2.0, 1.0], [5.0, 1.0, 4.0, 2.0, 8.0]):
        assert percentile(values, share) == pytest.approx(numpy.percentile(values, share * 100))


@settings(deadline=None)
@given(
    count=st.integers(1, 1200),
    period=st.sampled_from([1, 2, 15, 16, 17, 5000]),
    seed=st.integers(0, 2**32),
    share=st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
)
def test_percentiles_of_a_large_batch_are_those_of_all_its_values(
    count: int, period: int, seed: int, share: float
) -> None:
    """A sample only says where to look, even one that has nothing but the largest or the smallest values."""
    draw = random.Random(seed)
    values = [draw.random() + (place % period) for place in range(count)]
    ordered = sorted(values)
    place = share * (count - 1)
    below = int(place)
    above = min(below + 1, count - 1)
    expected = ordered[below] + (ordered[above] - ordered[below]) * (place - below)
    assert percentile(values, share) == expected


def test_the_deviation_of_rewards_is_that_of_the_population() -> None:
    """To the last digits, for rewards that are large beside what they differ by, and none for equal ones."""
    rewards = [1e6 + 0.25 * (place % 3) for place in range(700)]
    for values in (rewards, [0.1] * 64, [0.0, 1.0]):
        window = Window(0, 0, end_ns=10**9, rollouts=[Rollout(value, None) for value in values])
        std = window.figures(1)["reward/std"]
        assert std == pytest.approx(statistics.pstdev(values), rel=1e-9, abs=1e-12)


# Laws


def sound(records: list[Record]) -> Counter[str]:
    """Assert the laws on a whole log; return how often each key was seen."""
    figures, rows, seen = StepFigures(), [], Counter()
    for record in records:
        figures.apply(record)
        if isinstance(record.event, RunResumed):
            rows = [row for row in rows if row.step < record.event.step]
        rows += figures.take()
    kept = {event.step for event in survivors(records)}
    assert [row.step for row in rows] == sorted(kept)
    for row in rows:
        phases = sum(v for k, v in row.figures.items() if k.startswith("timing/") and k != "timing/step")
        assert phases == pytest.approx(row.figures["timing/step"], abs=1e-6)
        assert 0 <= row.figures.get("generate/frac_time_in_env", 0) <= 1
        assert all(map(math.isfinite, row.figures.values()))
        split = [key for key in row.figures if key.startswith("generate/trajectory")]
        assert len(split) in {0, 21}
        parts = sum(row.figures.get(f"generate/trajectory_{name}_time_mean", 0) for name in COMPONENTS)
        assert parts == pytest.approx(row.figures.get("generate/trajectory_completion_time_mean", 0))
        assert row.figures["async/gen_buffer_qsize"] >= 0
        seen.update(row.figures.keys())
    return seen


def survivors(records: Iterable[Record]) -> list[StepCompleted]:
    """Return the steps of the history that counts, by a way of their own."""
    steps: list[StepCompleted] = []
    for record in records:
        if isinstance(record.event, StepCompleted):
            steps.append(record.event)
        elif isinstance(record.event, RunResumed):
            steps = [step for step in steps if step.step < record.event.step]
    return steps


@pytest.mark.parametrize("killing", [False, True], ids=["fresh", "resumed"])
def test_the_laws_hold_in_random_worlds(killing: bool) -> None:
    """One row for each step that survives, phases that add up to windows, shares from 0 to 1, components to walls."""
    seen: Counter[str] = Counter()
    for seed in range(10):
        tape = Tape(seed)
        records = simulate(draw_scenario(tape), tape, killing=killing).records
        seen += sound(records)
    assert {"eval/reward_mean", "timing/checkpoint", "generate/frac_time_in_env"} <= set(seen)


def test_windows_leave_no_gap() -> None:
    """In a run that was never killed the windows add up to the time until the run was finished."""
    world = World(config(eval={"every_steps": 2}, checkpoint={"every_steps": 2})).go()
    rows = fold(world.log)
    (ended,) = [
        r.mono for r in world.log if isinstance(r.event, PhaseEntered) and r.event.phase == "finished"
    ]
    total = sum(row.figures["timing/step"] for row in rows)
    assert total == pytest.approx((ended - world.log[0].mono) / 1e9)


@pytest.mark.parametrize("seed", [2, 5])
def test_a_prefix_gives_the_same_rows(seed: int) -> None:
    """Folding the log only up to any event gives a beginning of the rows, unless its steps are taken back later."""
    tape = Tape(seed)
    records = simulate(draw_scenario(tape), tape).records
    whole = fold(records)
    taken_back = [
        number
        for number, record in enumerate(records)
        if isinstance(record.event, RunResumed) and record.event.rolled_back
    ]
    for cut in range(taken_back[-1] + 1 if taken_back else 0, len(records), 7):
        rows = fold(records[:cut])
        assert rows == whole[: len(rows)]


def test_a_stored_log_folds() -> None:
    """The log of the first schema, which was killed and resumed, gives a row for every step it trained."""
    records = list(LogReader(ROOT / "tests" / "golden" / "run_0_1" / "events").records())
    assert sound(records)["policy/loss"] == len(survivors(records))
