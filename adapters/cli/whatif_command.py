"""`eventrain whatif`: what a run would have come to with other settings, by the latencies in its log."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ...core.config import RunConfig
from ...events.types import RunStarted
from ..simulated.cluster import Row
from ..simulated.frontier import Model, Setting
from ..simulated.whatif import CAUSES, MODELLED, Log, Result, simulated
from .config_file import parse_override, put, validate
from .debug_option import debug_option
from .failures import BadInput, CommandFailed
from .frontier_report import ASSUMED, ERROR_SAID
from .opening import first_record, open_run, reader_of
from .quantities import bar, seconds, table

HELP = """Say what a run would have come to with other settings: throughput, step time, idle devices, lag, waste.

The shipped scheduling runs in virtual time with the latencies in the run's log, as in `eventrain frontier`: first with
the recorded settings, so that the model's error shows, then with yours. Every --set is part of all of them; --sweep
makes one of each value. RUN is the run's folder.

\b
Examples:
  eventrain whatif runs/demo --set scheduler.max_staleness=2 --set scheduler.permits=64
  eventrain whatif runs/demo --sweep scheduler.max_staleness=0,1,2,4
  eventrain whatif runs/demo --sweep engine.slots=16,32,64 --json
"""
BAR = 24


@click.command("whatif", help=HELP, short_help="Say what other settings would have come to.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="A setting, in all that is tried.")
@click.option(
    "--sweep", "sweeps", multiple=True, metavar="KEY=A,B,C", help="A setting, tried with each value."
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Simulated runs of each."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def whatif_command(run: Path, sets: Sequence[str], sweeps: Sequence[str], seeds: int, as_json: bool) -> None:
    """Try other settings."""
    reader = reader_of(open_run(run))
    started = first_record(reader.records(), run).event
    if not isinstance(started, RunStarted):
        raise CommandFailed([f"{run}: the log does not begin with run_started: nothing says what ran"])
    log = Log.of(reader.records(), RunConfig.model_validate(started.config).engine.engines)
    lacks = log.latencies.lacks()
    if lacks:
        raise CommandFailed([f"{run}: {lacks}"])
    model = Model(log.latencies)
    tried = [("as recorded", log.config), *changed(log.config, sets, sweeps)]
    results = [("measured", log.measured()), *_results(model, log, tried, seeds)]
    error = results[1][1].step_s / results[0][1].step_s - 1
    if as_json:
        click.echo(json.dumps(whatif_table(results, error, seeds), indent=2))
        return
    for line in whatif_lines(results, error, seeds):
        click.echo(line)


def changed(config: RunConfig, sets: Sequence[str], sweeps: Sequence[str]) -> list[tuple[str, RunConfig]]:
    """Return every setting to try, with its name. Raises `BadInput` for one that the model or a run does not take."""
    if not sets and not sweeps:
        raise BadInput(["nothing to try: give --set section.key=value or --sweep section.key=a,b,c"])
    combinations: list[list[str]] = [list(sets)]
    for sweep in sweeps:
        key, equals, values = sweep.partition("=")
        if not equals or not values:
            raise BadInput(
                [f"--sweep {sweep}: must be section.key=a,b,c, for example scheduler.max_staleness=0,1,2"]
            )
        combinations = [
            [*so_far, f"{key}={value.strip()}"] for so_far in combinations for value in values.split(",")
        ]
    return [(", ".join(parts), _config(config, parts)) for parts in combinations]


def _config(config: RunConfig, parts: Sequence[str]) -> RunConfig:
    settings = config.model_dump(mode="json")
    keys = []
    for part in parts:
        path, value = parse_override(part)
        key = ".".join(path)
        if key not in MODELLED:
            raise BadInput(
                [f"{key}: the model does not know what it does to a run; it knows {', '.join(MODELLED)}"]
            )
        keys.append(key)
        put(settings, path, value)
    return validate(settings, "the recorded settings", keys)


def _results(
    model: Model, log: Log, tried: Sequence[tuple[str, RunConfig]], seeds: int
) -> list[tuple[str, Result]]:
    # Here, as every other command starts faster without it.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    jobs: list[tuple[Setting, int, int]] = []
    for name, config in tried:
        setting = model.changed(config, own=name == tried[0][0])
        if setting is None:
            raise BadInput([f"{name}: a run of this size does not take these numbers together"])
        jobs += [(setting, seed, config.engine.engines) for seed in range(seeds)]
    # Spawned, not forked: a fork takes along locks that threads of this process may hold.
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1), get_context("spawn")) as pool:
        done = list(pool.map(_simulate, jobs))
    results = []
    for n, (name, config) in enumerate(tried):
        rows, idle = zip(*done[n * seeds : (n + 1) * seeds], strict=True)
        results.append((name, Result.of(rows, idle, config.scheduler.groups_per_step, log.tokens)))
    return results


def _simulate(job: tuple[Setting, int, int]) -> tuple[Row, dict[str, float]]:
    return simulated(*job)


def whatif_table(results: Sequence[tuple[str, Result]], error: float, seeds: int) -> dict[str, Any]:
    """Return the facts as one JSON-ready table; its keys stay as they are."""
    return {
        "model_error": error,
        "seeds": seeds,
        "assumed": ASSUMED,
        "settings": [{"setting": name, **asdict(result)} for name, result in results],
    }


def whatif_lines(results: Sequence[tuple[str, Result]], error: float, seeds: int) -> list[str]:
    """Return the facts as lines for a person."""
    rows = [("", "step", "groups/h", "tokens/h", "lag max / mean", "waste", "")]
    most = max(result.groups_per_hour for _, result in results)
    for name, result in results:
        rows.append(
            (
                name,
                seconds(result.step_s),
                f"{result.groups_per_hour:,.0f}",
                f"{result.tokens_per_hour:,.0f}",
                f"{result.lag_max} / {result.lag_mean:.2f}",
                f"{result.waste:.2f}",
                bar(result.groups_per_hour / most, BAR),
            )
        )
    causes = [cause for cause in CAUSES if any(result.idle_s[cause] > 0.0005 for _, result in results)]
    idle = [("idle device-seconds a step", *causes)]
    idle += [(name, *(seconds(result.idle_s[cause]) for cause in causes)) for name, result in results]
    aloud = abs(error) > ERROR_SAID
    fit = f"the model's step is {100 * error:+.1f} % off for the recorded settings"
    if aloud:
        fit = click.style(f"{fit}: take differences smaller than that for nothing", fg="yellow")
    return [
        *table(rows, right=(1, 2, 3, 4, 5)),
        "",
        *table(idle, right=tuple(range(1, len(causes) + 1))),
        "",
        fit,
        f"all rows but the first are modelled, {seeds} seeds each: group, training and sync times are those of the log",
        f"assumed: {ASSUMED}",
    ]
