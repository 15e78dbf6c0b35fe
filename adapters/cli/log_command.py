"""`eventrain log`: look after the log of a run: verify, repair, export, redact."""

from __future__ import annotations

import itertools
from pathlib import Path

import click

from ...events.copying import write_copy
from ...events.errors import LogDamaged
from ...events.folder import RunFolder
from ...events.reader import cut_torn_tail
from ...events.record import Record
from ...events.types import RunStarted
from .debug_option import debug_option
from .failures import EXIT_DONE, EXIT_FAILED, BadInput, CommandFailed
from .opening import first_record, open_run, reader_of
from .parquet_export import ParquetExport
from .redaction import Redactor
from .verify_report import verify, verify_lines

SEGMENT_BYTES = 64 * 2**20
"""Of a redacted log; as a run's own unless its configuration says otherwise."""

RUN = click.argument("run", type=click.Path(path_type=Path))


@click.group("log", short_help="Verify, repair, export or redact the log of a run.")
def log_command() -> None:
    """Look after the log of a run."""


@log_command.command("verify", short_help="Check the whole log, and what it refers to.")
@RUN
@click.option("--no-payloads", is_flag=True, help="Do not read the payloads that events refer to.")
@debug_option
@click.pass_context
def verify_command(context: click.Context, run: Path, no_payloads: bool) -> None:
    """Check a run from its first event to its last, one line per finding.

    Seqs without a gap, checksums of frames, headers and seals of segments, every event, every payload and its digest,
    the committed checkpoints, and the laws of the accounting. Changes nothing. Of a run that is going on it checks
    what is there. Exit code 0: clean; 1: something was found.
    """
    folder = open_run(run)
    # The lock first: a run that ends between the two looks has its last event in the log by then.
    being_written = folder.is_held()
    found = verify(folder, with_payloads=not no_payloads, being_written=being_written)
    code = EXIT_DONE if found.clean else EXIT_FAILED
    context.meta["eventrain.exit_code"] = code
    for line in verify_lines(found):
        click.echo(line)
    context.exit(code)


@log_command.command("repair", short_help="Cut off what a crash left of the last write.")
@RUN
@debug_option
def repair_command(run: Path) -> None:
    """Cut the torn tail of a log: the bytes of a write that was never acknowledged. They are kept in a file beside it.

    A resume does the same by itself. Any other damage is refused: cutting there would lose events that were
    acknowledged.
    """
    folder = open_run(run)
    with folder.lock():
        try:
            torn = cut_torn_tail(folder.events)
        except LogDamaged as error:
            raise CommandFailed([f"{run}: {error}. {_instead(folder)}"]) from error
    if torn is None:
        click.echo(f"{run}: no torn tail; nothing was changed")
        return
    click.echo(
        f"{run}: cut {torn.cut_bytes} bytes of a torn write after seq {torn.after_seq}; "
        f"they are kept in {folder.events / torn.kept}"
    )


def _instead(folder: RunFolder) -> str:
    return (
        "This is no torn tail, and is not repaired: bring the file back from a copy, or fork from a checkpoint "
        f"before it (eventrain fork {folder.path} --at step:K --run-dir NEW)"
    )


@log_command.command("export", short_help="Write all events as Parquet, one file per kind.")
@RUN
@click.option(
    "--parquet", "out", metavar="DIR", required=True, type=click.Path(path_type=Path), help="Where to."
)
@debug_option
def export_command(run: Path, out: Path) -> None:
    """Write the events of a run as Parquet files, DIR/<kind>.parquet, with a column for every field.

    For DuckDB, Polars, pandas and the like. Needs pyarrow: pip install 'eventrain[data]'.
    """
    folder = open_run(run)
    export = ParquetExport(out)
    _make_empty(out)
    export.write(reader_of(folder).records())
    click.echo(f"{out}: {export.events} events in {export.kinds} files, one per kind")


@log_command.command("redact", short_help="Copy the log without texts, paths and secrets, for a bug report.")
@RUN
@click.option("--out", metavar="NEW", required=True, type=click.Path(path_type=Path), help="The new folder.")
@debug_option
def redact_command(run: Path, out: Path) -> None:
    """Write a copy of a run's folder that can be attached to a bug report.

    It has all events, and no payloads (prompts, completions, tokens), weights, checkpoints or text logs. Messages of
    failures, host names, paths and the options of environment and data become digests. What stays: numbers, times,
    names of engines, the run's name, the class of the environment, and every other setting. Look through it before
    you send it: zstdcat NEW/events/*.zst.
    """
    folder, redactor = open_run(run), Redactor()
    source = reader_of(folder).records()
    first = first_record(source, run)
    if isinstance(first.event, RunStarted) and first.event.redacted:
        raise BadInput([f"{run}: is a redacted copy already"])
    copy = RunFolder.create(out)
    records = (redactor.record(record) for record in itertools.chain([first], source))
    try:
        count = write_copy(copy.events, _name_of(first), records, SEGMENT_BYTES)
    except LogDamaged as error:
        raise CommandFailed([f"{run}: {error}; {out} has what is before it, redacted"]) from error
    click.echo(f"{out}: a redacted copy of {count} events, without payloads and checkpoints")


def _name_of(first: Record) -> str:
    return first.event.run if isinstance(first.event, RunStarted) else "run"


def _make_empty(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadInput([f"{path}: is not empty; choose another folder"])
    path.mkdir(parents=True, exist_ok=True)
