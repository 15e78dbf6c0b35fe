"""`eventrain report`: one page of HTML that says how a run went."""

from __future__ import annotations

from pathlib import Path

import click

from ..wording import require
from .debug_option import debug_option
from .opening import open_run
from .quantities import size
from .writing import Output, force_option, write_whole

HELP = """Write one HTML page about a run: how it ended, what bounds it, and where its time went.

It has curves of reward and lag, the trainer's phases above groups, buffer and devices on one time axis, the slowest
trajectories turn by turn, stalls with their causes, and the settings. The page needs nothing but itself: it can be
mailed, attached to an issue, and opened without a network. It is made from the run's log, so it works for a run that
is going on, has ended, or was killed. RUN is the run's folder.

A report that lies at the output file is replaced, any other file only with --force.

\b
Examples:
  eventrain report runs/demo
  eventrain report runs/demo -o demo.html
"""

REPORT = Output(
    "report", "report.html", lambda head: b'<meta name="generator" content="eventrain report">' in head
)


@click.command("report", help=HELP, short_help="Write one HTML page about a run.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="File to write.",
)
@force_option
@debug_option
def report_command(run: Path, output: Path, force: bool) -> None:
    """Write the report of a run."""
    folder = open_run(run)
    REPORT.check(output, force=force)
    from ..report.page import page, plotly_script
    from ..report.reading import read_run

    require("jinja2", "view")  # before a long log is read
    plotly_script()
    reading = read_run(folder)
    with write_whole(output) as file:
        written = file.write(page(reading).encode())
    if reading.damage:
        click.echo(f"{run}: {reading.damage}; the report ends there", err=True)
    click.echo(f"{output} ({size(written)})")
