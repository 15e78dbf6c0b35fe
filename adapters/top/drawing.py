"""The panels of the live view as lines of text: pure functions of what is shown and of the room there is.

They use the sixteen colours of the terminal alone, so that they suit a dark and a light one, and say in words or
numbers whatever they say in colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.text import Text

from ...events.types import TRAJECTORY_PARTS
from ..cli.quantities import number, seconds, size
from ..console import PHASE_COLOURS
from .model import MEAN_STEPS, Done, Flying, Shown, Target
from .plot import LABELLED, area

PART_COLOURS = {
    "queue": "yellow",
    "llm": "blue",
    "env_setup": "cyan",
    "env": "green",
    "reward": "magenta",
    "other": "bright_black",
}
STALL_COLOURS = {"overdue": "yellow", "degraded": "yellow"}
STATE_COLOURS = {"serving": "green", "paused": "yellow", "restarting": "yellow", "lost": "bold red"}
WIDE = 44
"""Columns from which on a panel of groups has room for the step that they are for."""
_PLAIN = "█▓▒░"
"""What tells the parts of a bar apart where there are no colours."""


class Line(NamedTuple):
    """A line of a panel."""

    text: Text
    opens: str = ""
    """What Enter opens on it: a group, a trajectory, ``stalls``; or nothing."""


def text(*parts: str | Text | tuple[str, str]) -> Text:
    """Return the parts, plain or (words, style), as one line that is cut and never wrapped."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def stacked(shares: Iterable[tuple[float, str]], width: int, *, plain: bool = False) -> Text:
    """Return one bar of `width` characters of (share, style) parts; `plain` for a terminal without colours."""
    bar, edge, drawn = text(), 0.0, 0
    for index, (share, style) in enumerate(shares):
        edge += share * width
        cells = round(edge) - drawn
        drawn += cells
        bar.append((_PLAIN[index % len(_PLAIN)] if plain else "█") * cells, style)
    return bar


def gauge(share: float, width: int, style: str) -> Text:
    """Return a bar that is filled to `share` (0 to 1), and a thin line for the rest."""
    cells = round(min(max(share, 0.0), 1.0) * width)
    return text(("━" * cells, style), ("─" * (width - cells), "bright_black"))


