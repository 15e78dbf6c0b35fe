"""`eventrain reproduce`: a run again, in virtual time, with the answers that its log recorded."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from ...core.resume import NotResumable
from ..garbage import settle
from ..simulated.decisions import Decision
from ..simulated.reproduce import NotReproducible, Reproduction, reproduce
from .debug_option import debug_option
from .exhaustive_report import write_log
from .failures import EXIT_FAILED, BadInput
from .opening import open_run, reader_of
from .quantities import clock_time, seconds

HELP = """Run a recorded run again in virtual time, with the answers in its log, and compare the decisions.

The shipped actors decide anew; engines, environments, learner and disk answer what was recorded, when it was recorded.
It says whether the run goes the same way, and whether the same stall appears and at which event; or the first decision
that is another one. What the log does not know, because the run went another way, is modelled by other answers of its
kind, and counted. Of a resumed run the last life is reproduced. RUN is the run's folder; nothing is loaded but its log.

Exit code: 0 when all decisions are the recorded ones, 1 when one is another.

\b
Examples:
  eventrain reproduce runs/stalled
  eventrain reproduce runs/stalled --seed 7      the same answers, another schedule of the tasks
  eventrain reproduce runs/stalled --log again   keep the new log, for `eventrain stalls again`
"""


@click.command("reproduce", help=HELP, short_help="Run it again from its log, in virtual time.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--seed", type=click.IntRange(min=0), help="Shuffle the schedule of tasks with this seed.")
@click.option(
    "--log", type=click.Path(path_type=Path), help="Write the new log to this folder, which must be new."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
@click.pass_context
def reproduce_command(
    context: click.Context, run: Path, seed: int | None, log: Path | None, as_json: bool
) -> None:
    """Reproduce a run."""
    reader = reader_of(open_run(run))
    settle()
    began, cpu = time.perf_counter(), time.process_time()
    try:
        found = reproduce(reader.records, seed=seed, keep=log is not None)
    except (NotReproducible, NotResumable) as error:
        raise BadInput([f"{run}: {error}"]) from None
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    if log is not None:
        assert found.recording.config is not None
        write_log(found.recording.config, found.records, log)
    if as_json:
        click.echo(json.dumps(reproduced_table(found, took_s, cpu_s), indent=2))
    else:
        for line in reproduced_lines(found, took_s, cpu_s):
            click.echo(line)
    if found.difference is not None:
        context.exit(EXIT_FAILED)


def lasted_s(found: Reproduction) -> float:
    """Return how much of the run's time was gone through."""
    return _since(found, found.now_ns) / 1e9


def reproduced_table(found: Reproduction, took_s: float, cpu_s: float) -> dict[str, Any]:
    """Return the facts as one JSON-ready table; its keys stay as they are."""
    recorded, now = found.stalls
    difference = found.difference

    def decided(decision: Decision | None) -> dict[str, Any] | None:
        return (
            None
            if decision is None
            else {"actor": decision.actor, "decision": decision.text, "seq": decision.seq}
        )

    return {
        "same": difference is None,
        "lives": found.recording.lives,
        "decisions": len(found.comparison.recorded),
        "decisions_same": found.comparison.same,
        "difference": None
        if difference is None
        else {
            "number": difference.number,
            "recorded": decided(difference.recorded),
            "now": decided(difference.now),
            "at_s": _since(found, difference.at_ns) / 1e9,
        },
        "stalls_recorded": [{"sentence": stall.stall, "seq": stall.seq} for stall in recorded],
        "stalls_now": [{"sentence": stall.stall, "seq": stall.seq} for stall in now],
        "outcome": found.outcome.outcome if found.outcome is not None else None,
        "answers": found.answers.asked,
        "answers_modelled": found.answers.modelled,
        "answers_without_end": found.answers.hung,
        "run_s": lasted_s(found),
        "took_s": took_s,
        "cpu_s": cpu_s,
    }


def reproduced_lines(found: Reproduction, took_s: float, cpu_s: float) -> list[str]:
    """Return the facts as lines for a person."""
    recording = found.recording
    assert recording.config is not None
    assert recording.first is not None
    lines = []
    if recording.lives > 1:
        lines.append(
            f"the run was resumed {recording.lives - 1} times; this is its last life, from seq {recording.first.seq} on"
        )
    lines += _same(found) if found.difference is None else _other(found)
    lasted = lasted_s(found)
    fast = f", {lasted / took_s:,.0f} times as fast" if lasted > 2 * took_s else ""
    hung = f", {found.answers.hung:,} without an end" if found.answers.hung else ""
    work = f"{found.events:,} events, {seconds(cpu_s)} of CPU time"
    return [
        *lines,
        "",
        f"{found.answers.modelled:,} of {found.answers.asked:,} answers modelled{hung}",
        f"{seconds(lasted)} of the run in {seconds(took_s)}{fast}; {work}",
    ]


def _same(found: Reproduction) -> list[str]:
    recorded, now = found.stalls
    name = click.style("same", fg="green")
    count = f"{name}: {found.comparison.same:,} decisions"
    if not now:
        return [f"{count}, no stall; {_end(found)}"]
    return [
        f"{count}; {_end(found)}",
        *(
            f'the stall "{again.stall}" appears at event {again.seq} (recorded {stall.seq})'
            for stall, again in zip(recorded, now, strict=False)
        ),
    ]


def _other(found: Reproduction) -> list[str]:
    difference = found.difference
    assert difference is not None
    recorded, now = found.stalls
    title = click.style("another way", fg="yellow")
    place = f"{clock_time(_since(found, difference.at_ns))}, after {found.comparison.same:,} decisions"
    lines = [
        f"{title} at {place} that are the recorded ones",
        f"  recorded  {_decided(difference.recorded, difference.now)}",
        f"  now       {_decided(difference.now, difference.recorded)}",
        f"now: {_end(found)}",
    ]
    missed = [stall for stall in recorded if stall.text not in {one.text for one in now}]
    lines += [f'the recorded stall "{stall.stall}" (seq {stall.seq}) does not appear' for stall in missed]
    lines += [f'the stall "{stall.stall}" appears at event {stall.seq}' for stall in now]
    return lines


def _decided(decision: Decision | None, other: Decision | None) -> str:
    if decision is None:
        return f"{other.actor if other is not None else 'run'}: nothing more"
    return f"{decision.actor}: {decision.text} (seq {decision.seq})"


def _end(found: Reproduction) -> str:
    outcome = found.outcome
    if outcome is None:
        return f"as far as the log goes, to {clock_time(_since(found, found.now_ns))}"
    why = f": {outcome.error}" if outcome.outcome == "failed" else ""
    return f"{outcome.outcome} after {outcome.steps} steps{why}"


def _since(found: Reproduction, mono_ns: int) -> int:
    assert found.recording.first is not None
    return mono_ns - found.recording.first.mono
