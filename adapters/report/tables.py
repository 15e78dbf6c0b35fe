"""What the page says in words and tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from ...events.identity import is_evaluation, trace_id
from ..cli.quantities import clock_time, seconds
from ..cli.run_facts import utc_text
from . import colours
from .bound_words import component_shares, percent
from .colours import words
from .reading import Reading
from .rollouts import SLOWEST, Slow
from .settings import settings_rows
from .troubles import Trouble
from .verdict import judge

Key = TypeVar("Key")

STALLS = 30
"""Stalls that are told one by one."""
MESSAGE = 400
"""Characters of a message from the log that are shown."""
_LIVES = {
    "running": "running",
    "completed": "completed",
    "interrupted": "interrupted",
    "data_exhausted": "the data ran out",
    "failed": "failed",
    "gone": "gone without a last word",
}


def facts(reading: Reading) -> dict[str, Any]:
    """Return everything that the page says in words and tables, by the name that the template has for it."""
    status, history = reading.status, reading.history
    assert status.started is not None
    identity = reading.status.view.identity.run
    return {
        "name": status.started.run,
        "id": identity,
        "life": status.life,
        "life_words": _LIVES[status.life],
        "header": _header(reading),
        "verdict": judge(reading),
        "damage": reading.damage,
        "tiles": _tiles(reading),
        "restarts": _restarts(reading),
        "phases": _shares(reading.phase_s, colours.PHASES),
        "components": _shares(_component_s(reading), colours.COMPONENTS),
        "in_env": _in_env(reading),
        "pools": _pools(reading),
        "idle": _idle(reading),
        "sources": sorted(history.devices.sources),
        "slowest": [_slow(reading, identity, one) for one in history.rollouts.slowest(status.now_mono)],
        "slowest_max": SLOWEST,
        "trouble_tables": _trouble_tables(reading),
        "stalls": _stalls(reading),
        "stalls_command": f"eventrain stalls {shlex.quote(str(reading.path))}",
        "stalls_more": max(0, len(reading.stalls.intervals) - STALLS),
        "stalled_s": f"{reading.stalls.lost_s:,.1f}",
        "waiting": reading.stalls.waiting,
        "settings": settings_rows(reading.config),
    }


def _header(reading: Reading) -> list[tuple[str, str]]:
    status = reading.status
    rows = [
        ("started", utc_text(status.started_ts)),
        ("last event", f"{utc_text(status.view.last_ts)} (seq {status.view.last_seq})"),
        ("folder", str(reading.path)),
    ]
    if status.host:
        rows.append(("host", f"{status.host}, pid {status.pid}"))
    if status.started is not None and status.started.code_version:
        rows.append(("code", status.started.code_version))
    if status.alive:
        rows.append(("read", utc_text(status.now_ts)))
    if status.forked_from:
        rows.append(("forked from", status.forked_from))
    if status.started is not None and status.started.redacted:
        rows.append(("redacted", "a copy without texts, payloads, paths and messages"))
    return rows


class Tile(NamedTuple):
    """One figure that stands at the top, and what more there is to say of it."""

    label: str
    value: str
    more: str


def _tiles(reading: Reading) -> list[Tile]:
    groups, rows = reading.status.view.groups, reading.status.view.progress.steps
    trainer, wall_s = reading.status.view.trainer, reading.now_ns / 1e9
    failed = sum(
        count
        for kind, count in groups.trajectories_failed.items()
        if kind not in ("cancelled", "interrupted")
    )
    a_step = f"{seconds(wall_s / trainer.version)} a step" if trainer.version else "no step yet"
    tiles = [
        Tile("steps", f"{trainer.version:,}", f"of {trainer.steps_total:,}"),
        Tile("time", seconds(wall_s), a_step),
    ]
    if rows:
        last = [row.reward_mean for row in rows[-10:]]
        what = f"in the last {len(last)} steps" if len(last) > 1 else "in the only step"
        largest = max(row.lag_max for row in rows)
        tiles.append(Tile("reward", f"{fmean(last):.3g}", what))
        tiles.append(Tile("lag", f"{fmean(row.lag_mean for row in rows):.2g}", f"mean; largest {largest}"))
    tiles.append(
        Tile("groups trained", f"{groups.ended['trained']:,}", f"of {groups.dispatched:,} dispatched")
    )
    tiles.append(Tile("failed attempts", f"{failed:,}", f"of {groups.trajectories_started:,}"))
    return tiles


def _restarts(reading: Reading) -> list[str]:
    lines = []
    for one in reading.history.restarts:
        what = f"forked from {one.forked_from}" if one.forked_from else "resumed"
        back = f", {one.rolled_back} step{'s' * (one.rolled_back > 1)} rolled back" if one.rolled_back else ""
        changed = [event for at, event in reading.history.changes if at == one.at_ns]
        changes = "".join(f"; {event.key} {event.old} -> {event.new}" for event in changed)
        down = f" after {seconds(one.down_s)} of downtime" if one.down_s >= 0.0005 else ""
        lines.append(f"{clock_time(one.at_ns)}: {what}{down}, from step {one.step} on{back}{changes}")
    return lines


def _component_s(reading: Reading) -> dict[str, float]:
    return {name: float(spent) for name, spent in reading.status.view.progress.seconds.items()}


def _in_env(reading: Reading) -> str:
    shares = component_shares(reading)
    return percent(shares["env"] + shares["env_setup"]) if shares else ""


def _shares(spent: dict[str, float], palette: dict[str, str]) -> list[dict[str, str]]:
    """Return the rows of a table of bars, the longest first."""
    total = sum(spent.values())
    if total <= 0:
        return []
    return [
        {
            "name": words(name),
            "colour": palette.get(name, "#888888"),
            "width": f"{100 * part / total:.3f}",
            "share": percent(part / total),
            "seconds": seconds(part),
        }
        for name, part in sorted(spent.items(), key=lambda item: -item[1])
        if part > total * 1e-6
    ]


def _pools(reading: Reading) -> dict[str, Any] | None:
    """Return the use of devices by pool and phase; None where no device was sampled."""
    table = reading.device_s
    if not table:
        return None
    phases = [phase for phase in colours.PHASES if any(phase == name for _, name in table)]
    pools = [pool for pool in colours.DEVICES if any(pool == name for name, _ in table)]
    rows = []
    for pool in pools:
        cells = [table.get((pool, phase)) for phase in phases]
        there = sum(cell.there for cell in cells if cell)
        busy = sum(cell.busy for cell in cells if cell)
        rows.append(
            {
                "pool": pool,
                "devices": len(reading.history.devices.names[pool]),
                "all": percent(busy / there) if there else "",
                "there": seconds(there),
                "cells": [
                    (percent(cell.use), seconds(cell.there)) if cell and cell.there else None
                    for cell in cells
                ],
            }
        )
    return {"phases": [(words(phase), colours.PHASES[phase]) for phase in phases], "rows": rows}


def _idle(reading: Reading) -> list[tuple[str, str, str, str]]:
    idle = reading.idle_s
    total = sum(idle.values())
    return [
        (pool, words(cause), f"{spent:,.1f}", percent(spent / total))
        for (pool, cause), spent in sorted(idle.items(), key=lambda item: -item[1])
        if spent >= 0.05
    ]


def _slow(reading: Reading, identity: str, one: Slow) -> dict[str, Any]:
    outcome = one.outcome
    if outcome == "in flight" and one.asked:
        outcome = f"in flight, at {one.asked}"
    turns = [
        [
            turn.name,
            *(_s(value) for value in (turn.llm_s, turn.queue_s, turn.env_s)),
            "" if turn.tokens is None else str(turn.tokens),
            turn.outcome,
        ]
        for turn in one.turns
    ]
    attempt = f" (attempt {one.attempt})" if one.attempt else ""
    return {
        "trajectory": one.trajectory + attempt,
        "wall": seconds(one.seconds),
        "llm": seconds(one.llm_s),
        "queue": seconds(one.queue_s),
        "env": seconds(one.env_s),
        "tokens": f"{one.tokens:,}",
        "outcome": ("evaluation, " if is_evaluation(one.trajectory) else "") + outcome.replace("_", " "),
        "bad": one.outcome != "completed",
        "turns": turns,
        "more": one.turns_more,
        "command": f"eventrain show {shlex.quote(str(reading.path))} {one.trajectory}",
        "trace": trace_id(identity, one.trajectory).hex(),
        "seq": one.seq,
    }


def _s(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


class Table(NamedTuple):
    """A table of troubles; the last column is text."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[object]]


