"""`eventrain status`: where a run stands, live or finished, as the fold of its log."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .debug_option import debug_option
from .opening import open_run, reader_of
from .status_report import RunStatus, status_lines, status_table

HELP = """Say where a run stands: step, phase, reward, groups, engines, who waits for what, failures, time.

It folds the run's log, so it works for a run that is going on, has ended, or was killed. RUN is the run's folder.

\b
Examples:
  eventrain status runs/demo
  eventrain status runs/demo --json | jq .step
  watch -n 2 eventrain status runs/demo
"""


@click.command("status", help=HELP, short_help="Say where a run stands.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def status_command(run: Path, as_json: bool) -> None:
    """Say where a run stands."""
    folder = open_run(run)
    # The lock first: a run that ends between the two looks has its last event in the log by then.
    being_written = folder.is_held()
    status = RunStatus.of(run, reader_of(folder).records(), being_written=being_written)
    if as_json:
        click.echo(json.dumps(status_table(status), indent=2))
        return
    for line in status_lines(status):
        click.echo(line)
