"""`eventrain simulate`: runs in virtual time, many schedules of them, and a verdict on each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from pydantic import ValidationError

from ..simulated.chaos import draw_scenario
from ..simulated.judge import Broken, judge
from ..simulated.scenario import Scenario
from ..simulated.shrink import Values, shrink
from ..simulated.simulation import Simulated, simulate
from ..simulated.tape import FAMILIES, Tape, TapeInvalid, read_tape, tape_text
from .debug_option import debug_option
from .exhaustive_report import search_whole, write_log
from .failures import EXIT_FAILED, BadInput
from .program import program
from .scenario_file import load_scenario

HELP = """Run SCENARIO.toml, or worlds at random, in virtual time; say for each seed whether a law was broken.

The shipped control of a run meets simulated engines, environments, a learner and a disk. A seed decides the schedule,
the latencies and what fails; the same seed gives the same log, byte for byte. Exit code 1 when a seed broke a law: the
run is then made as simple as it gets and kept as a tape.

\b
Examples:
  eventrain simulate tests/scenarios/s01_hole_behind_the_window.toml --seeds 100
  eventrain simulate --chaos --seeds 1000
  eventrain simulate --chaos --seed 17 --log runs/seed-17
  eventrain simulate --chaos --tape failed-chaos-17.json
  eventrain simulate tests/scenarios/tiny/engine_dies.toml --exhaustive
