"""`eventrain export openmetrics`: the metrics of a run as a text that Prometheus takes in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...events.errors import LogDamaged, LogTooNew
from .debug_option import debug_option
from .failures import BadInput, CommandFailed
from .opening import first_record, open_run, reader_of
from .quantities import seconds, size
from .run_facts import utc_text
from .writing import Output, force_option, write_whole

if TYPE_CHECKING:
    from ..telemetry.metrics.openmetrics import Exported

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
EVERY_MIN_S = 0.001

METRICS_TEXT = Output(
    "metrics export", "run.om", lambda head: re.match(rb"# HELP (rl_\w+) [^\n]*\n# TYPE \1 ", head)
)


def duration_s(text: str) -> float:
    """Return the seconds that ``15s``, ``500ms``, ``1m`` or a plain number of seconds means. Raises `BadInput`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip())
    if found is None or float(found[1]) * _UNITS_S[found[2]] < EVERY_MIN_S:
        raise BadInput([f"--every: '{text}' is no time between scrapes; write 15s, 500ms or 1m"])
    return float(found[1]) * _UNITS_S[found[2]]


@click.command("openmetrics", short_help="Metrics with timestamps, for Prometheus.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--every", default="15s", show_default=True, metavar="TIME", help="Time between two samples.")
@force_option
@debug_option
def openmetrics_command(run: Path, file: Path, every: str, force: bool) -> None:
    r"""Write the metrics of a run to FILE as OpenMetrics text, with the times at which they had these values.

    They are what Prometheus would have scraped from the run every TIME. Take them in with

    \b
      promtool tsdb create-blocks-from openmetrics FILE PROMETHEUS_DATA_FOLDER

    The run may be finished, crashed or going on. There are no samples of times at which it was stopped.
    An earlier export at FILE is replaced, any other file only with --force.
    """
    from ..telemetry.metrics.openmetrics import TooManyScrapes, write_openmetrics  # no other command needs it

    every_s = duration_s(every)
    folder = open_run(run)
    METRICS_TEXT.check(file, force=force)
    records = reader_of(folder).records()
    first_record(reader_of(folder).records(), run)
    try:
        with write_whole(file) as out:
            told = write_openmetrics(records, out, every_s)
    except (LogDamaged, LogTooNew) as error:
        raise CommandFailed([f"{run}: {error}; {file} was not written"]) from error
    except TooManyScrapes as error:
        raise BadInput([f"--every: {error}; a longer time would do"]) from error
    click.echo(_summary(file, told, every_s))


def _summary(file: Path, told: Exported, every_s: float) -> str:
    span = f"{utc_text(told.first_ts)} to {utc_text(told.last_ts)}"
    return (
        f"{file}: {told.samples:,} samples of run {told.run}, one scrape every {seconds(every_s)}, {span}, "
        f"{size(file.stat().st_size)}"
    )
