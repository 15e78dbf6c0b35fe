"""What `eventrain status` says: the facts, folded from a log, and their two forms."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import click

from ...core.config import recorded_config
from ...core.projections.accounting import Ledger
from ...events.record import Record
from ...events.types import CheckpointFailed, DeadlineExpired, InvariantBroken, RunFailed, RunFinished
from .opening import nothing_to_read
from .quantities import bar, number, seconds, size, sparkline, table
from .run_facts import RunFacts, utc_text

Life = Literal["running", "completed", "interrupted", "data_exhausted", "failed", "gone"]
LIFE_WORDS: dict[Life, tuple[str, str]] = {
    "running": ("running", "green"),
    "completed": ("completed", "green"),
    "interrupted": ("interrupted", "yellow"),
    "data_exhausted": ("not complete: the data ran out", "yellow"),
    "failed": ("failed", "red"),
    "gone": ("gone without a last word (killed, or a full disk)", "red"),
}
"""How each is said, and its colour."""

_TROUBLES = {CheckpointFailed, DeadlineExpired, InvariantBroken}


@dataclass
class RunStatus(RunFacts):
    """Everything that is said of a run. `now_ts` is the time at which it is said, UTC nanoseconds."""

    path: Path = field(kw_only=True)
    now_ts: int = field(kw_only=True)
    expired: Counter[str] = field(default_factory=Counter)
    broken: list[InvariantBroken] = field(default_factory=list)
    checkpoints_failed: int = 0
    alive: bool = False
    ledger: Ledger = field(default_factory=Ledger)

    @classmethod
    def of(
        cls, path: Path, records: Iterable[Record], *, being_written: bool, now_ts: int | None = None
    ) -> RunStatus:
        """Fold `records` of the run in folder `path`; `being_written` says that a process holds its lock.

        Raises `BadInput` when there are no records.
        """
        status = cls(path=path, now_ts=time.time_ns() if now_ts is None else now_ts)
        for record in records:
            status.apply(record)
        if status.started is None:
            raise nothing_to_read(path)
        status.alive = status.ended is None and being_written
        return status

    def apply(self, record: Record) -> None:
        """Fold one record."""
        super().apply(record)
        self.ledger.apply(record)
        if type(record.event) in _TROUBLES:
            match record.event:
                case CheckpointFailed():
                    self.checkpoints_failed += 1
                case DeadlineExpired() as event:
                    self.expired[event.effect] += 1
                case InvariantBroken() as event:
                    self.broken.append(event)

    @property
    def life(self) -> Life:
        """How the run is: running, ended in some way, or gone without a last word."""
        if isinstance(self.ended, RunFinished):
            return self.ended.outcome
        if isinstance(self.ended, RunFailed):
            return "failed"
        return "running" if self.alive else "gone"

    @property
    def now_mono(self) -> int:
        """The run's own monotonic clock at `now_ts`, or at its last event when it no longer runs."""
        if not self.alive:
            return self.view.last_mono
        return self.view.last_mono + max(0, self.now_ts - self.view.last_ts)

    def broken_laws(self) -> list[tuple[str, str, str]]:
        """Return every law that was broken: its name, what it expects and what was found.

        Those that the log tells come first. What its very last event broke no event can tell: that is what the
        reader's own books show.
        """
        told = [(event.law, event.expected, event.found) for event in self.broken]
        found = [breach for breach in self.ledger.breaches if breach.seq == self.view.last_seq]
        return told + [(breach.law, breach.expected, breach.found) for breach in found]

    def rewards(self) -> list[float]:
        """Return the mean reward of each trained step."""
        return [row.reward_mean for row in self.view.progress.steps]


def status_table(status: RunStatus) -> dict[str, Any]:
    """Return the facts as one JSON-ready table; its keys stay as they are."""
    view, rewards = status.view, status.rewards()
    return {
        "run": status.started.run if status.started else "",
        "folder": str(status.path),
        "state": status.life,
        "step": view.trainer.step,
        "steps_total": view.trainer.steps_total,
        "version": view.trainer.version,
        "phase": view.trainer.phase,
        "phase_for_s": round((status.now_mono - view.trainer.phase_since_ns) / 1e9, 3),
        "reward": rewards[-1] if rewards else None,
        "reward_first_10": fmean(rewards[:10]) if rewards else None,
        "reward_last_10": fmean(rewards[-10:]) if rewards else None,
        "steps_trained": len(rewards),
        "buffered": view.groups.buffered,
        "in_flight": view.groups.in_flight,
        "groups_dispatched": view.groups.dispatched,
        "groups_ended": dict(view.groups.ended),
        "trajectories_completed": view.groups.trajectories_completed,
        "trajectories_failed": dict(view.groups.trajectories_failed),
        "trajectories_dropped": view.groups.trajectories_dropped,
        "prompts_quarantined": len(view.prompts.quarantined),
        "engines": engine_table(status),
        "environment_workers": worker_table(status),
        "waits": wait_table(status),
        "deadlines_expired": dict(status.expired),
        "stalls": [stall.sentence for stall in status.stalls.values()],
        "invariants_broken": [law for law, _, _ in status.broken_laws()],
        "reason": status.ended.reason or None if isinstance(status.ended, RunFinished) else None,
        "failure": status.ended.message if isinstance(status.ended, RunFailed) else None,
        "phase_s": {name: round(spent, 3) for name, spent in phases(status).items()},
        "checkpoint": status.checkpoint.path if status.checkpoint else None,
        "started": utc_text(status.started_ts),
        "last_event": utc_text(view.last_ts),
        "last_event_ago_s": round((status.now_ts - view.last_ts) / 1e9, 3),
        "last_seq": view.last_seq,
        "redacted": bool(status.started and status.started.redacted),
        "forked_from": status.forked_from or None,
        "host": status.host,
        "pid": status.pid,
    }


