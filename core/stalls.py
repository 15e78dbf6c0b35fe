"""Verdicts: why a run does not move, as a pure function of its state.

A deadlock is proven, not guessed: every actor waits, nothing is outstanding, and no decision is due, so no event can
follow. The other kinds need time: an effect that is much older than its like became (overdue), attempts that keep
ending without a usable group (livelock), engines that idle with work at hand (degraded). A law of the accounting that
is broken is a silent loss. Each verdict carries the chain from the trainer's wait to the first cause.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from .chain import edge_text, trainer_chain, trainer_link
from .config import DeadlineSection, RunConfig
from .projections import Effect, View, Wait
from .projections.accounting import Breach

StallKind = Literal["deadlock", "overdue", "livelock", "degraded", "silent_loss"]
ASLEEP_S = 1.0
"""How long an actor may wait although its decision is due, before it counts as asleep."""
DECADES = 6
"""How far the tail of the durations seen is continued, as a power law: one in 10^8 may be older and healthy."""
SEEN_MIN = 256
"""Finished effects of a kind before their durations say what is usual."""
ROUNDS = 4
"""Windows of attempts without one usable group that are a livelock."""
ACTORS = ("trainer", "collector", "engine_pool")
WITH_WORKERS = (*ACTORS, "environment_pool")
LOSSES = ("groups", "prompts", "trajectory")


@dataclass(frozen=True, slots=True)
class Stall:
    """One verdict. `key` tells it from others that hold at the same time."""

    kind: StallKind
    key: str
    since_ns: int
    chain: tuple[str, ...]
    sentence: str
    first_cause: int | None = None
    late: tuple[tuple[Hashable, int], ...] = ()
    """Of an overdue one: the effects that it is about, by key and seq."""


def verdict(
    view: View,
    config: RunConfig,
    now_ns: int,
    *,
    due: Sequence[str] = (),
    breaches: Sequence[Breach] = (),
) -> list[Stall]:
    """Return every stall that holds in this state at `now_ns`, the run's monotonic time.

    `due` names the actors and trajectories whose decision is due: they move as soon as they run, so while there
    are any, or any that are `unheard`, nothing is a deadlock, unless they have been asleep for `ASLEEP_S`.
    """
    if view.trainer.finished or not view.trainer.steps_total:
        return []
    found = [
        deadlock(view, config, now_ns, due),
        livelock(view, config, now_ns),
        degraded(view, config, now_ns, due),
        *overdue(view, config, now_ns),
        *(silent_loss(view, breach) for breach in breaches if breach.law in LOSSES),
    ]
    return [stall for stall in found if stall is not None]


# Deadlock


def nothing_moves(view: View) -> bool:
    """Return whether every actor waits and nothing is outstanding: no call, no timer, nothing on its way to the disk.

    Somebody who waits may still have a decision due, and a trajectory may be `unheard`; both are asked apart.
    """
    trainer, waits = view.trainer, view.waits.by_waiter
    if view.outstanding.open or trainer.finished or trainer.stop_reason:
        return False
    if any(actor not in waits for actor in (WITH_WORKERS if view.environment_workers.count else ACTORS)):
        return False
    return all(wait.edge != "durable" for wait in waits.values())


def unheard(view: View) -> list[str]:
    """Return the trajectories in flight of which the log does not say what they are at: no call, no timer, no wait.

    Each is between two events of its own, and goes on as soon as it runs, unless its task is gone.
    """
    at_work = {effect.subject for effect in view.outstanding.open.values()}
    return [
        trajectory
        for group in view.groups.live.values()
        if group.state == "in_flight"
        for trajectory in (f"{group.group}/{index}" for index in range(group.size))
        if trajectory not in group.completed
        and trajectory not in group.dropped
        and trajectory not in view.waits.by_waiter
        and trajectory not in view.groups.unanswered
        and trajectory not in at_work
    ]


def deadlock(view: View, config: RunConfig, now_ns: int, due: Sequence[str]) -> Stall | None:
    """Return the proven deadlock, if this state is one."""
    if not nothing_moves(view):
        return None
    gone = unheard(view)
    if (due or gone) and now_ns - view.last_mono < ASLEEP_S * 1e9:
        return None
    chain, cause = trainer_chain(view, config)
    if due:
        chain.append(f"{due[0]} asleep although its decision is due: predicate true, waiter asleep")
    elif gone:
        more = f", and {len(gone) - 1} more" if len(gone) > 1 else ""
        chain.append(f"{gone[0]}{more} neither runs nor waits: its task has ended without a word")
    return Stall(
        "deadlock",
        "deadlock",
        view.last_mono,
        tuple(chain),
        f"nothing can move: {' <- '.join(chain)}",
        cause,
    )


# Overdue

_DEADLINES = {
    "llm_call": "llm_call_s",
    "env_reset": "env_reset_s",
    "env_step": "env_step_s",
    "reward": "reward_s",
    "train_step": "train_step_s",
    "publish": "publish_s",
    "weight_sync": "weight_sync_s",
    "eval": "eval_s",
    "checkpoint": "checkpoint_s",
    "engine_start": "start_s",
    "environment_worker_start": "start_s",
    "learner_start": "start_s",
}


def deadline_s(kind: str, deadlines: DeadlineSection) -> float | None:
    """Return the hard deadline of an effect, None for what has none (a retry's own timer)."""
    name = _DEADLINES.get(kind)
    return None if name is None else float(getattr(deadlines, name))


def limits_s(view: View, config: RunConfig) -> dict[str, float]:
    """Return the age in seconds from which an effect of each kind is overdue.

    That is `overdue_factor` times what 99 % of the finished ones took, more where their tail is heavy (what 99 %
    took is far from what 90 % took), and never less than the floor. Before
    `SEEN_MIN` have finished it is not less than three quarters of the hard deadline either. A sync that drains its
    engine first waits for the calls there, so it is not overdue before these are.
    """
    settings, limits = config.watchdog, {}
    for kind in _DEADLINES:
        hard_s = deadline_s(kind, config.deadlines)
        assert hard_s is not None
        floor_s = min(settings.overdue_floor_s, hard_s / 4)
        seen = view.outstanding.finished.get(kind)
        usual_s = 0.0
        if seen is not None and seen.count:
            most_s, many_s = seen.quantile_s(0.99), seen.quantile_s(0.9)
            usual_s = most_s * max(settings.overdue_factor, (most_s / many_s) ** DECADES)
        few = seen is None or seen.count < SEEN_MIN
        limits[kind] = max(floor_s, usual_s, hard_s * 3 / 4 if few else 0.0)
    if config.engine.sync_mode == "drain":
        limits["weight_sync"] = max(limits["weight_sync"], limits["llm_call"])
    return limits


def overdue(view: View, config: RunConfig, now_ns: int) -> list[Stall]:
    """Return a stall for each kind and place with effects that are overdue; the oldest one is named."""
    limits = limits_s(view, config)
    late: dict[tuple[str, str], list[tuple[Hashable, Effect]]] = {}
    for key, effect in view.outstanding.open.items():
        limit_s = limits.get(effect.kind)
        if limit_s is not None and now_ns - effect.since_ns >= limit_s * 1e9:
            late.setdefault((effect.kind, effect.place), []).append((key, effect))
    return [_overdue(view, config, now_ns, effects, limits) for effects in late.values()]


def _overdue(
    view: View,
    config: RunConfig,
    now_ns: int,
    effects: list[tuple[Hashable, Effect]],
    limits: dict[str, float],
) -> Stall:
    oldest = effects[0][1]
    age_s = (now_ns - oldest.since_ns) / 1e9
    seen = view.outstanding.finished.get(oldest.kind)
    usual = (
        f"99 % of {seen.count} took at most {seen.quantile_s(0.99):.3g} s" if seen else "none has ended yet"
    )
    chain = [trainer_link(view)]
    group = re.fullmatch(r"(\d+)/\d+", oldest.subject)
    live = view.groups.live.get(int(group[1])) if group else None
    if live is not None:
        chain.append(f"group {live.group} for step {live.target} in flight")
    more = f", and {len(effects) - 1} more" if len(effects) > 1 else ""
    words = oldest.kind.replace("_", " ")
    subject = "" if oldest.subject == oldest.place else f" of {oldest.subject}"
    chain.append(f"{words}{subject} at {oldest.place} for {age_s:.3g} s{more} ({usual})")
    engine = view.engines.by_name.get(oldest.place)
    if oldest.kind == "engine_start" and engine is not None and engine.lost_message:
        chain.append(f"{engine.name} was lost: {engine.lost_message}")
    worker = view.environment_workers.by_name.get(oldest.place)
    if oldest.kind == "environment_worker_start" and worker is not None and worker.lost_message:
        chain.append(f"{worker.name} was lost: {worker.lost_message}")
    hard_s = deadline_s(oldest.kind, config.deadlines)
    sentence = f"{oldest.place} is overdue (its deadline is {hard_s:g} s): {' <- '.join(chain)}"
    return Stall(
        "overdue",
        f"{oldest.kind} at {oldest.place}",
        oldest.since_ns + round(limits[oldest.kind] * 1e9),
        tuple(chain),
        sentence,
        oldest.seq,
        tuple((key, effect.seq) for key, effect in effects),
    )


# Livelock and degraded


def livelock(view: View, config: RunConfig, now_ns: int) -> Stall | None:
    """Return a livelock: whole windows of attempts end, for long, and no group comes of them that a step can use."""
    movement, scheduler = view.movement, config.scheduler
    window = scheduler.permits_or_default * config.rollout.group_size
    still_s = (now_ns - movement.progress_ns) / 1e9
    if movement.attempts < ROUNDS * window or still_s < config.watchdog.livelock_s:
        return None
    chain = (
        trainer_link(view),
        f"no usable group for {still_s:.0f} s, while {movement.attempts} attempts ended",
        f"{movement.filtered} groups filtered, {movement.failed} attempts failed",
    )
    return Stall(
        "livelock",
        "livelock",
        movement.progress_ns,
        chain,
        f"busy without progress: {' <- '.join(chain)}",
        movement.progress_seq,
    )


def degraded(view: View, config: RunConfig, now_ns: int, due: Sequence[str] = ()) -> Stall | None:
    """Return a degraded run: most of the engines' slots idle for long, though there is work, and what limits it."""
    since = view.engines.low_since_ns
    long_ns = config.watchdog.degraded_s * 1e9
    if since is None or now_ns - since < long_ns:
        return None
    limit = limiting(view, config, now_ns - long_ns / 2, due)
    if limit is None:
        return None
    engines, low_s = view.engines, (now_ns - since) / 1e9
    if engines.used < engines.low_share * engines.slots:
        share = f"less than {100 * engines.low_share:g} %"
    else:
        share = f"while {engines.queued} calls queue"
    chain = (
        trainer_link(view),
        f"engines use {engines.used:.0f} of {engines.slots} slots, {share} for {low_s:.0f} s",
        f"limited by {limit}",
    )
    return Stall("degraded", "degraded", since, chain, f"degraded: {' <- '.join(chain)}")


def limiting(view: View, config: RunConfig, before_ns: float, due: Sequence[str]) -> str | None:
    """Return what keeps the engines from being used, None when there is simply no more work to be done now.

    A collector counts as asleep when its wait began before `before_ns` and its decision is due.
    """
    collector, engines, up = view.waits.by_waiter.get("collector"), view.engines, view.engines.up()
    free = ", ".join(engine.name for engine in up if engine.in_flight < engine.slots / 2)
    fullest = max(up, key=lambda engine: engine.in_flight - engine.slots, default=None)
    if fullest is not None and fullest.in_flight > fullest.slots and free:
        calls = f"{fullest.name} holds {fullest.in_flight} calls in {fullest.slots} slots"
        return f"routing: {calls}, and {free} hardly any"
    calls_open = sum(engine.in_flight for engine in up)
    if engines.away_share > 0.5 and engines.used < engines.low_share * engines.slots <= engines.busy:
        return (
            f"the way to the engines: {calls_open} calls are open, and no engine has them for "
            f"{100 * engines.away_share:.0f} % of their time (too few connections?)"
        )
    if collector is None:
        return None
    if collector.edge == "permit":
        return too_little_admitted(view, config, collector)
    if "collector" in due and collector.since_ns <= before_ns:
        return f"the collector: groups are due, and it waits {edge_text(view, collector)}"
    return None


def too_little_admitted(view: View, config: RunConfig, collector: Wait) -> str:
    """Return which bound lets no more groups start: the permits, the buffer, or the policy where neither is reached."""
    groups, scheduler = view.groups, config.scheduler
    permits, places = scheduler.permits_or_default, scheduler.buffer_or_default
    if groups.in_flight >= permits:
        at_engines = at_environments = 0
        for effect in view.outstanding.open.values():
            at_engines += effect.kind == "llm_call"
            at_environments += effect.kind in ("env_reset", "env_step", "reward")
        return (
            f"permits: {collector.present}; of their trajectories {at_engines} are at engines and "
            f"{at_environments} in the environment"
        )
    if groups.in_flight + groups.buffered >= places:
        return f"buffer_groups: {groups.in_flight} in flight and {groups.buffered} buffered of {places}"
    return (
        f"dispatch: {groups.in_flight} of {permits} permits are used and groups are missing, but the policy starts none"
    )


# Silent loss


def silent_loss(view: View, breach: Breach) -> Stall:
    """Return the stall of a breach of the accounting: something is gone that nobody will ever wait for in vain."""
    chain = (
        trainer_link(view),
        f"law '{breach.law}' broken by seq {breach.seq}: expected {breach.expected}, found {breach.found}",
    )
    sentence = f"something is lost from the accounting: {' <- '.join(chain)}"
    return Stall("silent_loss", f"law {breach.law}", view.last_mono, chain, sentence, breach.seq)
