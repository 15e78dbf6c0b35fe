"""Logs for the tests of traces: told by hand, or made by random worlds; and what holds of their spans."""

from __future__ import annotations

from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.simulation import Simulated, simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.telemetry.traces.builder import TraceBuilder
from eventrain.adapters.telemetry.traces.sampling import Sampling
from eventrain.adapters.telemetry.traces.spans import Span
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    Blocked,
    EnvStepFinished,
    EnvStepStarted,
    Event,
    GroupBuffered,
    GroupDispatched,
    LlmCallFinished,
    LlmCallStarted,
    PayloadRef,
    PhaseEntered,
    RewardScored,
    RunFinished,
    RunStarted,
    StepCompleted,
    StepStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
    Unblocked,
)

START_TS = 1_767_268_800_000_000_000  # 2026-01-01 12:00:00 UTC
CONFIG: dict[str, Any] = {
    "run": {"name": "told", "steps": 3},
    "model": {"path": "/models/tiny"},
    "environment": {"kind": "number_hunt"},
    "engine": {"kind": "torch"},
}
NOWHERE = PayloadRef(digest="", length=0, pack=0, offset=0)


class Told:
    """A log that a test tells, event by event."""

    def __init__(self, config: dict[str, Any] = CONFIG) -> None:
        self.records: list[Record] = []
        self.mono = 0
        self.set_forward_ns = 0
        """How far the wall clock is ahead of where it began, besides the time that passed."""
        self.publish(
            RunStarted(run="told", config=config, code_version="0.1", seed=0, host="box", pid=7, prompts=9)
        )

    def publish(self, event: Event, after_s: float = 0.0, actor: str = "") -> int:
        """Append `event`, `after_s` after the one before; return its seq."""
        self.mono += round(after_s * 1e9)
        ts = START_TS + self.mono + self.set_forward_ns
        self.records.append(Record(len(self.records), ts, self.mono, actor, None, "", event))
        return len(self.records) - 1

    def dispatch(self, group: int, size: int = 2, version: int = 0) -> None:
        """Dispatch a group."""
        self.publish(
            GroupDispatched(group=group, prompt=group, target=0, version=version, size=size), 0.001
        )

    def start(self, name: str, attempt: int = 0) -> None:
        """Start an attempt, and set its environment up."""
        self.publish(TrajectoryStarted(trajectory=name, group=_group(name), attempt=attempt), 0.01)
        self.publish(EnvStepStarted(trajectory=name, turn=-1, call="reset"))
        self.publish(
            EnvStepFinished(trajectory=name, turn=-1, call="reset", outcome="completed", seconds=0.002), 0.002
        )

    def call(self, name: str, turn: int = 0) -> None:
        """Ask an engine."""
        self.publish(
            LlmCallStarted(trajectory=name, turn=turn, engine="e0", prompt_tokens=8, max_tokens=16)
        )

    def turn(self, name: str, seconds: float, turn: int = 0, version: int = 0) -> None:
        """One whole turn."""
        self.call(name, turn)
        self.publish(
            LlmCallFinished(
                trajectory=name, turn=turn, engine="e0", outcome="completed", tokens=5, finish_reason="stop",
                version_spans=((version, 3), (version + 1, 2)), queue_s=0.25 * seconds, seconds=0.75 * seconds,
            ),
            seconds,
        )  # fmt: skip
        self.publish(EnvStepStarted(trajectory=name, turn=turn))
        self.publish(
            EnvStepFinished(trajectory=name, turn=turn, outcome="completed", seconds=0.003, done=True), 0.003
        )

    def complete(self, name: str, attempt: int = 0, reward: float = 1.0) -> None:
        """Score and complete an attempt."""
        self.publish(EnvStepStarted(trajectory=name, turn=1, call="reward"))
        self.publish(
            EnvStepFinished(trajectory=name, turn=1, call="reward", outcome="completed", seconds=0.001), 0.001
        )
        self.publish(RewardScored(trajectory=name, reward=reward))
        self.publish(
            TrajectoryCompleted(
                trajectory=name, group=_group(name), attempt=attempt, turns=1, prompt_tokens=8,
                completion_tokens=5, version_spans=((0, 3), (1, 2)), reward=reward, stop_reason="done",
                queue_s=0.0, llm_s=0.0, env_setup_s=0.0, env_s=0.0, reward_s=0.0, other_s=0.0, payload=NOWHERE,
            )
        )  # fmt: skip

    def trajectory(self, name: str, seconds: float = 0.1, attempt: int = 0) -> None:
        """One whole attempt."""
        self.start(name, attempt)
        self.turn(name, seconds)
        self.complete(name, attempt)

    def fail(self, name: str, failure: str = "env_error", attempt: int = 0) -> None:
        """End an attempt without a reward."""
        fields = {
            "trajectory": name,
            "group": _group(name),
            "attempt": attempt,
            "failure": failure,
            "retryable": True,
            "blame": "environment",
            "message": "ZeroDivisionError: division by zero",
        }
        self.publish(TrajectoryFailed.model_validate(fields), 0.02)

    def buffer(self, group: int, trajectories: int = 2) -> None:
        """Buffer a group."""
        self.publish(
            GroupBuffered(
                group=group, target=0, trajectories=trajectories, reward_mean=0.5, reward_std=0.5
            ),
            0.001,
        )

    def group(self, group: int, *seconds: float) -> None:
        """One whole group, whose trajectories' calls take `seconds`."""
        self.dispatch(group, len(seconds))
        for index, each in enumerate(seconds):
            self.trajectory(f"{group}/{index}", each)
        self.buffer(group, len(seconds))

    def wait(self) -> int:
        """Have the trainer wait for a batch; return the seq of the wait."""
        return self.publish(
            Blocked(waiter="trainer", edge="buffer_ready", awaited="2 groups", present="0 groups"), 0.01
        )

    def waited(self, blocked: int) -> None:
        """End the wait."""
        self.publish(
            Unblocked(waiter="trainer", edge="buffer_ready", blocked=blocked, outcome="ready", seconds=1.0)
        )

    def step(self, step: int, *groups: int) -> None:
        """Train a step, up to the wait for the next."""
        self.publish(PhaseEntered(phase="converting", step=step), 0.01)
        self.publish(BatchTaken(step=step, groups=groups))
        self.publish(
            StepStarted(step=step, version=step, groups=len(groups), trajectories=4, tokens=44), 0.02
        )
        self.publish(PhaseEntered(phase="training", step=step + 1))
        self.publish(
            StepCompleted(
                step=step, version=step + 1, loss=-0.5, reward_mean=0.5, lag_mean=0.0, lag_max=0,
                parts_s={"convert": 0.02, "train": 0.4},
            ),
            0.4,
        )  # fmt: skip
        self.publish(PhaseEntered(phase="weight_sync", step=step + 1))
        self.publish(PhaseEntered(phase="waiting_for_buffer", step=step + 1), 0.05)

    def finish(self) -> None:
        """End the run."""
        self.publish(PhaseEntered(phase="finished", step=3), 0.01)
        self.publish(RunFinished(outcome="completed", steps=3, version=3, seconds=1.0))