def engine_table(facts: RunFacts) -> list[dict[str, Any]]:
    """Return every engine as a JSON-ready table."""
    return [
        {
            "name": engine.name,
            "state": engine.state,
            "version": engine.version,
            "in_flight": engine.in_flight,
            "slots": engine.slots,
            "restarts": engine.restarts,
        }
        for engine in facts.view.engines.by_name.values()
    ]


def worker_table(facts: RunFacts) -> list[dict[str, Any]]:
    """Return every worker of environments as a JSON-ready table."""
    return [
        {
            "name": worker.name,
            "state": worker.state,
            "environments": worker.open,
            "restarts": worker.restarts,
        }
        for worker in facts.view.environment_workers.by_name.values()
    ]


def wait_table(facts: RunFacts) -> list[dict[str, Any]]:
    """Return every open wait as a JSON-ready table."""
    return [
        {
            "waiter": wait.waiter,
            "edge": wait.edge,
            "awaited": wait.awaited,
            "present": wait.present,
            "for_s": round((facts.now_mono - wait.since_ns) / 1e9, 3),
        }
        for wait in facts.view.waits.open.values()
    ]


def status_lines(status: RunStatus) -> list[str]:
    """Return the facts as lines for a person, styled for a terminal."""
    rows = [
        *_when(status),
        *_trained(status),
        *_groups(status),
        *engine_rows(status),
        *worker_rows(status),
        *wait_rows(status),
        *_troubles(status),
    ]
    width = max(len(label) for label, _ in rows)
    lines = [_headline(status), ""]
    lines += [f"{click.style(label.ljust(width), dim=True)}  {text}" for label, text in rows]
    return [*lines, "", *phase_lines(phases(status))]


def phase_lines(phases: dict[str, float]) -> list[str]:
    """Return a small table of bars: each phase's share of the time that all of `phases` (seconds) took."""
    total = sum(phases.values())
    if total <= 0:
        return []
    ordered = sorted(phases.items(), key=lambda item: -item[1])
    rows = [
        (name, bar(spent / total, 24), f"{100 * spent / total:.1f} %", seconds(spent))
        for name, spent in ordered
        if spent > 0
    ]
    return table(rows, right=(2, 3))


def _headline(status: RunStatus) -> str:
    trainer = status.view.trainer
    text, colour = LIFE_WORDS[status.life]
    name = status.started.run if status.started else ""
    head = f"{click.style(name, bold=True)}  {click.style(text, fg=colour)}"
    head += f"  step {trainer.version} of {trainer.steps_total}"
    if status.life == "running":
        head += f", {trainer.phase} for {seconds((status.now_mono - trainer.phase_since_ns) / 1e9)}"
    return head


def _when(status: RunStatus) -> list[tuple[str, str]]:
    view = status.view
    ran = seconds((view.last_ts - status.started_ts) / 1e9)
    ago = seconds(max(0, status.now_ts - view.last_ts) / 1e9)
    rows = [
        ("folder", str(status.path)),
        ("started", f"{utc_text(status.started_ts)} on {status.host}, pid {status.pid}"),
        ("last event", f"{utc_text(view.last_ts)}, {ago} ago, {ran} after the start (seq {view.last_seq})"),
    ]
    if isinstance(status.ended, RunFinished) and status.ended.reason:
        rows.append(("ended", status.ended.reason))
    if status.forked_from:
        rows.append(("forked", f"from {status.forked_from}"))
    if status.started is not None and status.started.redacted:
        rows.append(("redacted", "a copy without texts, payloads, paths and messages"))
    if status.resumed:
        rows.append(("resumed", f"{status.resumed} times" if status.resumed > 1 else "once"))
    return rows