"""


@dataclass(frozen=True)
class Case:
    """What is simulated: a scenario, or chaos where there is none."""

    scenario: Scenario | None
    path: Path | None
    evaluating: bool
    killing: bool

    def run(self, tape: Tape) -> Simulated:
        """Run it once."""
        scenario = self.scenario or draw_scenario(tape)
        return simulate(scenario, tape, evaluating=self.evaluating, killing=self.killing)

    @property
    def name(self) -> str:
        """Its name, for files."""
        return "chaos" if self.path is None else self.path.stem

    def command(self, *options: object) -> str:
        """Return the command that runs it with `options`."""
        what = "--chaos" if self.path is None else str(self.path)
        flags = [flag for flag, given in (("--eval", self.evaluating), ("--resume", self.killing)) if given]
        return " ".join(map(str, [f"{program()} simulate", what, *flags, *options]))


@click.command("simulate", help=HELP, short_help="Try to break a run, in virtual time.")
@click.argument("scenario_file", metavar="[SCENARIO.toml]", required=False, type=click.Path(path_type=Path))
@click.option("--chaos", is_flag=True, help="Draw worlds at random instead of reading a scenario.")
@click.option("--seed", metavar="S", type=click.IntRange(min=0), default=0, help="First seed (0).")
@click.option("--seeds", metavar="N", type=click.IntRange(min=1), default=1, help="Seeds to run (1).")
@click.option("--eval", "evaluating", is_flag=True, help="With evaluations, also where a scenario has none.")
@click.option(
    "--resume",
    "killing",
    is_flag=True,
    help="Kill each run once, at an event that the seed picks, and resume it.",
)
@click.option(
    "--exhaustive", is_flag=True, help="Try every order of messages instead of seeds; for tiny scenarios."
)
@click.option("--tape", metavar="FILE", type=click.Path(path_type=Path), help="Play back a failure's tape.")
@click.option(
    "--log", metavar="DIR", type=click.Path(path_type=Path), help="Write each run's events to a folder."
)
@debug_option
@click.pass_context
def simulate_command(
    context: click.Context,
    scenario_file: Path | None,
    chaos: bool,
    seed: int,
    seeds: int,
    evaluating: bool,
    killing: bool,
    exhaustive: bool,
    tape: Path | None,
    log: Path | None,
) -> None:
    """Try to break a run, in virtual time."""
    case = _case(scenario_file, chaos, evaluating, killing)
    if case.scenario is not None and case.scenario.expect.refused is not None:
        _refusal(context, case)
        return
    if exhaustive:
        if case.scenario is None or tape is not None or seeds > 1 or seed or killing:
            raise BadInput(
                ["--exhaustive tries every order of one scenario: no --chaos, no seeds, no tape, no --resume"]
            )
        if not search_whole(case.name, case.scenario, evaluating=evaluating, log=log):
            context.exit(EXIT_FAILED)
        return
    if tape is not None and seeds > 1:
        raise BadInput(["--tape plays back one run; --seeds does not go with it"])
    tapes = iter([_tape(tape)]) if tape is not None else (Tape(n) for n in range(seed, seed + seeds))
    broken = _all(case, tapes, log, many=seeds > 1, again=tape is not None)
    if broken:
        context.exit(EXIT_FAILED)


def _case(path: Path | None, chaos: bool, evaluating: bool, killing: bool) -> Case:
    if chaos == (path is not None):
        raise BadInput(["give a scenario file or --chaos, one of the two"])
    return Case(None if path is None else load_scenario(path), path, evaluating, killing)


def _tape(path: Path) -> Tape:
    try:
        return read_tape(path.read_text())
    except TapeInvalid as error:
        raise BadInput([f"{path}: {error}"]) from None


def _refusal(context: click.Context, case: Case) -> None:
    assert case.scenario is not None
    wanted = case.scenario.expect.refused
    assert wanted is not None
    try:
        case.scenario.run_config(evaluating=case.evaluating)
    except ValidationError as error:
        if wanted in str(error):
            click.echo(f"{case.name}: refused before it starts, as it should be")
            return
        click.echo(f"{case.name}: refused, but not with '{wanted}': {error}")
    else:
        click.echo(f"{case.name}: BROKE 'ends as it should': its settings are not refused")
    context.exit(EXIT_FAILED)


def _all(case: Case, tapes: Iterator[Tape], log: Path | None, *, many: bool, again: bool) -> int:
    """Run every tape, print a line for each and a summary; return how many broke a law."""
    outcomes, struck = Counter[str](), Counter[str]()
    began, events, count, broken = time.perf_counter(), 0, 0, 0
    for tape in tapes:
        run = case.run(tape)
        count, events, struck = count + 1, events + len(run.records), struck + run.struck
        outcome = run.outcome or "stalled"
        outcomes[outcome] += 1
        verdict = judge(run)
        click.echo(
            f"seed {tape.seed:<6} {run.digest}  {len(run.records):>6,} events  {run.seconds:>8.1f} s  {outcome}"
        )
        if log is not None:
            folder = log / f"{case.name}-{tape.seed}" if many else log
            write_log(run.config, run.records, folder)
        if verdict is not None:
            broken += 1
            _report(case, tape, run, verdict, log, again=again)
    seconds = time.perf_counter() - began
    ends = ", ".join(f"{number:,} {outcome}" for outcome, number in outcomes.most_common())
    faults = f"{sum(struck.values()):,} faults of {len(struck)} kinds"
    click.echo(
        f"{count:,} {'seed' if count == 1 else 'seeds'} in {seconds:.1f} s: {broken} broke a law; {ends}; "
        f"{events:,} events, {faults}"
    )
    return broken


def _report(
    case: Case, tape: Tape, run: Simulated, verdict: Broken, log: Path | None, *, again: bool
) -> None:
    """Say which law was broken and how to see it again; keep the shortest tape found."""
    click.echo(f"  BROKE '{verdict.law}': {verdict.how}")
    if run.struck:
        click.echo(
            f"  faults that struck: {', '.join(f'{number} {what}' for what, number in run.struck.items())}"
        )
    if again:
        return
    click.echo(f"  again: {case.command('--seed', tape.seed)}")

    def fails(values: Values) -> bool:
        try:
            found = judge(case.run(Tape(tape.seed, values)))
        except ValidationError:
            return False  # settings that are refused are another matter
        return found is not None and found.law == verdict.law

    short = shrink(run.choices, fails)
    before, after = (
        sum(1 for f in FAMILIES for value in values[f] if value) for values in (run.choices, short)
    )
    path = (log.parent if log is not None else Path()) / f"failed-{case.name}-{tape.seed}.json"
    path.write_text(tape_text(tape.seed, short))
    click.echo(f"  shrunk from {before:,} choices to {after:,}: {case.command('--tape', path)}")
