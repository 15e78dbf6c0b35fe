"""What the live view shows, as plain data: computed from a folded state, without a terminal and without a clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from ...core.chain import trainer_chain
from ...core.config import RunConfig
from ...core.projections import Effect, EngineStatus, StepRow, Wait
from ...events.identity import group_of
from ...events.types import TRAJECTORY_PARTS, DeviceSampled, RunFailed, RunFinished, part_seconds
from ..cli.moment_report import config_of, in_flight, targets
from ..cli.run_facts import RunFacts
from ..cli.status_report import Life, phases
from ..console import ProgressPanel
from .recent import Recent

_STAGES = {"llm_call": "llm", "env_reset": "env", "env_step": "env", "reward": "reward", "retry": "retry"}
MEAN_STEPS = 10


@dataclass(frozen=True, slots=True)
class Target:
    """A step that groups are meant for, and how many there are of the `need`."""

    step: int
    buffered: int
    in_flight: int
    need: int

    @property
    def missing(self) -> int:
        """Groups that nobody generates yet."""
        return max(0, self.need - self.buffered - self.in_flight)


@dataclass(frozen=True, slots=True)
class Flying:
    """A group in flight, and of its trajectories the one that has been in its stage for longest."""

    group: int
    target: int
    version: int
    completed: int
    size: int
    age_s: float
    trajectory: str = ""
    stage: str = ""
    """llm, env, reward or retry; 'waits ...' for what it waits for; 'ready' when all its trajectories are."""
    stage_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """A trajectory that was completed."""

    trajectory: str
    reward: float
    wall_s: float
    turns: int


@dataclass(frozen=True, slots=True)
class Device:
    """The last sample of a device."""

    name: str
    pool: str
    utilization: float
    memory_bytes: int
    memory_total_bytes: int | None
    age_s: float


@dataclass(frozen=True, slots=True)
class StallShown:
    """A stall that stands."""

    kind: str
    chain: tuple[str, ...]
    sentence: str
    first_cause: int | None
    seq: int


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything on the screen but its colours. Times are seconds, `_ns` the run's own since its start."""

    run: str
    life: Life
    reason: str
    host: str
    pid: int
    resumed: int
    seq: int
    at_ns: int
    at_ts: int
    step: int
    """Steps that are trained: the version of the learner's weights."""
    steps_total: int
    pace_s: float | None
    eta_s: float | None
    phase: str
    phase_for_s: float
    phases: dict[str, float]
    buffered: int
    capacity: int
    in_flight: int
    permits: int
    training: int
    targets: tuple[Target, ...]
    groups: tuple[Flying, ...]
    """Those in flight, oldest first."""
    stages: dict[str, int]
    """Trajectories in flight by stage."""
    engines: tuple[EngineStatus, ...]
    devices: tuple[Device, ...]
    rewards: tuple[float, ...]
    """Mean reward of each step."""
    reward_mean: float | None
    """Of the last `MEAN_STEPS` steps."""
    last_step: StepRow | None
    eval_reward: float | None
    done: tuple[Done, ...]
    """The last trajectories that were completed, newest first."""
    parts: dict[str, float]
    """Their seconds by part."""
    parts_all: dict[str, float]
    """The same over the whole run."""
    completed: int
    failed: dict[str, int]
    """Failed attempts by kind, without those that were cancelled."""
    ended: dict[str, int]
    """Groups by what became of them."""
    quarantined: int
    stalls: tuple[StallShown, ...]
    chain: tuple[str, ...]
    """From the trainer's wait to whom it leads; empty while it does not wait."""
    rate: float
    """Events a second."""
    silent_s: float
    """Since the last event."""


def life_of(facts: RunFacts, *, alive: bool) -> Life:
    """Return how the run is; `alive` says that a process may be writing it."""
    if isinstance(facts.ended, RunFinished):
        return facts.ended.outcome
    if isinstance(facts.ended, RunFailed):
        return "failed"
    return "running" if alive else "gone"