def _trained(status: RunStatus) -> list[tuple[str, str]]:
    rewards, rows = status.rewards(), []
    if rewards:
        ten = min(10, len(rewards))
        first, last_ten = number(fmean(rewards[:10])), number(fmean(rewards[-10:]))
        text = f"{number(rewards[-1])} in the last step"
        if len(rewards) > 1:
            text += f"; mean of the first {ten} {first}, of the last {ten} {last_ten}"
        rows.append(("reward", text))
        if len(rewards) > 2:
            rows.append(("", sparkline(rewards, 60)))
        last = status.view.progress.steps[-1]
        rows.append(("loss", f"{number(last.loss)}, lag {number(last.lag_mean)} (max {last.lag_max})"))
    evals = status.view.progress.evals
    if evals:
        newest = evals[-1]
        reward = "no reward" if newest.reward_mean is None else f"reward {number(newest.reward_mean)}"
        failed = f", {newest.failed} failed" if newest.failed else ""
        rows.append(
            ("eval", f"{reward} at version {newest.version} ({newest.completed} trajectories{failed})")
        )
    if status.checkpoint:
        rows.append(("checkpoint", f"{status.checkpoint.path} ({size(status.checkpoint.size_bytes)})"))
    return rows


def _groups(status: RunStatus) -> list[tuple[str, str]]:
    groups = status.view.groups
    now = [f"{groups.in_flight} in flight", f"{groups.buffered} buffered{_of_capacity(status)}"]
    if groups.training:
        now.append(f"{groups.training} in training")
    ended = [f"{count} {what}" for what, count in sorted(groups.ended.items())]
    return [("groups", f"{groups.dispatched} dispatched: {', '.join(now + ended)}")]


def _of_capacity(status: RunStatus) -> str:
    if status.started is None:
        return ""
    scheduler = recorded_config(status.started.config).scheduler
    return f" (room for {scheduler.buffer_or_default})"


def engine_rows(status: RunFacts) -> list[tuple[str, str]]:
    """Return a labelled row for each engine."""
    rows = []
    for engine in status.view.engines.by_name.values():
        text = f"{engine.name} {engine.state}, version {engine.version}"
        if engine.syncing_to is not None:
            text += f" -> {engine.syncing_to}"
        text += f", {engine.in_flight} of {engine.slots} slots in use"
        if engine.restarts:
            text += f", restarted {engine.restarts} times"
        if engine.lost_message and engine.state != "serving":
            text += f": {engine.lost_message}"
        rows.append(("engine", text))
    return rows


def worker_rows(status: RunFacts) -> list[tuple[str, str]]:
    """Return a labelled row for each worker of environments."""
    rows = []
    for worker in status.view.environment_workers.by_name.values():
        text = f"{worker.name} {worker.state}, holds {worker.open} environments"
        if worker.restarts:
            text += f", restarted {worker.restarts} times"
        if worker.lost_message and worker.state != "up":
            text += f": {worker.lost_message}"
        rows.append(("worker", text))
    return rows


def wait_rows(status: RunFacts) -> list[tuple[str, str]]:
    """Return a labelled row for each open wait: who needs what, and has what."""
    rows: list[tuple[str, str]] = []
    for wait in status.view.waits.open.values():
        since = seconds((status.now_mono - wait.since_ns) / 1e9)
        text = f"{wait.waiter} for {wait.edge}: needs {wait.awaited}, has {wait.present} ({since})"
        rows.append(("" if rows else "waits", text))
    return rows


def _troubles(status: RunStatus) -> list[tuple[str, str]]:
    rows = []
    failed = {kind: n for kind, n in status.view.groups.trajectories_failed.items() if kind != "cancelled"}
    if failed:
        attempts = ", ".join(f"{count} {kind}" for kind, count in sorted(failed.items()))
        rows.append(("failures", f"attempts: {attempts}"))
        recent = [a for a in status.view.attempts.recent if a.failure]
        if recent:
            rows.append(("", f"the last: {recent[-1].message} (seq {recent[-1].seq})"))
    dropped = status.view.groups.trajectories_dropped
    if dropped:
        rows.append(("dropped", f"trajectories that their groups go on without: {dropped}"))
    if status.view.prompts.quarantined:
        rows.append(("quarantine", f"{len(status.view.prompts.quarantined)} prompts"))
    if status.expired:
        expired = ", ".join(f"{count} {effect}" for effect, count in sorted(status.expired.items()))
        rows.append(("deadlines", f"expired: {expired}"))
    if status.checkpoints_failed:
        rows.append(("checkpoints", f"{status.checkpoints_failed} failed"))
    rows += [("stall", f"{stall.stall_kind}: {stall.sentence}") for stall in status.stalls.values()]
    rows += [
        ("law broken", f"{law}: expected {expected}, found {found}")
        for law, expected, found in status.broken_laws()
    ]
    if isinstance(status.ended, RunFailed):
        cause = "" if status.ended.first_cause is None else f" (see seq {status.ended.first_cause})"
        rows.append(("first cause", f"{status.ended.failed_actor}: {status.ended.message}{cause}"))
    return rows


def phases(status: RunFacts) -> dict[str, float]:
    """Return the seconds that the trainer spent in each phase, without the time after the end."""
    return {
        phase: spent
        for phase, spent in status.view.trainer.phase_seconds(status.now_mono).items()
        if phase != "finished"
    }
