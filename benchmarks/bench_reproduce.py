"""How fast a run is reproduced from its log, against how long it took, and what limits it.

Run it as::

    python benchmarks/bench_reproduce.py [RUN]

RUN is a run's folder, for example a demo's; without it, runs in virtual time are recorded first: answers of half a
minute, as engines on GPUs give them, and the same with answers of 30 ms, as the demo's engine gives them.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from eventrain.adapters.simulated.recording import Recording
from eventrain.adapters.simulated.reproduce import reproduce
from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.events.reader import LogReader
from eventrain.events.record import Record

Log = Callable[[], Iterable[Record]]


def recorded(answer_s: float, train_s: float, steps: int) -> Log:
    """Return the log of a run in virtual time."""
    scenario = Scenario.model_validate(
        {
            "config": {
                "run": {"steps": steps},
                "data": {"size": 16 * steps},
                "scheduler": {"groups_per_step": 16},
                "rollout": {"group_size": 8},
            },
            "world": {"rollout_s": answer_s, "train_s": train_s, "spread": 4.0, "environment_s": 0.0},
        }
    )
    records = simulate(scenario, Tape(1)).records
    return lambda: records


def row(name: str, log: Log) -> None:
    """Reproduce `log` and print what it took, in CPU time: the share of the machine that others use does not count."""
    gc.collect()
    began = time.process_time()
    for _ in log():
        pass
    read_s = time.process_time() - began
    Recording.of(log())
    fold_s = time.process_time() - began - 2 * read_s
    began = time.process_time()
    found = reproduce(log)
    all_s = time.process_time() - began
    first, last = found.recording.first, found.recording.last
    assert first is not None
    assert last is not None
    lasted_s = (last.mono - first.mono) / 1e9
    run_s = all_s - read_s - fold_s
    way = "same" if found.difference is None else "another way"
    print(
        f"| {name} | {found.events:,} | {lasted_s:,.0f} | {all_s:.2f} | {lasted_s / all_s:,.0f} | {read_s:.2f} / "
        f"{max(0.0, fold_s):.2f} / {run_s:.2f} | {found.events / run_s:,.0f} | {way} |"
    )


def main() -> None:
    """Print one row for each log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, Python {sys.version.split()[0]}; CPU time\n")
    print("| log | events | recorded s | CPU s | times as fast | read / fold / run s | events per s of run | |")
    print("|---|---|---|---|---|---|---|---|")
    if arguments.run is not None:
        reader = LogReader(arguments.run / "events")
        row(str(arguments.run), reader.records)
    else:
        row("answers of 30 to 120 s", recorded(30.0, 60.0, 20))
        row("answers of 30 to 120 ms", recorded(0.03, 0.06, 20))
    print("\nThe limit is the work of the actors: every event is made, validated and folded anew.")


if __name__ == "__main__":
    main()
