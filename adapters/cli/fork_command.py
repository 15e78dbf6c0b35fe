"""`eventrain fork`: a new run that goes on from a checkpoint of another one, with other settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from ...core.reconfiguration import refused
from .config_file import changed_config
from .debug_option import debug_option, debugging
from .execution import default_run_dir, execute_resumed, exit_code, require_progress
from .failures import BadInput
from .forking import ForkPoint, fork_point, make_fork, remove_fork
from .opening import open_run
from .program import program
from .run_command import ending, run_dir_option, set_option

HELP = """Start a new run that goes on from a checkpoint of RUN, in a folder of its own.

It begins with the newest committed checkpoint at or before step K that is still there. Prompts trained by then stay
trained, quarantined ones stay quarantined, and groups that were finished and not trained yet are kept. What RUN did
afterwards is not part of it. RUN may be live, and is not changed.

\b
Examples:
  eventrain fork runs/demo --at step:40
  eventrain fork runs/demo --at step:40 --run-dir runs/lower-lr --set learner.lr=1e-4 --set run.name=lower-lr
"""


@click.command("fork", help=HELP, short_help="Start a new run from a checkpoint of another one.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--at", "at", metavar="step:K", required=True, help="Steps that are trained when it begins.")
@run_dir_option
@set_option
@debug_option
@click.pass_context
def fork_command(
    context: click.Context, run: Path, at: str, run_dir: Path | None, overrides: Sequence[str]
) -> None:
    """Start a new run from a checkpoint of another one."""
    found = re.fullmatch(r"step:(\d+)", at)
    if found is None:
        raise BadInput([f"--at {at}: must be step:K, for example --at step:40"])
    source = open_run(run)
    point = fork_point(source, int(found[1]))
    name = _require_sense(run, point, overrides)
    folder = make_fork(source, point, _new_path(run_dir or default_run_dir(f"{name}-fork")))
    if point.version != int(found[1]):
        click.echo(
            f"{name}: step {found[1]} has no checkpoint; the newest before it is step {point.version}",
            err=True,
        )
    try:
        outcome = execute_resumed(
            folder, overrides=overrides, forked_from=str(run.resolve()), debug=debugging()
        )
    except BadInput:  # before anything ran
        remove_fork(folder)
        raise
    context.meta["eventrain.exit_code"] = exit_code(outcome)
    failed = outcome.outcome == "failed"
    click.echo(ending(name, outcome), err=failed)
    click.echo(f"look: {program()} status {folder.path}", err=failed)
    context.exit(exit_code(outcome))


def _require_sense(run: Path, point: ForkPoint, overrides: Sequence[str]) -> str:
    """Return the new run's name. Raises `BadInput` when its settings cannot follow the old ones."""
    config = changed_config(point.config, overrides) if overrides else point.config
    lines = list(refused(point.config, config, point.version))
    if not lines and config.run.steps <= point.version:
        more = f"--set run.steps={point.version + 1} or more would do"
        lines = [f"all of its {config.run.steps} steps are trained at step {point.version}: {more}"]
    if lines:
        raise BadInput([f"{run}: {line}" for line in lines])
    if overrides:
        require_progress(config)
    return config.run.name


def _new_path(path: Path) -> Path:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadInput([f"{path}: is not empty; choose another folder for the fork"])
    return path
