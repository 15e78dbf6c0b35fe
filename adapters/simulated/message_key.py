"""When two states of a message-level world count as the same: whatever happens next can happen from both.

Left out is what no decision reads: seq and time, names of trajectories (those of a group are alike), numbers of groups
(their order counts), and the history that only people read. `tests/simulation/test_exhaustive.py` checks this: states
with equal keys, reached in different ways, go on to equal keys.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b
from typing import Any

from ...core.projections import Attempts, Engines, Group, Groups, Pace, Prompts, Trainer
from .message_ways import Asked
from .message_world import MessageWorld


def key(world: MessageWorld) -> bytes:
    """Return the digest of everything that the world will go on by."""
    return blake2b(repr(parts(world)).encode(), digest_size=16).digest()


def parts(world: MessageWorld) -> tuple[Hashable, ...]:
    """Return everything that the world will go on by, in a form that compares."""
    view = world.view
    rank = {number: place for place, number in enumerate(view.groups.live)}
    by_group: dict[int, dict[str, Any]] = {number: {} for number in rank}
    others: list[tuple[Any, ...]] = []
    for waiting, queue in ((False, world.outside), (True, world.kept_waiting)):
        for asked in queue:
            if asked.kind == "attempt" and asked.group in by_group:
                by_group[asked.group][asked.subject] = _asked(asked, waiting)
            else:
                others.append((waiting, asked.kind, asked.subject, *_asked(asked, waiting)))
    others.sort()
    return (
        _trainer(view.trainer, rank),
        tuple(_group(group, by_group[number], view.groups) for number, group in view.groups.live.items()),
        tuple(rank[number] for number in view.groups.buffer),
        tuple(rank[number] for number in view.groups.whole),
        tuple(sorted(view.groups.ended.items())),
        tuple((step, found.rewards.total()) for step, found in sorted(view.groups.filtered_for.items())),
        _prompts(view.prompts),
        _engines(view.engines),
        _attempts(view.attempts, world.config.failures.share_max),
        _pace(view.pace),
        tuple(others),
        world.busy,
        world.pool_began,
        tuple(world.faults_left),
        world.attention.key(),
        len(world.ledger.breaches),
    )


def _asked(asked: Asked, waiting: bool) -> tuple[Any, ...]:
    return (asked.stage, asked.attempt, asked.engine, asked.number, waiting)


def _trainer(trainer: Trainer, rank: dict[int, int]) -> tuple[Hashable, ...]:
    return (
        trainer.step,
        trainer.version,
        trainer.learner_up,
        trainer.published,
        tuple(rank[number] for number in trainer.taken),
        trainer.evaluated,
        trainer.evals,
        trainer.checkpointed,
        trainer.stop_reason,
        trainer.phase,
        trainer.outcome,
    )


def _group(group: Group, attempts: dict[str, Any], groups: Groups) -> tuple[Hashable, ...]:
    """Return a group by what its trajectories have behind them and are at, in any order."""
    if group.state != "in_flight":
        return (group.prompt, group.target, group.version, group.state)
    trajectories = []
    for index in range(group.size):
        name = f"{group.group}/{index}"
        completed = group.completed.get(name)
        trajectories.append(
            (
                -1.0 if completed is None else completed.reward,
                name in group.dropped,
                group.engine_failures.get(name, 0),
                group.prompt_failures.get(name, 0),
                groups.unanswered[name][1].failure if name in groups.unanswered else "",
                attempts.get(name, ()),
            )
        )
    return (group.prompt, group.target, group.version, group.state, tuple(sorted(trajectories)))


def _prompts(prompts: Prompts) -> tuple[Hashable, ...]:
    return (
        prompts.next_prompt,
        tuple(sorted(prompts.alive.items())),
        tuple(prompts.returned),
        tuple(prompts.set_aside),
        tuple(sorted((+prompts.strikes).items())),
        tuple(sorted((+prompts.engine_strikes).items())),
        tuple(sorted((+prompts.evictions).items())),
        tuple(sorted(prompts.quarantined)),
        prompts.exhausted,
    )


def _engines(engines: Engines) -> tuple[Hashable, ...]:
    lost = sorted((e.lost_seq, e.name) for e in engines.by_name.values() if e.lost_seq is not None)
    return (
        tuple(
            (e.name, e.state, e.version, e.in_flight, e.syncing_to, e.restarts)
            for e in sorted(engines.by_name.values(), key=lambda e: e.name)
        ),
        tuple(name for _, name in lost),
    )


def _attempts(attempts: Attempts, share_max: float) -> Hashable:
    """Return what the limit on failures reads: nothing where it allows all, the sums before the window is full."""
    if share_max >= 1:
        return None
    failed = tuple(attempt.failure != "" for attempt in attempts.recent)
    return failed if len(failed) >= attempts.keep else (len(failed), sum(failed))


def _pace(pace: Pace) -> tuple[Hashable, ...]:
    """Return what the windowed policy reads; time stands still, so what it measures is all zero or nothing."""
    return (
        pace.waiting,
        pace.curve.times_s,
        pace.curve.shares,
        pace.step_s,
        any(whole for _, whole in pace._ended),
    )
