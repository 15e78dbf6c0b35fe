"""`eventrain top`: the live view of a run in a terminal."""

from __future__ import annotations

from pathlib import Path

import click

from ..wording import require
from .debug_option import debug_option
from .failures import BadInput
from .following import on_terminal
from .opening import open_run
from .points import parse_point

HELP = """Watch a run on one screen: phase, steps, groups, engines, rewards, where the time goes, why it stands.

It reads the run's log, beside the run or after it, from any machine that sees the folder; RUN is that folder. The arrow
keys go back to any point of its past, and End follows it again. ? lists the keys, q quits.

\b
Examples:
  eventrain top runs/demo
  eventrain top runs/demo --at step:12
"""


@click.command("top", help=HELP, short_help="Watch a run, and go back in its time.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--at", metavar="POINT", default=None, help="Point to begin at, as replay --at takes it; default: end."
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.25, max=60),
    metavar="SECONDS",
    default=0.5,
    show_default=True,
    help="Seconds between two looks at the log, at least 0.25.",
)
@debug_option
def top_command(run: Path, at: str | None, interval_s: float) -> None:
    """Show a run until somebody quits."""
    folder = open_run(run)
    try:
        point = None if at is None else parse_point(at)
    except ValueError as error:
        raise BadInput([f"--at {error}"]) from None
    if not on_terminal():
        raise BadInput([f"top needs a terminal; without one: eventrain status {run}"])
    require("textual", "view")
    from ..top.app import show

    show(folder, point, interval_s)
