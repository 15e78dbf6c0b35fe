"""How much of generation and training overlaps: the demo's work with max_staleness 0 and 1, in one run of this file.

The limit is the longer of the two: a step cannot be shorter than max(generation, training). Overlap efficiency is
that limit divided by the step time; 1 means that the shorter one costs nothing.

    python benchmarks/bench_overlap.py [--steps 40] [--quick]

Generation time of a step is the time in which at least one of its groups was in flight, alone on the machine in
the synchronous run, beside training in the asynchronous one; on shared cores it is longer there. So both limits
are printed: the one measured in the same run, and the one from the synchronous run's parts.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from eventrain.events.reader import LogReader
from eventrain.events.types import BatchTaken, GroupBuffered, GroupDispatched, StepCompleted, WeightsPublished

SKIPPED = 5
"""Steps at the start that are not counted: engines and caches warm up."""


@dataclass(frozen=True)
class Parts:
    """Median seconds of one step."""

    step: float
    generation: float
    training: float
    steps: int

    @property
    def efficiency(self) -> float:
        """Overlap efficiency within the run itself."""
        return max(self.generation, self.training) / self.step


def measure(run: Path) -> Parts:
    """Return the parts of a finished run's steps, from its log."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    target: dict[int, int] = {}
    taken: dict[int, int] = {}
    trained: dict[int, float] = defaultdict(float)
    published: list[int] = []
    for record in LogReader(run / "events").records():
        event, now = record.event, record.mono
        match event:
            case GroupDispatched():
                target[event.group] = event.target
                first.setdefault(event.target, now)
            case GroupBuffered():
                last[event.target] = now
            case BatchTaken():
                taken[event.step] = now
            case StepCompleted():
                trained[event.step] = (now - taken[event.step]) / 1e9
            case WeightsPublished():
                published.append(now)
    counted = [step for step in sorted(trained) if step >= SKIPPED]
    steps = [
        (after - before) / 1e9 for before, after in zip(published[SKIPPED:], published[SKIPPED + 1 :], strict=False)
    ]
    return Parts(
        step=statistics.median(steps),
        generation=statistics.median((last[step] - first[step]) / 1e9 for step in counted),
        training=statistics.median(trained[step] for step in counted),
        steps=len(counted),
    )


def run_demo(staleness: int, steps: int, folder: Path) -> Path:
    """Run the demo's work and return its run folder."""
    path = folder / f"staleness-{staleness}"
    command = [sys.executable, "-m", "eventrain.adapters.cli.main", "demo", "--run-dir", str(path)]
    settings = [f"scheduler.max_staleness={staleness}", f"run.steps={steps}", "checkpoint.at_end=false"]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=1800)
    return path


def main() -> None:
    """Run both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="12 steps: shows that it works, says little")
    arguments = parser.parse_args()
    steps = 12 if arguments.quick else arguments.steps
    with tempfile.TemporaryDirectory() as folder:
        parts = {staleness: measure(run_demo(staleness, steps, Path(folder))) for staleness in (0, 1)}
    print(f"overlap on {platform.processor() or platform.machine()}, Python {platform.python_version()}, medians")
    print(f"{'max_staleness':>13} {'steps':>6} {'step s':>8} {'generation s':>13} {'training s':>11} {'efficiency':>11}")
    for staleness, row in parts.items():
        print(
            f"{staleness:>13} {row.steps:>6} {row.step:>8.3f} {row.generation:>13.3f} {row.training:>11.3f} "
            f"{row.efficiency:>11.2f}"
        )
    alone = max(parts[0].generation, parts[0].training)
    print(f"limit from the synchronous run's parts: {alone:.3f} s a step")
    print(f"asynchronous step / synchronous step:   {parts[1].step / parts[0].step:.2f}")
    print(f"asynchronous step / that limit:         {parts[1].step / alone:.2f}")


if __name__ == "__main__":
    main()