def _trouble_tables(reading: Reading) -> list[Table]:
    """Return a table for each sort of trouble that there was."""
    found = reading.history.troubles
    quarantined = [
        (event.prompt, event.index, event.failure, _last(event.message, seq))
        for seq, event in found.quarantined
    ]
    expired = [(effect, seconds(limit_s), *rest) for (effect, limit_s), *rest in _most(found.expired)]
    broken = [tuple(map(_short, law)) for law in reading.status.broken_laws()]
    tables = [
        Table(
            "Groups that were given up",
            ("what", "why", "groups", "the last one"),
            [(*key, *rest) for key, *rest in _most(found.groups)],
        ),
        Table(
            "Failed attempts at trajectories",
            ("failure", "charged", "attempts", "the last one"),
            [(*key, *rest) for key, *rest in _most(found.attempts)],
        ),
        Table("Deadlines that expired", ("effect", "limit", "times", "the last one"), expired),
        Table(
            f"Prompts in quarantine: {found.quarantined_count}",
            ("prompt", "item", "failure", "message"),
            quarantined,
        ),
        Table(
            "Engines that were lost", ("engine", "times", "the last time"), list(_most(found.engines_lost))
        ),
        Table(
            "Workers of environments that were lost",
            ("worker", "times", "the last time"),
            list(_most(found.workers_lost)),
        ),
        Table("Laws that were broken", ("law", "expected", "found"), [*broken]),
        Table(
            "Telemetry that was lost or incomplete",
            ("what", "times", "the last time"),
            [(_short(what), *rest) for what, *rest in _most(found.telemetry)],
        ),
    ]
    return [table for table in tables if table.rows]


def _most(table: Mapping[Key, Trouble]) -> list[tuple[Key, int, str]]:
    """Return what happened most often first: what it was, how often, and the last time."""
    rows = sorted(table.items(), key=lambda item: -item[1].count)
    return [(key, one.count, _last(one.last, one.last_seq)) for key, one in rows]


def _last(text: str, seq: int) -> str:
    return f"{_short(text)} (seq {seq})"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE else f"{text[: MESSAGE - 20]} ... {text[-15:]}"


def _stalls(reading: Reading) -> list[dict[str, Any]]:
    report = reading.stalls
    rows = []
    for one in report.intervals[:STALLS]:
        to_ns = report.end_ns if one.to_ns is None else one.to_ns
        if one.ended_by is not None:
            end = f"ended by {one.ended_kind} (seq {one.ended_by})"
        else:
            end = "it lasts" if report.live else "not over when the log ends"
        rows.append(
            {
                "number": one.stall,
                "kind": one.kind.replace("_", " "),
                "from": clock_time(one.from_ns),
                "lasted": seconds((to_ns - one.from_ns) / 1e9),
                "end": end,
                "lost": f"{one.lost_s:,.1f}",
                "chain": [_short(link) for link in one.chain],
                "cause": one.first_cause,
            }
        )
    return rows
