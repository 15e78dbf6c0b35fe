"""Runs that are told, not run: logs whose every second is known, for telemetry that must add up.

`ToldRun` appends events at times that the teller says. `phased_run` tells a whole run of equal steps, with samples of
two devices whose true use in each phase is given, so that what a query finds can be compared with the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    Blocked,
    DeviceSampled,
    EngineUp,
    EnvStepFinished,
    EnvStepStarted,
    Event,
    GroupBuffered,
    GroupDispatched,
    LearnerUp,
    LlmCallFinished,
    LlmCallStarted,
    PayloadRef,
    Phase,
    PhaseEntered,
    PromptDrawn,
    RewardScored,
    RunFinished,
    RunStarted,
    StepCompleted,
    StepStarted,
    SyncAcknowledged,
    SyncStarted,
    TrajectoryCompleted,
    TrajectoryStarted,
    Unblocked,
    WeightsPublished,
)

START_TS = 1_767_268_800_000_000_000
"""2026-01-01 12:00:00 UTC."""
START_MONO = 5_000_000_000
CONFIG: dict[str, Any] = {
    "run": {"name": "told", "steps": 10},
    "model": {"path": "/models/tiny"},
    "data": {"kind": "generated", "size": 1000},
    "environment": {"kind": "number_hunt"},
    "rollout": {"group_size": 2},
    "scheduler": {"groups_per_step": 2},
}


@dataclass
class ToldRun:
    """A log that grows by what is told."""

    name: str = "told"
    start_ts: int = START_TS
    records: list[Record] = field(default_factory=list)
    now_s: float = 0.0

    def at(self, seconds: float) -> ToldRun:
        """Go on to `seconds` after the start; never back."""
        assert seconds >= self.now_s - 1e-9, f"{seconds} is before {self.now_s}"
        self.now_s = max(self.now_s, seconds)
        return self

    def after(self, seconds: float) -> ToldRun:
        """Let `seconds` pass."""
        self.now_s += seconds
        return self

    def publish(self, actor: str, event: Event, *, cause: int | None = None, corr: str = "") -> Record:
        """Append `event` now."""
        ns = round(self.now_s * 1e9)
        record = Record(
            len(self.records), self.start_ts + ns, START_MONO + ns, actor, cause, corr, event
        )
        self.records.append(record)
        return record

    def begin(self, config: Mapping[str, Mapping[str, Any]] | None = None, engines: int = 1) -> None:
        """Tell how the run starts: learner and engines are up at once, with version 0."""
        settings = {**CONFIG, "run": {**CONFIG["run"], "name": self.name}, **(config or {})}
        self.publish(
            "run",
            RunStarted(
                run=self.name, config=settings, code_version="0", seed=0, host="box", pid=7, prompts=1000,
                engines=engines,
            ),
        )  # fmt: skip
        self.publish("trainer", LearnerUp(version=0, parameters=1, device="cuda:0"))
        self.publish("trainer", WeightsPublished(version=0, path="weights/0", size_bytes=1, seconds=0.0))
        for number in range(engines):
            up = EngineUp(engine=f"engine-{number}", version=0, context_tokens=96, slots=8, device="cuda:1")
            self.publish("engine_pool", up)

    def dispatch(self, group: int, target: int, version: int, size: int = 2) -> None:
        """Tell that a group starts, each trajectory with its reset."""
        self.publish("collector", PromptDrawn(prompt=group, epoch=0, index=group))
        self.publish(
            "collector",
            GroupDispatched(group=group, prompt=group, target=target, version=version, size=size),
        )
        for member in range(size):
            self.publish("rollout", TrajectoryStarted(trajectory=f"{group}/{member}", group=group))

    def complete(
        self, group: int, target: int, version: int, *, llm_s: float, env_s: float, size: int = 2
    ) -> None:
        """Tell all that is left of a group: one turn of each trajectory, one after the other, and that it is whole."""
        for member in range(size):
            name = f"{group}/{member}"
            self.publish(
                "engine_pool",
                LlmCallStarted(trajectory=name, turn=0, engine="engine-0", prompt_tokens=3, max_tokens=8),
            )
        self.after(llm_s)
        for member in range(size):
            self.publish(
                "engine_pool",
                LlmCallFinished(
                    trajectory=f"{group}/{member}", turn=0, engine="engine-0", outcome="completed", tokens=4,
                    version_spans=((version, 4),), seconds=llm_s, finish_reason="stop",
                ),
            )  # fmt: skip
            self.publish("rollout", EnvStepStarted(trajectory=f"{group}/{member}", turn=0))
        self.after(env_s)
        for member in range(size):
            name = f"{group}/{member}"
            self.publish(
                "rollout",
                EnvStepFinished(trajectory=name, turn=0, outcome="completed", seconds=env_s, done=True),
            )
            self.publish("rollout", RewardScored(trajectory=name, reward=float(member % 2)))
            self.publish("rollout", self._completed(name, group, version, llm_s, env_s, member))
        self.publish(
            "collector",
            GroupBuffered(group=group, target=target, trajectories=size, reward_mean=0.5, reward_std=0.5),
        )

    def _completed(
        self, name: str, group: int, version: int, llm_s: float, env_s: float, member: int
    ) -> TrajectoryCompleted:
        return TrajectoryCompleted(
            trajectory=name, group=group, attempt=0, turns=1, prompt_tokens=3, completion_tokens=4,
            version_spans=((version, 4),), reward=float(member % 2), stop_reason="done", queue_s=0.0,
            llm_s=llm_s, env_setup_s=0.0, env_s=env_s, reward_s=0.0, other_s=0.0,
            payload=PayloadRef(digest="0", length=1, pack=1, offset=0),
        )  # fmt: skip

    def write(self, folder: Path, upto: int | None = None) -> Path:
        """Write the log, or its first `upto` records, as the run folder `folder`; return it."""
        made = RunFolder.create(folder)
        writer = LogWriter(
            made.events, run=self.name, epoch=made.epoch, first_seq=0, segment_bytes=1 << 24
        )
        with made.lock(), closing(writer):
            writer.start(lambda _seq: None, lambda _error: None)
            for record in self.records[:upto]:
                writer.append(record)
        return folder


class Stretch(NamedTuple):
    """A phase of each step, how long it takes, and how busy the devices are meanwhile (0 to 1)."""

    phase: Phase
    seconds: float
    learner: float
    engine: float


STEP: Sequence[Stretch] = (
    Stretch("waiting_for_buffer", 4.0, 0.05, 0.80),
    Stretch("converting", 0.1, 0.10, 0.90),
    Stretch("training", 9.0, 0.92, 0.85),
    Stretch("weight_sync", 2.0, 0.30, 0.02),
)
"""A step of 15.1 s whose shortest phase is far shorter than any scrape interval."""


def phased_run(
    steps: int, *, stretches: Sequence[Stretch] = STEP, sample_s: float = 1.0, name: str = "told",
    start_ts: int = START_TS, finish: bool = True,
) -> ToldRun:  # fmt: skip
    """Tell `steps` equal steps of two groups each; every device is sampled each `sample_s` and at each phase's end."""
    told = ToldRun(name, start_ts)
    told.begin({"run": {"name": name, "steps": steps}})
    for group in range(4):
        told.dispatch(group, target=group // 2, version=0)
    for step in range(steps):
        _tell_step(told, step, steps, stretches, sample_s)
    told.publish("trainer", PhaseEntered(phase="generating", step=steps))
    if finish:
        told.publish(
            "run", RunFinished(outcome="completed", steps=steps, version=steps, seconds=told.now_s)
        )
    return told


def _tell_step(told: ToldRun, step: int, steps: int, stretches: Sequence[Stretch], sample_s: float) -> None:
    version = max(0, step - 1)
    for stretch in stretches:
        since_s, end_s = told.now_s, told.now_s + stretch.seconds
        told.publish("trainer", PhaseEntered(phase=stretch.phase, step=step))
        waited = _enter(told, step, version, stretch)
        while since_s < end_s - 1e-9:
            told.at(max(told.now_s, min(since_s + sample_s, end_s)))
            window_s, since_s = told.now_s - since_s, told.now_s
            for pool, device, busy in (
                ("learner", "cuda:0", stretch.learner),
                ("engine", "cuda:1", stretch.engine),
            ):
                told.publish(
                    "telemetry",
                    DeviceSampled(
                        device=device, pool=pool, utilization=busy, memory_bytes=2**30, window_s=window_s
                    ),
                )
        _leave(told, step, steps, stretch, waited)


def _enter(told: ToldRun, step: int, version: int, stretch: Stretch) -> Record | None:
    match stretch.phase:
        case "waiting_for_buffer":
            blocked = Blocked(
                waiter="trainer", edge="buffer_ready", awaited=f"step {step}: 2 groups", present="0 buffered"
            )
            waited = told.publish("trainer", blocked)
            for group in (2 * step, 2 * step + 1):
                told.complete(
                    group, step, version, llm_s=stretch.seconds / 8, env_s=stretch.seconds / 16
                )
            return waited
        case "converting":
            told.publish("trainer", BatchTaken(step=step, groups=(2 * step, 2 * step + 1)))
        case "training":
            told.publish(
                "trainer", StepStarted(step=step, version=step, groups=2, trajectories=4, tokens=28)
            )
        case "weight_sync":
            told.publish(
                "trainer",
                WeightsPublished(version=step + 1, path=f"weights/{step + 1}", size_bytes=1, seconds=0.1),
            )
            told.publish(
                "engine_pool", SyncStarted(engine="engine-0", version=step + 1, mode="in_flight")
            )
        case _:
            pass
    return None


def _leave(told: ToldRun, step: int, steps: int, stretch: Stretch, waited: Record | None) -> None:
    match stretch.phase:
        case "waiting_for_buffer" if waited is not None:
            seconds = (told.records[-1].mono - waited.mono) / 1e9
            told.publish(
                "trainer",
                Unblocked(
                    waiter="trainer", edge="buffer_ready", blocked=waited.seq, outcome="ready", seconds=seconds
                ),
            )
        case "training":
            done = StepCompleted(
                step=step, version=step + 1, loss=0.5, reward_mean=0.5, lag_mean=min(step, 1),
                lag_max=min(step, 1), trained_tokens=16, metrics={"kl": 0.01, "entropy": 1.0},
            )  # fmt: skip
            told.publish("trainer", done)
        case "weight_sync":
            told.publish(
                "engine_pool",
                SyncAcknowledged(engine="engine-0", version=step + 1, seconds=stretch.seconds),
            )
            for group in (2 * step + 4, 2 * step + 5) if step + 2 < steps else ():
                told.dispatch(group, target=step + 2, version=step + 1)
        case _:
            pass
