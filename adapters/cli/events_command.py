"""`eventrain events`: the log of a run, one line per event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from ...events.codec import encode
from ...events.reader import LogReader
from ...events.types import BY_KIND
from .config_errors import nearest
from .debug_option import debug_option
from .event_line import event_line, kind_of
from .failures import BadInput
from .opening import first_record, open_run, reader_of

HELP = """Print the events of a run, one line each.

A line has the event's seq, the time since the run began, who published it, what it is, and its fields in short.
RUN is the run's folder; the run may be going on.

\b
Examples:
  eventrain events runs/demo --type step_completed --type group_failed
  eventrain events runs/demo --follow
  eventrain events runs/demo --json | jq 'select(.kind == "blocked")'
"""


@click.command("events", help=HELP, short_help="Print the events of a run.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--type", "kinds", metavar="KIND", multiple=True, help="Only events of this kind; may be repeated."
)
@click.option("--follow", is_flag=True, help="Go on with new events until the run ends.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print events as the log holds them, one JSON object a line."
)
@click.option(
    "--from", "from_seq", metavar="SEQ", type=click.IntRange(min=0), default=0, help="Begin at this seq."
)
@debug_option
def events_command(run: Path, kinds: Sequence[str], follow: bool, as_json: bool, from_seq: int) -> None:
    """Print the events of a run."""
    wanted = _known_kinds(kinds)
    reader = reader_of(open_run(run))
    if as_json:
        for line in _json_lines(reader, from_seq, follow, wanted):
            click.echo(line)
        return
    records = reader.follow(from_seq) if follow else reader.records(from_seq)
    start_ts: int | None = None
    if from_seq and not follow:
        start_ts = first_record(reader.records(0), run).ts
    for record in records:
        if start_ts is None:
            start_ts = record.ts if record.seq == 0 else first_record(reader.records(0), run).ts
        if not wanted or kind_of(record) in wanted:
            click.echo(event_line(record, start_ts))


def _json_lines(reader: LogReader, from_seq: int, follow: bool, wanted: frozenset[str]) -> Iterator[str]:
    """Yield lines as they stand in the log; when following, as this version writes them."""
    if follow:
        for record in reader.follow(from_seq):
            if not wanted or kind_of(record) in wanted:
                yield encode(record).decode().rstrip("\n")
        return
    for line in reader.raw(from_seq):
        if not wanted or line["kind"] in wanted:
            yield msgspec.json.encode(line).decode()


def _known_kinds(kinds: Sequence[str]) -> frozenset[str]:
    problems = []
    for kind in kinds:
        if kind not in BY_KIND:
            meant = nearest(kind, BY_KIND)
            hint = f"did you mean {meant}?" if meant else f"there are: {', '.join(BY_KIND)}"
            problems.append(f"--type {kind}: no event has this kind; {hint}")
    if problems:
        raise BadInput(problems)
    return frozenset(kinds)
