"""`eventrain run`: train what a configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ...core.run import RunOutcome
from .config_file import load_config
from .debug_option import debug_option, debugging
from .execution import default_run_dir, execute, execute_resumed, exit_code, new_folder, require_progress
from .failures import BadInput
from .opening import open_run
from .program import program
from .quantities import seconds

HELP = """Train the model that CONFIG.toml names, in the environment that it names.

Everything that happens is written to the run's folder, runs/<name>-<time> unless --run-dir says otherwise. Ctrl-C
ends the run cleanly (exit code 130); a second one ends it at once.

With --resume, a run that was interrupted, failed or killed goes on in its own folder and with its own configuration,
from its newest checkpoint and its log; --set changes a setting from there on. To try another way beside the run, see
eventrain fork.

\b
Examples:
  eventrain run examples/number_hunt.toml
  eventrain run my.toml --set learner.lr=3e-5 --set run.steps=200
  eventrain run my.toml --run-dir runs/second-try
  eventrain run --resume runs/second-try
  eventrain run --resume runs/second-try --set run.steps=400
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


@click.command("run", help=HELP, short_help="Train what a configuration says, or go on with a run.")
@click.argument("config_file", metavar="CONFIG.toml", required=False, type=click.Path(path_type=Path))
@set_option
@run_dir_option
@click.option(
    "--resume", metavar="RUN", type=click.Path(path_type=Path), help="Go on with the run in this folder."
)
@debug_option
@click.pass_context
def run_command(
    context: click.Context,
    config_file: Path | None,
    overrides: Sequence[str],
    run_dir: Path | None,
    resume: Path | None,
) -> None:
    """Train what a configuration says, or go on with a run."""
    if resume is not None:
        if config_file or run_dir:
            raise BadInput(["--resume RUN goes on with the run's own configuration: give only --set with it"])
        folder = open_run(resume)
        outcome, name = execute_resumed(folder, overrides=overrides, debug=debugging()), resume.name
    elif config_file is None:
        raise BadInput(["what is to be run? give CONFIG.toml, or --resume RUN"])
    else:
        config = load_config(config_file, overrides)
        require_progress(config)
        with new_folder(run_dir or default_run_dir(config.run.name)) as folder:
            outcome = execute(config, folder, config_file.resolve().parent, debug=debugging())
        name = config.run.name
    context.meta["eventrain.exit_code"] = exit_code(outcome)  # holds even where nobody reads the last lines
    failed = outcome.outcome == "failed"
    click.echo(ending(name, outcome), err=failed)
    click.echo(f"look: {program()} status {folder.path}", err=failed)
    context.exit(exit_code(outcome))


def ending(name: str, outcome: RunOutcome) -> str:
    """Return the last line of a run: how it ended, after how many steps, and why."""
    words = {"data_exhausted": "not complete, the data ran out"}.get(outcome.outcome, outcome.outcome)
    line = f"{name}: {words} after {outcome.steps} steps in {seconds(outcome.seconds)}"
    return f"{line}: {outcome.message}" if outcome.message else line
