"""A small run written by hand: two steps of two groups, one failed attempt, one quarantined prompt, one open wait.

Its clocks are fixed, so what the commands print of it is fixed too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from eventrain.adapters.cli.main import commands
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.payload import PayloadStore
from eventrain.events.record import Record
from eventrain.events.trajectory import TrajectoryPayload, Turn, float32_bytes, int32_bytes
from eventrain.events.types import (
    BatchTaken,
    Blocked,
    EngineUp,
    EnvStepFinished,
    EnvStepStarted,
    Event,
    GroupBuffered,
    GroupDispatched,
    GroupFailed,
    LearnerUp,
    LlmCallFinished,
    LlmCallStarted,
    PayloadRef,
    PhaseEntered,
    PromptDrawn,
    PromptQuarantined,
    RetryScheduled,
    RunFailed,
    RunStarted,
    StepCompleted,
    StepStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
    Unblocked,
    WeightsPublished,
)

START_TS = 1_767_268_800_000_000_000  # 2026-01-01 12:00:00 UTC
START_MONO = 5_000_000_000

CONFIG: dict[str, Any] = {
    "run": {"name": "hunt", "steps": 3},
    "model": {"path": "/models/tiny"},
    "data": {"kind": "generated", "size": 100},
    "environment": {"kind": "number_hunt"},
    "rollout": {"group_size": 2},
    "scheduler": {"groups_per_step": 2},
}


class SmallRun:
    """The records, published one after the other, and the payloads that they refer to."""

    def __init__(self, store: PayloadStore) -> None:
        self.records: list[Record] = []
        self._store = store
        self._now_ns = 0

    def publish(self, actor: str, event: Event, after_s: float = 0.01) -> None:
        """Append `event`, `after_s` seconds after the one before."""
        self._now_ns += round(after_s * 1e9)
        seq = len(self.records)
        self.records.append(
            Record(seq, START_TS + self._now_ns, START_MONO + self._now_ns, actor, None, "", event)
        )

    def tell(self) -> None:
        """Publish the whole run up to the middle of its third step."""
        self.publish(
            "run",
            RunStarted(run="hunt", config=CONFIG, code_version="0.1", seed=0, host="box", pid=7, prompts=100),
            0,
        )
        self.publish("trainer", PhaseEntered(phase="starting", step=0))
        self.publish("engine_pool", EngineUp(engine="e0", version=0, context_tokens=96, slots=8), 2)
        self.publish("trainer", LearnerUp(version=0, parameters=120_000, device="cpu"), 0.5)
        self.publish("trainer", PhaseEntered(phase="generating", step=0))
        for group in range(6):
            self.publish("collector", PromptDrawn(prompt=group, epoch=0, index=group * 7))
            version = max(0, group // 2 - 1)
            self.publish(
                "collector",
                GroupDispatched(group=group, prompt=group, target=group // 2, version=version, size=2),
            )
        self._trajectory("0/0", 0, reward=1.0, version=0)
        self._failed_attempt("0/1")
        self._trajectory("0/1", 0, reward=0.0, version=0, attempt=1)
        self.publish(
            "collector", GroupBuffered(group=0, target=0, trajectories=2, reward_mean=0.5, reward_std=0.5)
        )
        self._group(1, version=0)
        self._step(0, (0, 1), reward=0.75)
        self._group(2, version=1)
        self._group(3, version=1)
        self._step(1, (2, 3), reward=0.875)
        self._lost_group(4)
        self.publish(
            "trainer",
            Blocked(waiter="trainer", edge="buffer_ready", awaited="2 groups for step 2", present="0 groups"),
        )

    def fail(self) -> None:
        """End the run by a failure."""
        blocked = self.records[-1].seq
        self.publish(
            "trainer",
            Unblocked(waiter="trainer", edge="buffer_ready", blocked=blocked, outcome="expired", seconds=0),
        )
        self.publish(
            "run",
            RunFailed(
                failed_actor="trainer", error="DeadlineExpired", message="no batch came", first_cause=3
            ),
            1,
        )

    def _group(self, group: int, version: int) -> None:
        for member in range(2):
            self._trajectory(f"{group}/{member}", group, reward=1.0, version=version)
        self.publish(
            "collector",
            GroupBuffered(group=group, target=group // 2, trajectories=2, reward_mean=1.0, reward_std=0.0),
        )

    def _trajectory(self, name: str, group: int, *, reward: float, version: int, attempt: int = 0) -> None:
        publish = self.publish
        publish("rollout", TrajectoryStarted(trajectory=name, group=group, attempt=attempt))
        publish("rollout", EnvStepStarted(trajectory=name, turn=-1, call="reset"), 0)
        publish(
            "rollout",
            EnvStepFinished(trajectory=name, turn=-1, call="reset", outcome="completed", seconds=0.001),
            0.001,
        )
        for turn, tokens in ((0, 2), (1, 3)):
            publish(
                "rollout",
                LlmCallStarted(
                    trajectory=name, turn=turn, engine="e0", prompt_tokens=4 + turn * 4, max_tokens=8
                ),
                0,
            )
            publish(
                "engine_pool",
                LlmCallFinished(
                    trajectory=name,
                    turn=turn,
                    engine="e0",
                    outcome="completed",
                    tokens=tokens,
                    version_spans=((version, tokens),),
                    queue_s=0.002,
                    seconds=0.05,
                    finish_reason="stop",
                ),
                0.052,
            )
        publish(
            "rollout",
            TrajectoryCompleted(
                trajectory=name,
                group=group,
                attempt=attempt,
                turns=2,
                prompt_tokens=6,
                completion_tokens=5,
                version_spans=((version, 2), (version + 1, 3)),
                reward=reward,
                stop_reason="done",
                queue_s=0.004,
                llm_s=0.1,
                env_setup_s=0.001,
                env_s=0.003,
                reward_s=0.0,
                other_s=0.002,
                payload=self._payload(reward, version),
            ),
            0.005,
        )

    def _payload(self, reward: float, version: int) -> PayloadRef:
        sampled = bytes([0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1])
        payload = TrajectoryPayload(
            tokens=int32_bytes(range(20, 31)),
            sampled=sampled,
            logprobs=float32_bytes(-0.5 if bit else 0.0 for bit in sampled),
            versions=int32_bytes([-1] * 4 + [version] * 2 + [-1] * 2 + [version + 1] * 3),
            opening=[("system", "Find the number."), ("user", "It is between 1 and 8.\nYour guess?")],
            turns=[
                Turn(4, 2, "stop", "4", [("user", "higher")], 0.002, 0.05, 0.002),
                Turn(8, 3, "stop", "6", [], 0.002, 0.05, 0.001),
            ],
            reward=reward,
        )
        return self._store.put(payload.encode())

    def _failed_attempt(self, name: str) -> None:
        self.publish("rollout", TrajectoryStarted(trajectory=name, group=0, attempt=0))
        self.publish(
            "rollout",
            TrajectoryFailed(
                trajectory=name,
                group=0,
                attempt=0,
                failure="env_error",
                retryable=True,
                blame="environment",
                message="ZeroDivisionError: division by zero",
            ),
            0.3,
        )
        self.publish("collector", RetryScheduled(trajectory=name, group=0, attempt=1, delay_s=0.5), 0)

    def _lost_group(self, group: int) -> None:
        self.publish("rollout", TrajectoryStarted(trajectory=f"{group}/0", group=group, attempt=0))
        self.publish(
            "rollout",
            TrajectoryFailed(
                trajectory=f"{group}/0",
                group=group,
                attempt=0,
                failure="prompt_too_long",
                retryable=False,
                blame="prompt",
                message="120 tokens do not fit the context of 96",
            ),
            0.1,
        )
        self.publish(
            "collector",
            GroupFailed(
                group=group,
                failure="prompt_too_long",
                retryable=False,
                blame="prompt",
                message="120 tokens do not fit the context of 96",
            ),
        )
        self.publish(
            "collector",
            PromptQuarantined(
                prompt=group,
                index=group * 7,
                failure="prompt_too_long",
                message="120 tokens do not fit the context of 96",
            ),
        )

    def _step(self, step: int, groups: tuple[int, ...], reward: float) -> None:
        publish = self.publish
        publish("trainer", BatchTaken(step=step, groups=groups))
        publish("trainer", PhaseEntered(phase="training", step=step), 0)
        publish(
            "trainer",
            StepStarted(step=step, version=step, groups=2, trajectories=4, tokens=44, trained_tokens=20),
        )
        publish(
            "trainer",
            StepCompleted(
                step=step,
                version=step + 1,
                loss=-0.0123456,
                reward_mean=reward,
                lag_mean=0.5,
                lag_max=1,
                trained_tokens=20,
                metrics={"grad_norm": 1.25},
                parts_s={"forward_backward": 0.3, "optimizer": 0.1},
            ),
            0.4,
        )
        publish(
            "trainer",
            WeightsPublished(
                version=step + 1, path=f"weights/{step + 1}.safetensors", size_bytes=48_000, seconds=0.02
            ),
        )
        publish("trainer", PhaseEntered(phase="generating", step=step + 1))


def write_run(path: Path, *, failed: bool = False, upto: int | None = None) -> RunFolder:
    """Write the small run to a new run folder at `path` and return it; `upto` cuts it before that seq."""
    folder = RunFolder.create(path)
    with closing(PayloadStore(folder.payloads)) as store:
        run = SmallRun(store)
        run.tell()
        if failed:
            run.fail()
        append(folder, run.records[:upto], first_seq=0)
    return folder


def append(folder: RunFolder, records: list[Record], first_seq: int) -> None:
    """Write `records` to the folder's log, as one writer."""
    writer = LogWriter(
        folder.events, run="hunt", epoch=1 + first_seq, first_seq=first_seq, segment_bytes=1 << 20
    )
    writer.start(lambda _seq: None, lambda _error: None)
    for record in records:
        writer.append(record)
    writer.close()


@pytest.fixture(name="small_run")
def _small_run(tmp_path: Path) -> SmallRun:
    """Return the small run, told up to its third step."""
    (tmp_path / "payloads").mkdir()
    with closing(PayloadStore(tmp_path / "payloads")) as store:
        run = SmallRun(store)
        run.tell()
    return run


@pytest.fixture(name="write_run")
def _write_run() -> Callable[..., RunFolder]:
    """Return the function that writes the small run to a folder."""
    return write_run


@pytest.fixture(name="append_records")
def _append_records() -> Callable[..., None]:
    """Return the function that continues a log."""
    return append


@pytest.fixture(name="command")
def _command() -> Callable[..., Result]:
    """Return a function that runs a command line in this process, as ``eventrain`` does."""

    def run(*arguments: str | Path) -> Result:
        return CliRunner().invoke(commands, [str(argument) for argument in arguments], prog_name="eventrain")

    return run
