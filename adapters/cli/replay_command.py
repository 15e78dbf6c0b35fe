"""`eventrain replay`: a log played back, with what it holds checked against what would be decided now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from ...core.replay import DECISIONS, NotReplayable
from .check_report import check_run, check_table, report_lines
from .config_errors import nearest
from .debug_option import debug_option
from .failures import EXIT_FAILED, BadInput
from .opening import open_run

HELP = """Play the log of a run back.

With --check, make every decision of the log again on the state that it was made on, and stop at the first one that
would be another now: what the log holds, what would be decided, and the state. So a fix or another policy is tried
on the log of a real run. Exit code 1 when one differs. RUN is the run's folder; the run may be going on.

\b
Examples:
  eventrain replay runs/demo --check
  eventrain replay runs/demo --check --set scheduler.max_staleness=2
  eventrain replay runs/demo --check --ignore-kind retry_scheduled --json
"""


@click.command("replay", help=HELP, short_help="Make a run's decisions again, and compare.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--check", "checking", is_flag=True, help="Make every decision again; stop at the first that differs.")
@click.option(
    "--ignore-kind",
    "ignored",
    metavar="KIND",
    multiple=True,
    help="With --check: do not compare decisions of this kind; may be repeated.",
)
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="With --check: decide with this setting instead of the run's; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
@click.pass_context
def replay_command(
    context: click.Context,
    run: Path,
    checking: bool,
    ignored: Sequence[str],
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Play the log of a run back."""
    if not checking:
        raise BadInput(["give --check"])
    folder = open_run(run)
    try:
        report = check_run(folder, overrides=overrides, ignored=_decision_kinds(ignored))
    except NotReplayable as error:
        raise BadInput([f"{run}: {error}"]) from None
    if as_json:
        click.echo(json.dumps(check_table(report), indent=2))
    else:
        for line in report_lines(report):
            click.echo(line)
    if not report.agrees:
        context.exit(EXIT_FAILED)


def _decision_kinds(kinds: Sequence[str]) -> Sequence[str]:
    problems = []
    for kind in kinds:
        if kind not in DECISIONS:
            meant = nearest(kind, DECISIONS)
            hint = f"did you mean {meant}?" if meant else f"there are: {', '.join(sorted(DECISIONS))}"
            problems.append(f"--ignore-kind {kind}: no decision has this kind; {hint}")
    if problems:
        raise BadInput(problems)
    return kinds