def shown(facts: RunFacts, recent: Recent, *, alive: bool = True) -> Shown:
    """Return what is shown of the state `facts`, at least one event old, at `facts.now_mono`.

    `alive` says that a process may be writing the run. It is true of any state that is not the last one.
    """
    view, now, config = facts.view, facts.now_mono, config_of(facts)
    trainer, groups, steps = view.trainer, view.groups, view.progress.steps
    panel = ProgressPanel(view, config, "", partial(int, now))
    rewards = tuple(row.reward_mean for row in steps)
    flying, stages = _flying(facts)
    running = facts.ended is None
    stuck = any(stall.stall_kind != "degraded" for stall in facts.stalls.values())
    return Shown(
        run=facts.started.run if facts.started else "",
        life=life_of(facts, alive=alive),
        reason=_reason(facts),
        host=facts.host,
        pid=facts.pid,
        resumed=facts.resumed,
        seq=view.last_seq,
        at_ns=view.last_ts - facts.started_ts + facts.later_ns,
        at_ts=view.last_ts + facts.later_ns,
        step=trainer.version,
        steps_total=trainer.steps_total,
        pace_s=panel.pace_s(),
        eta_s=panel.eta_s() if running and alive and not stuck else None,
        phase=trainer.phase,
        phase_for_s=max(0, now - trainer.phase_since_ns) / 1e9,
        phases=phases(facts),
        buffered=groups.buffered,
        capacity=config.scheduler.buffer_or_default,
        in_flight=groups.in_flight,
        permits=config.scheduler.permits_or_default,
        training=groups.training,
        targets=tuple(Target(*row) for row in targets(facts)),
        groups=flying,
        stages=stages,
        engines=tuple(replace(engine) for _, engine in sorted(view.engines.by_name.items())),
        devices=_devices(recent, now),
        rewards=rewards,
        reward_mean=fmean(rewards[-MEAN_STEPS:]) if rewards else None,
        last_step=steps[-1] if steps else None,
        eval_reward=view.progress.evals[-1].reward_mean if view.progress.evals else None,
        done=_done(recent),
        parts=recent.seconds(),
        parts_all={
            name: view.progress.seconds[name] for name in TRAJECTORY_PARTS if view.progress.seconds[name] > 0
        },
        completed=groups.trajectories_completed,
        failed={kind: n for kind, n in groups.trajectories_failed.items() if n and kind != "cancelled"},
        ended={how: count for how, count in groups.ended.items() if count},
        quarantined=len(view.prompts.quarantined),
        stalls=_stalls(facts),
        chain=_chain(facts, config),
        rate=recent.rate(now),
        silent_s=facts.later_ns / 1e9,
    )


def _reason(facts: RunFacts) -> str:
    match facts.ended:
        case RunFinished() as ended:
            return ended.reason
        case RunFailed() as ended:
            return f"{ended.failed_actor}: {ended.message}"
    return ""


def _flying(facts: RunFacts) -> tuple[tuple[Flying, ...], dict[str, int]]:
    """Return the groups in flight, oldest first, and how many of their trajectories are in which stage."""
    now, stages = facts.now_mono, Counter[str]()
    oldest: dict[int, tuple[int, str, str]] = {}
    for subject, stage, since_ns in _open_stages(facts):
        number = group_of(subject)
        if number is None:
            continue
        stages[stage.partition(" ")[0]] += 1
        found = (since_ns, subject, stage)
        if number not in oldest or found < oldest[number]:
            oldest[number] = found
    rows = []
    for flying in in_flight(facts):
        since_ns, trajectory, stage = oldest.get(flying.group, (now, "", "ready" if flying.whole else ""))
        rows.append(
            Flying(
                flying.group,
                flying.target,
                flying.version,
                len(flying.completed),
                flying.size - len(flying.dropped),
                (now - flying.since_ns) / 1e9,
                trajectory,
                stage,
                (now - since_ns) / 1e9,
            )
        )
    return tuple(rows), dict(stages)


def _open_stages(facts: RunFacts) -> list[tuple[str, str, int]]:
    """Return of every trajectory that is in a stage: its name, the stage, and since when."""
    view = facts.view
    effects: list[Effect] = [one for one in view.outstanding.open.values() if one.kind in _STAGES]
    busy = {effect.subject for effect in effects}
    waits: list[Wait] = [wait for name, wait in view.waits.by_waiter.items() if name not in busy]
    return [(effect.subject, _STAGES[effect.kind], effect.since_ns) for effect in effects] + [
        (wait.waiter, f"waits {wait.edge}", wait.since_ns) for wait in waits
    ]


def _done(recent: Recent) -> tuple[Done, ...]:
    return tuple(
        Done(one.trajectory, one.reward, sum(part_seconds(one)), one.turns)
        for one in reversed(recent.completed())
    )


def _devices(recent: Recent, now_ns: int) -> tuple[Device, ...]:
    found = []
    for record in recent.devices():
        event = record.event
        assert isinstance(event, DeviceSampled)
        found.append(
            Device(
                event.device,
                event.pool,
                event.utilization,
                event.memory_bytes,
                event.memory_total_bytes,
                (now_ns - record.mono) / 1e9,
            )
        )
    return tuple(found)


def _stalls(facts: RunFacts) -> tuple[StallShown, ...]:
    return tuple(
        StallShown(stall.stall_kind, stall.chain, stall.sentence, stall.first_cause, facts.stall_seqs[number])
        for number, stall in facts.stalls.items()
    )


def _chain(facts: RunFacts, config: RunConfig) -> tuple[str, ...]:
    if facts.view.trainer.finished or "trainer" not in facts.view.waits.by_waiter:
        return ()
    return tuple(trainer_chain(facts.view, config)[0])
