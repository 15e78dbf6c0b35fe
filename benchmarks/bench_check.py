"""How fast the decisions of a log are made again, beside what reading and folding it takes.

The log is of a run in virtual time with two engines, evaluations, checkpoints and failing calls, once for every
policy, or the one of a real run::

    python benchmarks/bench_check.py [--quick] [--run RUN]
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.core.projections import View
from eventrain.core.replay import Agreement, check
from eventrain.core.resume import Past
from eventrain.events import LogReader, LogWriter

TARGET = 20_000
POLICIES = ("targeted", "capacity", "windowed", "token_windowed")


def write_run(policy: str, steps: int, folder: Path) -> None:
    """Write the log of a run of `steps` with `policy` into the new `folder`."""
    scenario = Scenario.model_validate(
        {
            "name": policy,
            "config": {
                "run": {"steps": steps},
                "data": {"size": 100_000},
                "scheduler": {"policy": policy, "groups_per_step": 16, "max_staleness": 2},
                "rollout": {"group_size": 4, "max_turns": 2},
                "eval": {"every_steps": 5, "prompts": 8},
                "checkpoint": {"every_steps": 10},
            },
            "world": {"engines": 2, "turns": 2, "spread": 5.0},
            "fault": [{"where": "engine.generate", "what": "error", "one_in": 40}],
        }
    )
    folder.mkdir()
    writer = LogWriter(folder, run="bench", epoch=1, first_seq=0, segment_bytes=1 << 26)
    writer.start(lambda _seq: None, lambda _error: None)
    for record in simulate(scenario, Tape(0)).records:
        writer.append(record)
    writer.close()


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes, the faster of two tries."""
    tries = []
    for _ in range(2):
        since = time.perf_counter()
        work()
        tries.append(time.perf_counter() - since)
    return min(tries)


def bench(name: str, folder: Path) -> None:
    """Print the row of the log in `folder`."""

    def fold() -> None:
        view = View()
        for record in LogReader(folder).records():
            view.apply(record)

    found = check(LogReader(folder).records())
    assert isinstance(found, Agreement), found
    folded = found.events / timed(fold)
    past = found.events / timed(lambda: Past.of(LogReader(folder).records()))
    checked = found.events / timed(lambda: check(LogReader(folder).records()))
    decisions = sum(found.decisions.values()) + found.waits
    print(f"{name:16} {found.events:>9,} {decisions:>9,} {folded:>12,.0f} {past:>14,.0f} {checked:>12,.0f}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Make the decisions of logs again.")
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--run", type=Path, help="the folder of a run, instead of simulated ones")
    arguments = parser.parse_args()
    print(f"events/s, each with reading and validating the log; target of the check: {TARGET:,}; "
          f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}\n")  # fmt: skip
    print(f"{'':16} {'events':>9} {'decisions':>9} {'fold':>12} {'with ledger':>14} {'check':>12}")
    if arguments.run is not None:
        bench(arguments.run.name, arguments.run / "events")
        return
    with tempfile.TemporaryDirectory() as name:
        for policy in POLICIES:
            folder = Path(name) / policy
            write_run(policy, 10 if arguments.quick else 80, folder)
            bench(policy, folder)


if __name__ == "__main__":
    main()
