"""`eventrain plan`: where a run would lie, what it would take, how fast it would be, before anything is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from ...core.config import RunConfig
from ...core.placement import Node
from ..planning.nodes import NodesUnknown, nodes_of_config, nodes_of_ray, this_machine
from ..planning.pace import Pace, PaceUnknown, pace_like, pace_of_figures
from ..planning.plan import PlanImpossible, planned
from ..planning.shape import ShapeUnknown, read_shape
from ..simulated.foresight import refusal
from ..simulated.frontier import Latencies
from .config_file import load_config
from .debug_option import debug_option
from .failures import EXIT_BAD_INPUT, BadInput
from .opening import open_run, reader_of
from .plan_report import PlanReport, impossible_table, plan_lines, plan_table
from .run_command import set_option

HELP = """Say where a run would lie, and what it would take, before anything is started.

Every engine, learner rank and environment worker is placed on the machines that [[cluster.nodes]] describes, or on
this one; with --live, on those of the Ray cluster at cluster.address. Memory is estimated from the model's
config.json: no weights are read, and no GPU is needed. How long a step would take is simulated with the times that
another run recorded (--like), or with two rough figures. What is impossible is said in one line each, with exit
code 2.

\b
Examples:
  eventrain plan examples/placements/two_nodes_16_gpus.toml
  eventrain plan my.toml --set learner.ranks=4 --like runs/demo
  eventrain plan my.toml --tokens-per-s 2500 --train-tokens-per-s 12000 --json
"""
RATE = click.FloatRange(min=0, min_open=True)


@click.command("plan", help=HELP, short_help="Say where a run would lie, and what it would take.")
@click.argument("config_file", metavar="CONFIG.toml", type=click.Path(path_type=Path))
@set_option
@click.option("--live", is_flag=True, help="Ask the Ray cluster at cluster.address for its machines.")
@click.option("--like", metavar="RUN", type=click.Path(path_type=Path), help="Take times from this run's log.")
@click.option("--tokens-per-s", type=RATE, help="Tokens that one engine samples a second, all slots together.")
@click.option("--train-tokens-per-s", type=RATE, help="Tokens that the learner trains a second, all ranks together.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
@click.pass_context
def plan_command(
    context: click.Context,
    config_file: Path,
    overrides: Sequence[str],
    live: bool,
    like: Path | None,
    tokens_per_s: float | None,
    train_tokens_per_s: float | None,
    as_json: bool,
) -> None:
    """Say where a run would lie."""
    if like is not None and (tokens_per_s or train_tokens_per_s):
        raise BadInput(["--like RUN has the times already: give it, or --tokens-per-s and --train-tokens-per-s"])
    if (tokens_per_s is None) != (train_tokens_per_s is None):
        raise BadInput(["--tokens-per-s and --train-tokens-per-s: a step takes both, give them together"])
    config = load_config(config_file, overrides, check_paths=False)
    try:
        report = _reported(config, live, like, tokens_per_s, train_tokens_per_s)
    except PlanImpossible as error:
        if not as_json:
            raise BadInput([f"{config.run.name}: impossible: {line}" for line in error.lines]) from error
        click.echo(json.dumps(impossible_table(config.run.name, error.lines), indent=2))
        context.exit(EXIT_BAD_INPUT)
    if as_json:
        click.echo(json.dumps(plan_table(report), indent=2))
        return
    for line in plan_lines(report):
        click.echo(line)


def _reported(
    config: RunConfig,
    live: bool,
    like: Path | None,
    tokens_per_s: float | None,
    train_tokens_per_s: float | None,
) -> PlanReport:
    stands_still = refusal(config)
    if stands_still is not None:
        raise PlanImpossible([str(stands_still)])
    try:
        shape = read_shape(Path(config.model.path))
        nodes, nodes_from = _nodes(config, live)
    except (ShapeUnknown, NodesUnknown) as error:
        raise BadInput([str(error)]) from error
    plan = planned(config, shape, nodes)
    pace, unknown = _pace(config, like, tokens_per_s, train_tokens_per_s)
    return PlanReport(plan, nodes_from, pace, unknown)


def _nodes(config: RunConfig, live: bool) -> tuple[list[Node], str]:
    cluster = config.cluster
    if live:
        if cluster.kind != "ray" or not cluster.address:
            raise NodesUnknown("--live asks a Ray cluster: it needs cluster.kind = 'ray' and cluster.address")
        return nodes_of_ray(cluster), f"the Ray cluster at {cluster.address}"
    described = nodes_of_config(cluster)
    return (described, "cluster.nodes") if described else ([this_machine()], "this machine")


def _pace(
    config: RunConfig, like: Path | None, tokens_per_s: float | None, train_tokens_per_s: float | None
) -> tuple[Pace | None, str]:
    try:
        if like is not None:
            return pace_like(config, Latencies.of(reader_of(open_run(like)).records()), str(like)), ""
        if tokens_per_s is not None and train_tokens_per_s is not None:
            return pace_of_figures(config, tokens_per_s, train_tokens_per_s), ""
    except PaceUnknown as error:
        return None, f"unknown: {error}"
    return None, "unknown: give --like RUN, or --tokens-per-s and --train-tokens-per-s"
