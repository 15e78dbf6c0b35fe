"""What `eventrain replay --at` says: the state at one point of a run, and its two forms."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from ...core.chain import trainer_chain
from ...core.config import RunConfig, recorded_config
from ...core.projections import Effect, Group
from ...core.stalls import deadline_s
from .event_line import event_line, kind_of
from .points import MS
from .quantities import clock_time, seconds, table
from .run_facts import RunFacts, utc_text
from .status_report import engine_rows, engine_table, phases, wait_rows, wait_table
from .timeline import Moment

LINE_MAX = 160
"""Characters of the event's line."""
GROUPS_MAX = 12
OUTSTANDING_MAX = 8
QUARANTINE_MAX = 8
"""Lines of each in the text; --json has all."""


def config_of(facts: RunFacts) -> RunConfig:
    """Return the configuration that the run began with."""
    assert facts.started is not None
    return recorded_config(facts.started.config)


def targets(facts: RunFacts) -> list[tuple[int, int, int, int]]:
    """Return, for each step that groups are meant for or that comes next: step, have, in flight, need."""
    groups, trainer = facts.view.groups, facts.view.trainer
    need = config_of(facts).scheduler.groups_per_step
    steps = {*groups.buffered_by_target, *groups.in_flight_by_target}
    if not trainer.finished and trainer.step < trainer.steps_total:
        steps.add(trainer.step)
    return [
        (step, len(groups.buffered_by_target.get(step, ())), groups.in_flight_by_target[step], need)
        for step in sorted(steps)
    ]


def outstanding(facts: RunFacts) -> list[tuple[Effect, float, float | None]]:
    """Return what is outstanding, oldest first: the effect, its age and its deadline in seconds."""
    deadlines = config_of(facts).deadlines
    effects = sorted(facts.view.outstanding.open.values(), key=lambda effect: (effect.since_ns, effect.seq))
    return [
        (effect, (facts.now_mono - effect.since_ns) / 1e9, deadline_s(effect.kind, deadlines))
        for effect in effects
    ]


def in_flight(facts: RunFacts) -> list[Group]:
    """Return the groups in flight, oldest first."""
    flying = [group for group in facts.view.groups.live.values() if group.state == "in_flight"]
    return sorted(flying, key=lambda group: (group.since_ns, group.group))


def chain(facts: RunFacts) -> list[str]:
    """Return the links from the trainer's wait to whom it leads; none while the trainer does not wait."""
    if facts.view.trainer.finished or "trainer" not in facts.view.waits.by_waiter:
        return []
    return trainer_chain(facts.view, config_of(facts))[0]


def moment_table(moment: Moment) -> dict[str, Any]:
    """Return the state as one JSON-ready table; its keys stay as they are. Ages are seconds."""
    facts = moment.facts
    view, now = facts.view, facts.now_mono
    return {
        "run": facts.started.run if facts.started else "",
        "seq": moment.seq,
        "event": kind_of(moment.last),
        "since_start_s": round((moment.last.ts - facts.started_ts + facts.later_ns) / 1e9, 3),
        "time": utc_text(moment.last.ts + facts.later_ns),
        "outcome": view.trainer.outcome or None,
        "resumed": facts.resumed,
        "step": view.trainer.step,
        "steps_total": view.trainer.steps_total,
        "version": view.trainer.version,
        "phase": view.trainer.phase,
        "phase_for_s": _age(now, view.trainer.phase_since_ns),
        "phase_s": {name: round(spent, 3) for name, spent in phases(facts).items()},
        "targets": [
            {"step": step, "have": have, "in_flight": flying, "need": need}
            for step, have, flying, need in targets(facts)
        ],
        "training": {"step": view.trainer.taken_step, "groups": list(view.trainer.taken)}
        if view.trainer.taken
        else None,
        "buffer": list(view.groups.buffer),
        "in_flight": [
            {
                "group": group.group,
                "prompt": group.prompt,
                "target": group.target,
                "version": group.version,
                "size": group.size,
                "completed": len(group.completed),
                "dropped": len(group.dropped),
                "age_s": _age(now, group.since_ns),
            }
            for group in in_flight(facts)
        ],
        "groups_dispatched": view.groups.dispatched,
        "groups_ended": {how: count for how, count in view.groups.ended.items() if count},
        "engines": engine_table(facts),
        "waits": wait_table(facts),
        "chain": chain(facts),
        "outstanding": [
            {
                "kind": effect.kind,
                "subject": effect.subject,
                "place": effect.place,
                "seq": effect.seq,
                "age_s": round(age_s, 3),
                "deadline_s": limit_s,
            }
            for effect, age_s, limit_s in outstanding(facts)
        ],
        "quarantined": {str(item): why for item, why in view.prompts.quarantined.items()},
        "stalls": [
            {
                "seq": facts.stall_seqs[number],
                "kind": stall.stall_kind,
                "chain": list(stall.chain),
                "first_cause": stall.first_cause,
            }
            for number, stall in facts.stalls.items()
        ],
    }


def moment_lines(moment: Moment) -> list[str]:
    """Return the state as lines for a person, styled for a terminal."""
    facts = moment.facts
    rows = [
        *_when(moment),
        *_targets(facts),
        *_buffer(facts),
        *_flying(facts),
        *engine_rows(facts),
        *wait_rows(facts),
        *_labelled("chain", [_linked(chain(facts))]),
        *_outstanding(facts),
        *_troubles(facts),
    ]
    width = max(len(label) for label, _ in rows)
    lines = [_headline(facts), ""]
    return lines + [f"{click.style(label.ljust(width), dim=True)}  {text}".rstrip() for label, text in rows]


