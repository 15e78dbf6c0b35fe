"""`eventrain frontier`: what the other policies and bounds would come to, from the latencies in a run's log."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ..simulated.cluster import Row
from ..simulated.frontier import Latencies, Model, Point, Setting, marked
from .debug_option import debug_option
from .failures import CommandFailed
from .frontier_report import Frontier, frontier_lines, frontier_table
from .opening import open_run, reader_of

HELP = """Draw the trade-off between efficiency, staleness and waste from the latencies in a run's own log.

Every scheduling policy is simulated at several values of max_staleness, with the shipped scheduling in virtual time,
and with group, training and sync times drawn from the log. The run's own setting is marked, beside what was
measured, so that the model's error shows. RUN is the run's folder; the run may be going on.

\b
Examples:
  eventrain frontier runs/demo
  eventrain frontier runs/demo --seeds 10
  eventrain frontier runs/demo --json | jq '.settings[] | select(.best)'
"""


@click.command("frontier", help=HELP, short_help="Draw the trade-off of the scheduling policies.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Simulated runs per row."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def frontier_command(run: Path, seeds: int, as_json: bool) -> None:
    """Draw the trade-off."""
    latencies = Latencies.of(reader_of(open_run(run)).records())
    lacks = latencies.lacks()
    if lacks:
        raise CommandFailed([f"{run}: {lacks}"])
    model = Model(latencies)
    settings = list(model.settings())
    rows = _simulated([(setting, seed) for setting in settings for seed in range(seeds)])
    points = marked(
        [Point.of(setting, rows[n * seeds : (n + 1) * seeds]) for n, setting in enumerate(settings)]
    )
    frontier = Frontier(latencies, model, points, seeds, latencies.measured())
    if as_json:
        click.echo(json.dumps(frontier_table(frontier), indent=2))
        return
    for line in frontier_lines(frontier):
        click.echo(line)


def _simulated(jobs: Sequence[tuple[Setting, int]]) -> list[Row]:
    """Return the row of every job, in order; on a terminal say how far it is."""
    # Here, as every other command starts faster without it.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    rows: list[Row] = []
    # Spawned, not forked: a fork takes along locks that threads of this process may hold.
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1), get_context("spawn")) as pool:
        for row in pool.map(_simulate, jobs):
            rows.append(row)
            if sys.stderr.isatty():
                click.echo(f"\r{len(rows)} of {len(jobs)} runs simulated", err=True, nl=False)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)
    return rows


def _simulate(job: tuple[Setting, int]) -> Row:
    setting, seed = job
    return setting.simulate(seed)
