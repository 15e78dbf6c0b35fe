"""`eventrain stalls`: when a run stood still or crawled, and why, as the fold of its log."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from .debug_option import debug_option
from .opening import open_run, reader_of
from .stalls_report import read_stalls, stalls_lines, stalls_table

HELP = """List every stall of a run: when, of what kind, the chain from the trainer's wait to the first cause, its end.

It folds the run's log, so it works for a run that is going on, has ended, or was killed: at the end of a log without
an end it says what the run was waiting for. RUN is the run's folder.

Device-seconds idle: over the stall, each engine counts by the share of its slots that are free, and the learner
counts while it neither trains nor writes.

\b
Examples:
  eventrain stalls runs/demo
  eventrain stalls runs/demo --json | jq '.stalls[].sentence'
"""


@click.command("stalls", help=HELP, short_help="Say when a run stood still, and why.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def stalls_command(run: Path, as_json: bool) -> None:
    """List the stalls of a run."""
    folder = open_run(run)
    # The lock first: a run that ends between the two looks has its last event in the log by then.
    being_written = folder.is_held()
    report = read_stalls(run, reader_of(folder).records(), being_written=being_written, now_ts=time.time_ns())
    if as_json:
        click.echo(json.dumps(stalls_table(report), indent=2))
        return
    for line in stalls_lines(report):
        click.echo(line)
