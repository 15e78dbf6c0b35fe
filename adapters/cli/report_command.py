"""`eventrain report`: one page of HTML that says how a run went."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from ..wording import require
from .debug_option import debug_option
from .failures import BadInput
from .opening import open_run
from .quantities import size

HELP = """Write one HTML page about a run: how it ended, what bounds it, and where its time went.

It has curves of reward and lag, the trainer's phases above groups, buffer and devices on one time axis, the slowest
trajectories turn by turn, stalls with their causes, and the settings. The page needs nothing but itself: it can be
mailed, attached to an issue, and opened without a network. It is made from the run's log, so it works for a run that
is going on, has ended, or was killed. RUN is the run's folder.

A report that lies at the output file is replaced; any other file is left alone.

\b
Examples:
  eventrain report runs/demo
  eventrain report runs/demo -o demo.html
"""


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
@debug_option
def report_command(run: Path, output: Path) -> None:
    """Write the report of a run."""
    folder = open_run(run)
    check_output(output)
    from ..report.page import page, plotly_script
    from ..report.reading import read_run

    require("jinja2", "view")  # before a long log is read
    plotly_script()
    reading = read_run(folder)
    written = write_whole(output, page(reading))
    if reading.damage:
        click.echo(f"{run}: {reading.damage}; the report ends there", err=True)
    click.echo(f"{output} ({size(written)})")


def check_output(output: Path) -> None:
    """Raise `BadInput` if no report can be written to `output`, or if what is there is no report."""
    if output.is_dir():
        raise BadInput([f"{output}: is a folder; name a file in it, like {output / 'report.html'}"])
    if not output.parent.is_dir():
        raise BadInput([f"{output}: there is no folder {output.parent}"])
    if output.exists() and not (output.is_file() and is_report(output)):
        raise BadInput([f"{output}: exists and is no report of eventrain; name another file, or remove it"])


def is_report(path: Path) -> bool:
    """Return whether `path` is a page that this command wrote."""
    with path.open("rb") as file:
        return b'<meta name="generator" content="eventrain report">' in file.read(4096)


def write_whole(output: Path, text: str) -> int:
    """Write `text` to `output` and return its size in bytes; whoever opens it sees the old file or all of the new."""
    content = text.encode()
    descriptor, name = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(output)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return len(content)