def _group(name: str) -> int | None:
    first = name.partition("/")[0]
    return int(first) if first.isdecimal() else None


@cache
def chaos(seed: int, killing: bool = False) -> Simulated:
    """Return a random world's run; with `killing` it is killed once and resumed."""
    tape = Tape(seed)
    return simulate(draw_scenario(tape), tape, killing=killing)


def spans_of(records: list[Record], sampling: Sampling | None = None, **limits: int) -> list[Span]:
    """Return all spans of a log, cut where it ends."""
    builder = TraceBuilder(sampling, **limits)
    return [span for record in records for span in builder.apply(record)] + builder.cut()


def attributes(span: Span) -> dict[str, Any]:
    """Return a span's attributes by name."""
    return dict(span.attributes)


def traced(spans: list[Span]) -> set[str]:
    """Return the trajectories that have a trace, without copies of what is open."""
    return {
        attributes(span)["rl.trajectory.id"]
        for span in spans
        if span.name.startswith("invoke_agent") and "rl.span.snapshot_seq" not in attributes(span)
    }


def write(path: Path, records: list[Record]) -> RunFolder:
    """Write a log to a new run folder."""
    folder = RunFolder.create(path)
    with closing(writer_of(folder)) as writer:
        for record in records:
            writer.append(record)
    return folder


def writer_of(folder: RunFolder) -> LogWriter:
    """Return a started writer of `folder`'s log, with small segments."""
    writer = LogWriter(folder.events, run="told", epoch=1, first_seq=0, segment_bytes=4096)
    writer.start(lambda _seq: None, lambda _error: None)
    return writer
