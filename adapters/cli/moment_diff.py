"""What `eventrain replay --diff` says: what changed between two points of a run, and its two forms."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import click

from ...core.projections import Group
from ...events.record import Record
from ...events.types import (
    BatchTaken,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    StepCompleted,
)
from .failures import BadInput
from .moment_report import moment_table
from .points import Point
from .quantities import clock_time, number, seconds, table
from .run_facts import RunFacts
from .status_report import phases
from .timeline import Moment, Timeline

GROUPS_MAX = 12
"""Groups of each sort in the text; --json has all."""


@dataclass
class Endings:
    """How groups ended in a part of a log, and which ones came in it."""

    taken: tuple[int, ...] = ()
    """Groups of the batch that a step trains, at first those in training where the part begins."""
    dispatched: list[int] = field(default_factory=list)
    how: dict[int, str] = field(default_factory=dict)

    def apply(self, record: Record) -> None:
        """Take one record into account."""
        match record.event:
            case GroupDispatched(group=group):
                self.dispatched.append(group)
            case GroupFailed(group=group, failure=failure):
                self.how[group] = f"failed: {failure.replace('_', ' ')}"
            case GroupFiltered(group=group, reason=reason):
                self.how[group] = f"filtered: {reason.replace('_', ' ')}"
            case GroupEvicted(group=group, lag=lag):
                self.how[group] = f"evicted with lag {lag}"
            case GroupDiscarded(group=group, reason=reason):
                self.how[group] = f"discarded: {reason}"
            case BatchTaken(groups=groups):
                self.taken = groups
            case StepCompleted(step=step):
                self.how.update(dict.fromkeys(self.taken, f"trained in step {step}"))


@dataclass
class Diff:
    """Two states, and how the groups that are in only one of them came and went."""

    before: Moment
    after: Moment
    endings: Endings
    a: RunFacts
    b: RunFacts

    @classmethod
    def between(cls, timeline: Timeline, first: Point, second: Point) -> Diff:
        """Return what changed from `first` to `second`. Raises `BadInput` when they are in the other order."""
        before, after = timeline.moment(first), timeline.moment(second)
        if before.seq > after.seq:
            order = f"{first} (seq {before.seq}) comes after {second} (seq {after.seq})"
            raise BadInput([f"--diff: {order}; give the earlier point first"])
        live = before.facts.view.groups.live
        endings = Endings(tuple(group for group, one in live.items() if one.state == "training"))
        for record in timeline.records(before.seq, after.seq):
            endings.apply(record)
        return cls(before, after, endings, before.facts, after.facts)

    @property
    def came(self) -> list[Group]:
        """Return the groups that are alive only at the second point."""
        return [g for n, g in self.b.view.groups.live.items() if n not in self.a.view.groups.live]

    @property
    def went(self) -> list[tuple[Group, str]]:
        """Return the groups that are alive only at the first point, and how they ended."""
        live = self.a.view.groups.live.items()
        return [(g, self.endings.how.get(n, "?")) for n, g in live if n not in self.b.view.groups.live]

    @property
    def moved(self) -> list[tuple[Group, Group]]:
        """Return the groups that are alive at both points and have another state or more trajectories."""
        later = self.b.view.groups.live
        pairs = [(g, later[n]) for n, g in self.a.view.groups.live.items() if n in later]
        return [(old, new) for old, new in pairs if _place(old) != _place(new)]

    @property
    def passed(self) -> Counter[str]:
        """Return how the groups ended that came and went between the two points."""
        alive = {*self.a.view.groups.live, *self.b.view.groups.live}
        ends = (self.endings.how.get(group) for group in self.endings.dispatched if group not in alive)
        return Counter(how for how in ends if how is not None)

    @property
    def counters(self) -> dict[str, tuple[int, int]]:
        """Return every counter that differs, with both values."""
        first, second = counters(self.a), counters(self.b)
        both = {name: (first.get(name, 0), second.get(name, 0)) for name in {**first, **second}}
        return {name: pair for name, pair in both.items() if pair[0] != pair[1]}

    @property
    def phase_s(self) -> dict[str, float]:
        """Return the seconds that each phase took between the two points."""
        first, second = phases(self.a), phases(self.b)
        spent = {name: second[name] - first.get(name, 0.0) for name in second}
        return {name: each for name, each in spent.items() if each > 1e-9}

    @property
    def down_s(self) -> float:
        """Return the seconds between the two points in which no process ran: from its death to the resume."""
        if self.b.resumed == self.a.resumed or self.b.ended:
            return 0.0
        ends = [moment.last.ts + moment.facts.later_ns for moment in (self.before, self.after)]
        return max(0.0, (ends[1] - ends[0]) / 1e9 - sum(self.phase_s.values()))

    @property
    def engines(self) -> list[tuple[str, str, str]]:
        """Return each engine that changed, with its state at both points in words."""
        first, second = _engines(self.a), _engines(self.b)
        names = [*first, *(name for name in second if name not in first)]
        rows = [(name, first.get(name, "not up"), second.get(name, "gone")) for name in names]
        return [row for row in rows if row[1] != row[2]]

    @property
    def waits(self) -> list[tuple[str, str]]:
        """Return the waits that began and are open (``+``), and those that were open and have ended (``-``)."""
        first, second = self.a.view.waits.open, self.b.view.waits.open
        ended = [("-", wait) for seq, wait in first.items() if seq not in second]
        begun = [("+", wait) for seq, wait in second.items() if seq not in first]
        return [(sign, f"{wait.waiter} for {wait.edge}: {wait.awaited}") for sign, wait in ended + begun]


def counters(facts: RunFacts) -> dict[str, int]:
    """Return everything that is counted, by name."""
    view = facts.view
    groups = view.groups
    return {
        "step": view.trainer.step,
        "version": view.trainer.version,
        "groups dispatched": groups.dispatched,
        "groups in flight": groups.in_flight,
        "groups buffered": groups.buffered,
        "groups in training": groups.training,
        **{f"groups {how}": count for how, count in groups.ended.items()},
        "trajectories started": groups.trajectories_started,
        "trajectories completed": groups.trajectories_completed,
        **{f"attempts failed, {kind}": count for kind, count in groups.trajectories_failed.items()},
        "trajectories dropped": groups.trajectories_dropped,
        "prompts drawn": view.prompts.drawn,
        "prompts quarantined": len(view.prompts.quarantined),
        "sampled tokens": view.progress.tokens["completion"],
        "outstanding effects": len(view.outstanding.open),
        "standing stalls": len(facts.stalls),
        "resumes": facts.resumed,
    }


def diff_table(diff: Diff) -> dict[str, Any]:
    """Return the difference as one JSON-ready table; its keys stay as they are."""
    return {
        "from": {key: moment_table(diff.before)[key] for key in ("seq", "since_start_s", "time")},
        "to": {key: moment_table(diff.after)[key] for key in ("seq", "since_start_s", "time")},
        "counters": {name: list(pair) for name, pair in diff.counters.items()},
        "phase": [diff.a.view.trainer.phase, diff.b.view.trainer.phase],
        "phase_s": {name: round(spent, 3) for name, spent in diff.phase_s.items()},
        "down_s": round(diff.down_s, 3),
        "came": [{"group": g.group, "target": g.target, "state": g.state} for g in diff.came],
        "moved": [
            {
                "group": new.group,
                "from": old.state,
                "to": new.state,
                "completed": [len(old.completed), len(new.completed)],
            }
            for old, new in diff.moved
        ],
        "went": [{"group": g.group, "target": g.target, "how": how} for g, how in diff.went],
        "passed": dict(diff.passed),
        "engines": [{"name": name, "from": old, "to": new} for name, old, new in diff.engines],
        "waits_begun": [text for sign, text in diff.waits if sign == "+"],
        "waits_ended": [text for sign, text in diff.waits if sign == "-"],
    }


def diff_lines(diff: Diff) -> list[str]:
    """Return the difference as lines for a person, styled for a terminal."""
    start = diff.a.started_ts
    at = [moment.last.ts - start + moment.facts.later_ns for moment in (diff.before, diff.after)]
    ends = f"from seq {diff.before.seq} ({clock_time(at[0])}) to seq {diff.after.seq} ({clock_time(at[1])})"
    lines = [f"{ends}: {seconds((at[1] - at[0]) / 1e9)}, {diff.after.seq - diff.before.seq} events", ""]
    rows = [(name, number(old), "->", number(new)) for name, (old, new) in diff.counters.items()]
    lines += table(rows, right=(1,)) if rows else ["no counter changed"]
    spent = sorted(diff.phase_s.items(), key=lambda item: -item[1])
    sections = [
        ("phases", [f"{name} {seconds(each)}" for name, each in spent]),
        ("no process ran for", [seconds(diff.down_s)] if diff.down_s > 1e-3 else []),
        ("groups that came", [_group_text(group) for group in diff.came]),
        ("groups that moved", [_move_text(old, new) for old, new in diff.moved]),
        ("groups that went", [f"group {g.group}, for step {g.target}: {how}" for g, how in diff.went]),
        ("groups that came and went", [f"{count} {how}" for how, count in diff.passed.items()]),
        ("engines", [f"{name}: {old} -> {new}" for name, old, new in diff.engines]),
        ("waits", [f"{sign} {text}" for sign, text in diff.waits]),
    ]
    for title, texts in sections:
        if texts:
            lines += ["", click.style(title, bold=True), *(f"  {text}" for text in texts[:GROUPS_MAX])]
        if len(texts) > GROUPS_MAX:
            lines.append(f"  and {len(texts) - GROUPS_MAX} more")
    return lines


def _place(group: Group) -> tuple[object, ...]:
    return group.state, group.target, len(group.completed), len(group.dropped)


def _group_text(group: Group) -> str:
    return f"group {group.group}, prompt {group.prompt}, for step {group.target}: {_state(group)}"


def _move_text(old: Group, new: Group) -> str:
    return f"group {new.group}, for step {new.target}: {_state(old)} -> {_state(new)}"


def _state(group: Group) -> str:
    if group.state != "in_flight":
        return "in the buffer" if group.state == "buffered" else "in training"
    return f"in flight, {len(group.completed)} of {group.size} trajectories"


def _engines(facts: RunFacts) -> dict[str, str]:
    texts = {}
    for engine in facts.view.engines.by_name.values():
        restarts = f", restarted {engine.restarts} times" if engine.restarts else ""
        calls = f"{engine.in_flight} of {engine.slots} slots in use"
        texts[engine.name] = f"{engine.state}, version {engine.version}, {calls}{restarts}"
    return texts
