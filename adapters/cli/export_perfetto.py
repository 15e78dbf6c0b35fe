"""`eventrain export perfetto`: a run as lanes, counters and arrows, for the page ui.perfetto.dev."""

from __future__ import annotations

import itertools
from pathlib import Path

import click

from ...events.errors import LogDamaged, LogTooNew
from ..telemetry.perfetto import MADE_BY, SLOTS_MAX
from .debug_option import debug_option
from .failures import CommandFailed
from .opening import first_record, open_run, reader_of
from .quantities import size
from .writing import Output, force_option, write_whole

TRACE = Output(
    "Perfetto trace", "run.pftrace", lambda head: head.startswith(b"\n") and MADE_BY.encode() in head
)


@click.command("perfetto", short_help="Write a Perfetto trace: lanes, counters and arrows.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--slots-max",
    metavar="N",
    type=click.IntRange(min=0),
    default=SLOTS_MAX,
    show_default=True,
    help="Lanes for trajectories in flight; more of them are only counted.",
)
@force_option
@debug_option
def export_perfetto(run: Path, file: Path, slots_max: int, force: bool) -> None:
    r"""Write the log of RUN to FILE as a trace that https://ui.perfetto.dev opens.

    Lanes for the trainer's phases, steps and waits, the weights, each engine, the buffer, stalls, devices and every
    trajectory in flight; arrows from trajectories to the step that trained them and on to the engines that took its
    weights. The page works in the browser and sends the file nowhere. Needs perfetto: pip install 'eventrain[view]'.
    An earlier trace at FILE is replaced, any other file only with --force.

    \b
    Example:
      eventrain export perfetto runs/demo demo.pftrace
    """
    from ..telemetry.perfetto.export import TraceExport  # no other command needs it

    folder = open_run(run)
    records = reader_of(folder).records()
    TRACE.check(file, force=force)
    first = first_record(records, run)
    damaged: LogDamaged | LogTooNew | None = None
    with write_whole(file) as out:
        export = TraceExport(out, first, slots_max)
        try:
            export.write(itertools.chain([first], records))
        except (LogDamaged, LogTooNew) as error:
            damaged = error
    if damaged is not None:
        raise CommandFailed([f"{run}: {damaged}; {file} has what is before it"]) from damaged
    counted = f"{export.events} events as {export.slices} slices on {export.lanes} lanes"
    click.echo(f"{file}: {counted}, {size(export.size_bytes)}")
    if export.left_out:
        click.echo(
            f"  {export.left_out} trajectories found no lane and are only counted (--slots-max {slots_max})"
        )
    click.echo("  open it at https://ui.perfetto.dev: it stays on this machine")
