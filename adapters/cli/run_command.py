"""`eventrain run`: train what a configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ...core.run import RunOutcome
from .config_file import load_config
from .debug_option import debug_option, debugging
from .execution import default_run_dir, execute, exit_code, new_folder, require_progress
from .program import program
from .quantities import seconds

HELP = """Train the model that CONFIG.toml names, in the environment that it names.

Everything that happens is written to the run's folder, runs/<name>-<time> unless --run-dir says otherwise. Ctrl-C
ends the run cleanly (exit code 130); a second one ends it at once.

\b
Examples:
  eventrain run examples/number_hunt.toml
  eventrain run my.toml --set learner.lr=3e-5 --set run.steps=200
  eventrain run my.toml --run-dir runs/second-try
"""

set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change a setting, for example scheduler.max_staleness=2; may be repeated.",
)
run_dir_option = click.option(
    "--run-dir", metavar="DIR", type=click.Path(path_type=Path), help="Where the run's folder is made."
)


@click.command("run", help=HELP, short_help="Train what a configuration says.")
@click.argument("config_file", metavar="CONFIG.toml", type=click.Path(path_type=Path))
@set_option
@run_dir_option
@debug_option
@click.pass_context
def run_command(
    context: click.Context, config_file: Path, overrides: Sequence[str], run_dir: Path | None
) -> None:
    """Train what a configuration says."""
    config = load_config(config_file, overrides)
    require_progress(config)
    with new_folder(run_dir or default_run_dir(config.run.name)) as folder:
        outcome = execute(config, folder, config_file.resolve().parent, debug=debugging())
    context.meta["eventrain.exit_code"] = exit_code(outcome)  # holds even where nobody reads the last lines
    failed = outcome.outcome == "failed"
    click.echo(ending(config.run.name, outcome), err=failed)
    click.echo(f"look: {program()} status {folder.path}", err=failed)
    context.exit(exit_code(outcome))


def ending(name: str, outcome: RunOutcome) -> str:
    """Return the last line of a run: how it ended, after how many steps, and why."""
    words = {"data_exhausted": "ended, data exhausted,"}.get(outcome.outcome, outcome.outcome)
    line = f"{name}: {words} after {outcome.steps} steps in {seconds(outcome.seconds)}"
    return f"{line}: {outcome.message}" if outcome.message else line
