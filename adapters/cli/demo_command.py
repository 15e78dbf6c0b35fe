"""`eventrain demo`: a policy learns a game from random weights, with everything that a long run has."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import click

from ...core.config import RunConfig
from ...events.folder import RunFolder
from .. import demo
from .config_file import load_config
from .debug_option import debug_option, debugging
from .execution import default_run_dir, execute, exit_code, new_folder, require_progress
from .failures import BadInput
from .opening import reader_of
from .program import program
from .quantities import number, sparkline
from .run_command import ending, run_dir_option, set_option
from .status_report import RunStatus, phase_lines, phases

HELP = """Watch a small policy learn to find a hidden number from "higher" and "lower", by reinforcement alone.

The weights are random at the start, the policy plays over several turns, generation and training run at the same
time in processes of their own, and everything that happens is in the run's folder. It takes about two minutes on
two cores and needs no GPU, no download and no data.

\b
Examples:
  eventrain demo
  eventrain demo --run-dir runs/demo
  eventrain demo --set scheduler.max_staleness=0
"""

CONFIG_FILE = Path(demo.__file__).with_name("demo.toml")


@click.command("demo", help=HELP, short_help="Watch a small policy learn a game.")
@set_option
@run_dir_option
@debug_option
@click.pass_context
def demo_command(context: click.Context, overrides: Sequence[str], run_dir: Path | None) -> None:
    """Run the demo."""
    config = load_config(CONFIG_FILE, overrides, check_paths=False)
    require_progress(config)
    with (
        new_folder(run_dir or default_run_dir(config.run.name)) as folder,
        own_model(config, folder) as config,
    ):
        outcome = execute(config, folder, CONFIG_FILE.parent, debug=debugging())
    context.meta["eventrain.exit_code"] = exit_code(outcome)  # holds even where nobody reads the last lines
    failed = outcome.outcome == "failed"
    click.echo(ending(config.run.name, outcome), err=failed)
    status = RunStatus.of(folder.path, reader_of(folder).records(), being_written=False)
    for line in closing_lines(status, best_score(config), last_trajectory(folder)):
        click.echo(line)
    context.exit(exit_code(outcome))


@contextlib.contextmanager
def own_model(config: RunConfig, folder: RunFolder) -> Iterator[RunConfig]:
    """Yield what `with_own_model` returns; take the model away when the block fails before the run begins."""
    existed = (folder.path / "model").exists()
    try:
        yield with_own_model(config, folder)
    except BaseException:
        if not existed and not any(folder.events.iterdir()):
            shutil.rmtree(folder.path / "model", ignore_errors=True)
        raise


def with_own_model(config: RunConfig, folder: RunFolder) -> RunConfig:
    """Return `config` with the demo's model, built in the run's folder unless --set named another one.

    Raises `BadInput` when there is no such folder.
    """
    if Path(config.model.path) != CONFIG_FILE.resolve().with_name("model"):
        if not Path(config.model.path).is_dir():
            raise BadInput([f'--set model.path = "{config.model.path}": no such folder'])
        return config
    from ..demo.model import build_model_folder

    path = folder.path / "model"
    numbers = config.environment.options.get("n", 12)
    # What is no number of numbers gets any model: the environment refuses it, in its own words, right after.
    build_model_folder(path, numbers=numbers if isinstance(numbers, int) and numbers > 0 else 12)
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(path.resolve())})})


def best_score(config: RunConfig) -> float | None:
    """Return the mean reward of the optimal policy, None when --set chose another environment."""
    if config.environment.kind != "number_hunt":
        return None
    from ..environments.number_hunt import optimal_score

    n, guesses = (
        config.environment.options.get(key, default) for key, default in (("n", 12), ("guesses", 5))
    )
    return optimal_score(int(n), min(int(guesses), config.rollout.max_turns))


def last_trajectory(folder: RunFolder) -> str | None:
    """Return the name of a trajectory of the last batch, None when nothing was trained."""
    name = None
    for line in reader_of(folder).raw():
        if line["kind"] == "batch_taken":
            name = f"{line['groups'][0]}/0"
    return name


def closing_lines(status: RunStatus, optimal: float | None, trajectory: str | None) -> list[str]:
    """Return what the demo ends with: what was learned, where the time went, where it lies, what to try next.

    `optimal` is the best possible mean reward.
    """
    rewards, path = status.rewards(), status.path
    lines = [""]
    if rewards:
        first, last = fmean(rewards[:10]), fmean(rewards[-10:])
        count = min(10, len(rewards))
        lines.append(
            f"reward      {click.style(f'{first:.3f} -> {last:.3f}', bold=True, fg='green')}"
            f"   (mean of the first and of the last {count} steps)"
        )
        if optimal:
            lines.append(
                f"of optimal  {100 * first / optimal:.0f} % -> {100 * last / optimal:.0f} %"
                f"   (the best possible policy scores {number(optimal)})"
            )
        lines += [f"            {click.style(sparkline(rewards, 60), fg='green')}", ""]
    bars = phase_lines(phases(status))
    lines += [f"{'time' if index == 0 else '':<12}{line}" for index, line in enumerate(bars)]
    lines += ["", f"run folder  {path}", ""]
    called = program()
    commands = [
        (f"{called} report {path}", "the run as a page: report.html"),
        (f"{called} top {path}", "the run as it went, forwards and backwards"),
    ]
    if trajectory is not None:
        commands += [
            (f"{called} show {path} 0/0", "one of the first games"),
            (f"{called} show {path} {trajectory}", "one of the last games"),
        ]
    commands += [
        (f"{called} events {path} --type step_completed", "every step"),
        (f"{called} demo --set scheduler.max_staleness=0", "the same without overlap"),
    ]
    width = max(len(command) for command, _ in commands)
    for index, (command, about) in enumerate(commands):
        label = "next" if index == 0 else ""
        lines.append(f"{label:<12}{command:<{width}}  {click.style(about, dim=True)}")
    return lines
