"""How much of generation and training overlaps: the demo's work with max_staleness 0 and 1, in one run of this file.

    python benchmarks/bench_overlap.py [--steps 60] [--quick]

Generation time is the time in which at least one group was in flight, training time that from taking a batch to
the end of the optimizer step, both per step and over the same steps. The limit is the longer of the two; overlap
efficiency is that limit divided by the step time, and 1 means that the shorter one costs nothing. On shared cores
each of the two slows the other down, so the times of the asynchronous run are longer than those of the synchronous
one; its step is therefore also put beside the limit that the synchronous run's parts would allow.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from eventrain.events.reader import LogReader
from eventrain.events.types import BatchTaken, GroupBuffered, GroupDispatched, StepCompleted

SKIPPED = 5
"""Steps at the start that are not counted: engines and caches warm up."""
COUNTED = (GroupDispatched, GroupBuffered, BatchTaken, StepCompleted)


@dataclass(frozen=True)
class Parts:
    """Mean seconds of one step."""

    step: float
    generation: float
    training: float

    @property
    def efficiency(self) -> float:
        """Overlap efficiency within the run itself."""
        return max(self.generation, self.training) / self.step


def measure(run: Path) -> Parts:
    """Return the parts of a finished run's steps, from its log."""
    records = [record for record in LogReader(run / "events").records() if type(record.event) in COUNTED]
    ends = [record.mono for record in records if isinstance(record.event, StepCompleted)]
    begin, end = ends[SKIPPED - 1], ends[-1]
    generating = training = 0
    in_flight: set[int] = set()
    since = taken = begin
    for record in records:
        now, event = min(max(record.mono, begin), end), record.event
        if in_flight:
            generating += now - since
        since = now
        match event:
            case GroupDispatched():
                in_flight.add(event.group)
            case GroupBuffered():
                in_flight.discard(event.group)
            case BatchTaken():
                taken = now
            case StepCompleted():
                training += now - taken
    steps = len(ends) - SKIPPED
    return Parts(
        step=(end - begin) / steps / 1e9,
        generation=generating / steps / 1e9,
        training=training / steps / 1e9,
    )


def run_demo(staleness: int, steps: int, folder: Path) -> Path:
    """Run the demo's work and return its run folder."""
    path = folder / f"staleness-{staleness}"
    path.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "eventrain.adapters.cli", "demo", "--run-dir", str(path)]
    settings = [f"scheduler.max_staleness={staleness}", f"run.steps={steps}", "checkpoint.at_end=false"]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=1800)
    return path


def main() -> None:
    """Run both in turn, several times, and print the table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="one round of 12 steps: shows that it works, says little"
    )
    arguments = parser.parse_args()
    steps, rounds = (12, 1) if arguments.quick else (arguments.steps, arguments.rounds)
    measured: dict[int, list[Parts]] = {0: [], 1: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for staleness, parts in measured.items():
                parts.append(measure(run_demo(staleness, steps, Path(folder) / str(number))))
    rows = {staleness: median(parts) for staleness, parts in measured.items()}
    machine = platform.processor() or platform.machine()
    print(
        f"overlap, median of {rounds} rounds of {steps} steps; {machine}, Python {platform.python_version()}"
    )
    print(f"{'max_staleness':>13} {'step s':>8} {'generation s':>13} {'training s':>11} {'efficiency':>11}")
    for staleness, row in rows.items():
        print(
            f"{staleness:>13} {row.step:>8.3f} {row.generation:>13.3f} {row.training:>11.3f} {row.efficiency:>11.2f}"
        )
    alone = max(rows[0].generation, rows[0].training)
    print(f"limit from the synchronous run's parts: {alone:.3f} s a step")
    print(f"asynchronous step / synchronous step:   {rows[1].step / rows[0].step:.2f}")
    print(f"asynchronous step / that limit:         {rows[1].step / alone:.2f}")


def median(rounds: list[Parts]) -> Parts:
    """Return the round with the median step time."""
    return sorted(rounds, key=lambda parts: parts.step)[len(rounds) // 2]


if __name__ == "__main__":
    main()
