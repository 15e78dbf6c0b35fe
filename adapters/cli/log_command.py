"""`eventrain log`: look after the log of a run: verify, repair, export, redact."""

from __future__ import annotations

from pathlib import Path

import click

from ...events.errors import LogDamaged
from ...events.folder import RunFolder
from ...events.reader import cut_torn_tail
from .debug_option import debug_option
from .failures import EXIT_DONE, EXIT_FAILED, CommandFailed
from .opening import open_run
from .verify_report import verify, verify_lines

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