def flowing(parts: Sequence[Text], width: int) -> list[Text]:
    """Return `parts` set one after the other, in as many lines of `width` as they need."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 2 + part.cell_len <= width:
            lines[-1].append("  ").append_text(part)
        else:
            lines.append(text().append_text(part))
    return lines


def percent(share: float) -> str:
    """Return a share (0 to 1) as a person reads it."""
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def trainer_lines(now: Shown, width: int, height: int, *, plain: bool = False) -> list[Line]:
    """Return the phase, how long it lasts, and the shares of all phases."""
    ended = now.phase == "finished"
    colour = PHASE_COLOURS.get(now.phase, "")
    lasts = "" if ended else f"  for {seconds(now.phase_for_s)}"
    lines = [text((now.phase.replace("_", " "), f"bold {colour}"), lasts)]
    total = sum(now.phases.values())
    if total > 0:
        known = [(name, now.phases[name] / total) for name in PHASE_COLOURS if now.phases.get(name)]
        lines.append(stacked([(share, PHASE_COLOURS[name]) for name, share in known], width, plain=plain))
        order = sorted(known, key=lambda one: -one[1])
        names = [
            text((name.replace("_", " "), PHASE_COLOURS[name]), f" {percent(share)}") for name, share in order
        ]
        if height <= 2:
            lines.pop()  # the numbers say more than the bar
        lines += flowing(names, width)
    return [Line(line) for line in lines[:height]]


def reward_lines(now: Shown, width: int, height: int) -> list[Line]:
    """Return the last rewards, the loss and the lag, and the curve of all rewards."""
    last = now.last_step
    if last is None or now.reward_mean is None:
        return [Line(text(("no step is trained yet", "bright_black")))]
    count = min(MEAN_STEPS, len(now.rewards))
    parts = [
        text((number(last.reward_mean), "bold green"), f"  mean of {count} {number(now.reward_mean)}"),
        text((f"lag {last.lag_mean:.1f} (max {last.lag_max})", "bright_black")),
        text((f"loss {last.loss:.3g}", "bright_black")),
    ]
    if now.eval_reward is not None:
        parts.insert(1, text(f"eval {number(now.eval_reward)}"))
    lines = flowing(parts, width)[: 1 if height < LABELLED + 2 else 2]
    lines += area(now.rewards, width, height - len(lines), "green")
    return [Line(line) for line in lines[:height]]


def group_lines(now: Shown, width: int, height: int) -> list[Line]:
    """Return how full the buffer is, and what each target step has and lacks."""
    room = max(4, min(16, width - 30))
    full = now.buffered / now.capacity if now.capacity else 0.0
    flying = f"  in flight {now.in_flight}/{now.permits}"
    lines = [text("buffer ", gauge(full, room, "green"), f" {now.buffered}/{now.capacity}", flying)]
    lines += [_target(target, width) for target in now.targets]
    more = len(lines) - height
    if more > 0 and height > 1:
        lines = [*lines[: height - 1], text((f"and {more + 1} more steps", "bright_black"))]
    elif height - len(lines) >= 2 and now.ended:
        ended = [text((f"{count} {how}", "bright_black")) for how, count in sorted(now.ended.items())]
        lines += [text(), *flowing(ended, width)]
    return [Line(line) for line in lines[:height]]


def _target(target: Target, width: int) -> Text:
    cells = max(4, min(16, width - 30))
    need = max(1, target.need, target.buffered + target.in_flight)
    have = round(cells * target.buffered / need)
    flying = round(cells * (target.buffered + target.in_flight) / need) - have
    line = text(
        f"step {target.step:<4} ",
        ("█" * have, "green"),
        ("▒" * flying, "blue"),
        ("·" * (cells - have - flying), "red"),
        f" {target.buffered}",
        (f"+{target.in_flight}", "blue"),
        f" of {target.need}",
    )
    if target.missing:
        line.append(f"  {target.missing} missing", "bold red")
    return line


def flying_title(now: Shown) -> str:
    """Return the title of the panel of groups in flight: how many, and in which stages."""
    stages = "  ".join(f"{stage} {count}" for stage, count in sorted(now.stages.items()))
    return f"in flight {now.in_flight}" + (f": {stages}" if stages else "")


def flying_lines(now: Shown, width: int, height: int) -> list[Line]:
    """Return the groups in flight, oldest first, then the trajectories completed last; Enter opens one of them."""
    step = f" {'step':>5}" if width >= WIDE else ""
    head = f"{'group':>5}{step} {'done':>5} {'age':>6}  oldest in it"
    lines = [Line(text((head, "bright_black")))]
    lines += [Line(_flying(one, width), str(one.group)) for one in now.groups]
    if not now.groups:
        lines = [Line(text(("no group is in flight", "bright_black")))]
    if now.done:
        head = f"{'completed':>11} {'reward':>7} {'time':>6} {'turns':>5}"
        lines += [Line(text()), Line(text((head, "bright_black")))]
        lines += [Line(_done(one), one.trajectory) for one in now.done]
    return lines


def _done(one: Done) -> Text:
    return text(f"{one.trajectory:>11} {number(one.reward):>7} {seconds(one.wall_s):>6} {one.turns:>5}")


def _flying(group: Flying, width: int) -> Text:
    step = f" {group.target:>5}" if width >= WIDE else ""
    done = f"{group.completed}/{group.size}"
    line = text(f"{group.group:>5}{step} {done:>5} {seconds(group.age_s):>6}  ")
    if not group.trajectory:
        return line.append(group.stage or "starting", "bright_black")
    style = {"llm": "blue", "env": "green", "reward": "magenta", "retry": "red"}.get(group.stage, "yellow")
    line.append(f"{group.trajectory} ").append(group.stage.replace("_available", ""), style)
    lasts = f" {seconds(group.stage_s)}"
    if line.cell_len + len(lasts) <= width:
        line.append(lasts, "bright_black")
    return line


def engine_lines(now: Shown, width: int, height: int) -> list[Line]:
    """Return the engines with what they do, and the devices where the log has their use."""
    lines = []
    name_width = max((len(engine.name) for engine in now.engines), default=0)
    for engine in now.engines:
        to = "" if engine.syncing_to is None else f"→{engine.syncing_to}"
        share = engine.in_flight / engine.slots if engine.slots else 0.0
        line = text(
            f"{engine.name:<{name_width}} ",
            (f"{engine.state:<8}", STATE_COLOURS[engine.state]),
            f"v{engine.version}{to:<4} ",
        )
        line.append_text(gauge(share, max(3, min(12, width - name_width - 29)), "blue"))
        line.append(f" {engine.in_flight}/{engine.slots}")
        if engine.restarts:
            line.append(f" {engine.restarts}↻", "yellow")
        lines.append(line)
    if not lines:
        lines.append(text(("no engine is up yet", "bright_black")))
    lines += device_lines(now, width)
    return [Line(line) for line in lines]


def device_lines(now: Shown, width: int) -> list[Text]:
    """Return the devices with their use and memory; all of its memory where there is room to say it."""
    names = [
        text(device.name)
        if device.name.startswith("cpu:")
        else text(f"{device.name} ", (device.pool, "bright_black"))
        for device in now.devices  # the name of a process says whose it is
    ]
    name_width = max((name.cell_len for name in names), default=0)
    lines = []
    for device, name in zip(now.devices, names, strict=True):
        name.append(" " * (name_width - name.cell_len + 1))
        name.append_text(gauge(device.utilization, max(3, min(12, width - name_width - 16)), "cyan"))
        name.append(f" {percent(device.utilization):>5} {size(device.memory_bytes)}")
        total = f"/{size(device.memory_total_bytes)}" if device.memory_total_bytes else ""
        if name.cell_len + len(total) <= width:
            name.append(total)
        lines.append(name)
    return lines


def part_lines(now: Shown, width: int, height: int, *, plain: bool = False) -> list[Line]:
    """Return where the time of the rollouts went: of the last trajectories, and of the whole run."""
    total, total_all = sum(now.parts.values()), sum(now.parts_all.values())
    if total_all <= 0:
        return [Line(text(("no trajectory is complete yet", "bright_black")))]
    late = {name: now.parts.get(name, 0.0) / total if total else 0.0 for name in TRAJECTORY_PARTS}
    ever = {name: now.parts_all.get(name, 0.0) / total_all for name in TRAJECTORY_PARTS}
    used = [name for name in TRAJECTORY_PARTS if late[name] or ever[name]]
    if height > len(used):
        lines = [_part_row(name, late[name], ever[name], width) for name in used]
        head = f"{'':<9} {f'last {len(now.done)}':>7} {'run':>6}"
        return [Line(text((head, "bright_black"))), *map(Line, lines)]
    shares = [(late[name], PART_COLOURS[name]) for name in used]
    order = sorted(used, key=lambda name: -late[name])
    names = [text((name.replace("_", " "), PART_COLOURS[name]), f" {percent(late[name])}") for name in order]
    lines = [stacked(shares, width, plain=plain), *flowing(names, width)]
    return [Line(line) for line in lines[:height]]


def _part_row(name: str, late: float, ever: float, width: int) -> Text:
    line = text((f"{name.replace('_', ' '):<9}", PART_COLOURS[name]), f" {percent(late):>7}")
    line.append(f" {percent(ever):>6} ", "bright_black")
    return line.append_text(gauge(late, max(4, width - 25), PART_COLOURS[name]))


def stall_lines(now: Shown, width: int, height: int) -> list[Line]:
    """Return the verdict: every stall with its chain and first cause, or that there is none and who waits."""
    lines: list[Line] = []
    if now.reason:
        colour = "bold red" if now.life == "failed" else "yellow"
        lines += [Line(one) for one in wrapped(now.reason, width, "", colour)]
    for stall in now.stalls:
        head = text((stall.kind.replace("_", " "), f"bold {STALL_COLOURS.get(stall.kind, 'red')}"))
        head.append(f"  told at seq {stall.seq}")
        if stall.first_cause is not None:
            head.append(f"; first cause: seq {stall.first_cause}")
        lines.append(Line(head, "stalls"))
        links = [("<- " if index else "") + link for index, link in enumerate(stall.chain)]
        if len(links) >= height:
            links = [" ".join(links)]
        lines += [Line(one) for link in links for one in wrapped(link, width, "   ", "")]
    if not lines:
        calm = text(("no stall", "green"))
        if now.chain:
            calm.append("  " + " <- ".join(now.chain), "bright_black")
        lines.append(Line(calm, "stalls"))
    trouble = _troubles(now)
    if trouble is not None:
        lines.append(Line(trouble))
    return lines


def _troubles(now: Shown) -> Text | None:
    parts = [f"{count} {kind}" for kind, count in sorted(now.failed.items())]
    line = text()
    if parts:
        line.append("failed attempts ", "red").append(", ".join(parts))
    if now.quarantined:
        many = "s" if now.quarantined > 1 else ""
        line.append("  " if parts else "").append("quarantined ", "red")
        line.append(f"{now.quarantined} prompt{many}")
    return line if line.plain else None


def wrapped(words: str, width: int, indent: str, style: str) -> list[Text]:
    """Return `words` in lines of at most `width`, all but the first with `indent`."""
    lines, line = [], ""
    for word in words.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line.strip() else line + word
    return [text((one, style)) for one in [*lines, line]]