def _age(now_ns: int, since_ns: int) -> float:
    return round((now_ns - since_ns) / 1e9, 3)


def _since(facts: RunFacts, since_ns: int) -> str:
    """Return a monotonic time as the time since the start at which it was, as far as the last record tells."""
    return clock_time(facts.view.last_ts - facts.started_ts - (facts.view.last_mono - since_ns))


def _labelled(label: str, texts: list[str]) -> list[tuple[str, str]]:
    """Return rows of which only the first has the label."""
    return [("" if index else label, text) for index, text in enumerate(text for text in texts if text)]


def _linked(links: list[str] | tuple[str, ...]) -> str:
    return " <- ".join(links)


def _headline(facts: RunFacts) -> str:
    trainer = facts.view.trainer
    name = facts.started.run if facts.started else ""
    head = f"{click.style(name, bold=True)}  step {trainer.step} of {trainer.steps_total}, version {trainer.version}, "
    if trainer.finished:
        return head + f"ended: {trainer.outcome}"
    lasted = seconds((facts.now_mono - trainer.phase_since_ns) / 1e9)
    return head + f"{trainer.phase} for {lasted}, since {_since(facts, trainer.phase_since_ns)}"


def _when(moment: Moment) -> list[tuple[str, str]]:
    facts = moment.facts
    at_ns = moment.last.ts - facts.started_ts + facts.later_ns
    rows = [
        ("at", f"{clock_time(at_ns)} since the start, {utc_text(moment.last.ts + facts.later_ns)}"),
        ("after", _cut(click.unstyle(event_line(moment.last, facts.started_ts)).strip())),
    ]
    if facts.later_ns >= MS:
        rows.append(("", f"nothing happened in the {seconds(facts.later_ns / 1e9)} after that"))
    if facts.resumed:
        rows.append(("resumed", f"{facts.resumed} times" if facts.resumed > 1 else "once"))
    return rows


def _cut(line: str) -> str:
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 3] + "..."


def _targets(facts: RunFacts) -> list[tuple[str, str]]:
    found = targets(facts)
    if not found:
        return []
    lines = [("step", "have", "in flight", "need", "")]
    for step, have, flying, need in found:
        short = need - have - flying
        lines.append((str(step), str(have), str(flying), str(need), f"short by {short}" if short > 0 else ""))
    return _labelled("targets", table(lines, right=(0, 1, 2, 3)))


def _buffer(facts: RunFacts) -> list[tuple[str, str]]:
    view = facts.view
    room = config_of(facts).scheduler.buffer_or_default
    held = f": groups {_numbers(view.groups.buffer)}" if view.groups.buffer else ""
    rows = [("buffer", f"{view.groups.buffered} of {room}{held}")]
    if view.trainer.taken:
        rows.append(("training", f"step {view.trainer.taken_step}: groups {_numbers(view.trainer.taken)}"))
    return rows


def _flying(facts: RunFacts) -> list[tuple[str, str]]:
    found = in_flight(facts)
    texts = [
        f"group {group.group}, prompt {group.prompt}, for step {group.target}, version {group.version}: "
        f"{len(group.completed)} of {group.size} trajectories, "
        f"{seconds((facts.now_mono - group.since_ns) / 1e9)}"
        for group in found[:GROUPS_MAX]
    ]
    return _labelled("in flight", [*(texts or ["nothing"]), _more(len(found) - GROUPS_MAX)])


def _outstanding(facts: RunFacts) -> list[tuple[str, str]]:
    found = outstanding(facts)
    texts = []
    for effect, age_s, limit_s in found[:OUTSTANDING_MAX]:
        limit = "" if limit_s is None else f" of at most {seconds(limit_s)}"
        subject = "" if effect.subject == effect.place else f" of {effect.subject}"
        texts.append(
            f"{effect.kind.replace('_', ' ')}{subject} at {effect.place}, "
            f"{seconds(age_s)}{limit} (seq {effect.seq})"
        )
    return _labelled("outstanding", [*(texts or ["nothing"]), _more(len(found) - OUTSTANDING_MAX)])


def _troubles(facts: RunFacts) -> list[tuple[str, str]]:
    quarantined = facts.view.prompts.quarantined
    texts = [f"item {item}: {why}" for item, why in islice(quarantined.items(), QUARANTINE_MAX)]
    rows = _labelled("quarantine", [*texts, _more(len(quarantined) - QUARANTINE_MAX)])
    now = chain(facts)
    for number, stall in facts.stalls.items():
        text = f"{click.style(stall.stall_kind, fg='red', bold=True)}, told at seq {facts.stall_seqs[number]}"
        if stall.first_cause is not None:
            text += f"; first cause: seq {stall.first_cause}"
        if list(stall.chain) != now:
            text += f"; {_linked(stall.chain)}"
        rows.append(("stall", text))
    return rows


def _numbers(groups: tuple[int, ...] | list[int]) -> str:
    shown = ", ".join(str(group) for group in groups[:GROUPS_MAX])
    return shown + (f" {_more(len(groups) - GROUPS_MAX)}" if len(groups) > GROUPS_MAX else "")


def _more(count: int) -> str:
    return f"and {count} more" if count > 0 else ""
