"""`eventrain replay`: time travel through the log of a run, and its decisions made again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...core.replay import DECISIONS, NotReplayable
from .check_report import check_run, check_table, report_lines
from .config_errors import nearest
from .debug_option import debug_option
from .failures import EXIT_FAILED, BadInput
from .moment_diff import Diff, diff_lines, diff_table
from .moment_report import moment_lines, moment_table
from .opening import open_run
from .points import End, Point, Seq, parse_point
from .timeline import Moment, Timeline

HELP = """Show the state of a run at any point of its log, or make its decisions again.

It folds the run's log up to there, so it works for a run that is going on, has ended, or was killed. RUN is the run's
folder; nothing in it is changed. Folded states are kept in the user's cache folder, so that a second look at a long
log is quick.

With --check, every decision of the log is made again on the state that it was made on, up to the first one that would
be another now: what the log holds, what would be decided, and the state. So a fix or another policy is tried on the
log of a real run. Exit code 1 when one differs.

\b
A point is one of
  978                     right after the event with this seq
  0:12:03.5               a time since the start, as `eventrain events` prints it
  2026-11-30T23:12:03Z    a UTC time
  step:12                 right after step 12 was completed; the last time, if a resumed run did it twice
  end                     after the last event

\b
Examples:
  eventrain replay runs/demo --at step:12
  eventrain replay runs/demo --diff 0:12:00 0:14:00
  eventrain replay runs/demo --at 978 --follow
  eventrain replay runs/demo --check --set scheduler.max_staleness=2
"""


@click.command(
    "replay", help=HELP, short_help="Show the state at any point of a log, or check its decisions."
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--at", metavar="POINT", default=None, help="The point; default: end, with --follow the start.")
@click.option(
    "--diff",
    type=(str, str),
    metavar="POINT POINT",
    default=None,
    help="Show what changed from the first point to the second.",
)
@click.option(
    "--follow", is_flag=True, help="Step through what follows --at; keys on a terminal, else lines."
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    default=None,
    help="With --follow: play by itself, N times as fast as it was.",
)
@click.option(
    "--check", "checking", is_flag=True, help="Make every decision again; stop at the first that differs."
)
@click.option(
    "--ignore-kind",
    "ignored",
    metavar="KIND",
    multiple=True,
    help="With --check: do not compare decisions of this kind; may be repeated.",
)
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="With --check: decide with this setting instead of the run's; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def replay_command(
    run: Path,
    at: str | None,
    diff: tuple[str, str] | None,
    follow: bool,
    speed: float | None,
    checking: bool,
    ignored: Sequence[str],
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Show the state of a run, or check its decisions."""
    for other, is_given in (("--at", at is not None), ("--diff", diff is not None), ("--follow", follow)):
        _refuse_together([("--check", checking), (other, is_given)])
    if checking:
        _check(run, ignored, overrides, as_json)
        return
    if ignored or overrides:
        raise BadInput(["--ignore-kind and --set say how --check decides; give --check with them"])
    _refuse_together([("--diff", diff is not None), ("--follow", follow)])
    _refuse_together([("--diff", diff is not None), ("--at", at is not None)])
    _refuse_together([("--follow", follow), ("--json", as_json)])
    if speed is not None and not follow:
        raise BadInput(["--speed says how fast --follow plays; give both"])
    point = _point("--at", at) if at is not None else Seq(0) if follow else End()
    pair = None if diff is None else (_point("--diff", diff[0]), _point("--diff", diff[1]))
    timeline = Timeline(open_run(run))
    if pair is not None:
        _show_diff(timeline, pair, as_json)
    elif follow:
        _follow(timeline, point, speed)
    else:
        moment = timeline.moment(point)
        _print(moment_table(moment) if as_json else moment_lines(moment))
        _end(timeline, moment)


def _check(run: Path, ignored: Sequence[str], overrides: Sequence[str], as_json: bool) -> None:
    folder = open_run(run)
    try:
        report = check_run(folder, overrides=overrides, ignored=_decision_kinds(ignored))
    except NotReplayable as error:
        raise BadInput([f"{run}: {error}"]) from None
    _print(check_table(report) if as_json else list(report_lines(report)))
    if not report.agrees:
        click.get_current_context().exit(EXIT_FAILED)


def _decision_kinds(kinds: Sequence[str]) -> Sequence[str]:
    problems = []
    for kind in kinds:
        if kind not in DECISIONS:
            meant = nearest(kind, DECISIONS)
            hint = f"did you mean {meant}?" if meant else f"there are: {', '.join(sorted(DECISIONS))}"
            problems.append(f"--ignore-kind {kind}: no decision has this kind; {hint}")
    if problems:
        raise BadInput(problems)
    return kinds


def _point(option: str, text: str) -> Point:
    try:
        return parse_point(text)
    except ValueError as error:
        raise BadInput([f"{option} {error}"]) from None


def _show_diff(timeline: Timeline, points: tuple[Point, Point], as_json: bool) -> None:
    diff = Diff.between(timeline, *points)
    _print(diff_table(diff) if as_json else diff_lines(diff))
    _end(timeline, diff.after)


def _follow(timeline: Timeline, at: Point, speed: float | None) -> None:
    from .following import follow_lines, follow_on_terminal, on_terminal

    if on_terminal():
        follow_on_terminal(timeline, at, speed)
        return
    for line in follow_lines(timeline, at, speed):
        click.echo(line)


def _refuse_together(options: Sequence[tuple[str, bool]]) -> None:
    given = [name for name, is_given in options if is_given]
    if len(given) > 1:
        raise BadInput([f"{given[0]} and {given[1]} do not go together; give one of them"])


def _print(said: dict[str, Any] | list[str]) -> None:
    for line in said if isinstance(said, list) else [json.dumps(said, indent=2)]:
        click.echo(line)


def _end(timeline: Timeline, moment: Moment) -> None:
    """Say it, and fail, where the state is not the log's last one only because the rest cannot be read."""
    if moment.unreadable is not None:
        click.echo(f"{timeline.path}: {moment.unreadable}; this is the state at seq {moment.seq}", err=True)
        click.get_current_context().exit(EXIT_FAILED)
