"""What each scheduling policy gives up: overlap, staleness, or generated work. The shipped run in virtual time.

    python benchmarks/bench_schedule.py [--steps 60] [--seeds 5] [--sweep] [--quick]

On a simulated cluster with W places in the engines, generation times are lognormal (mean 0.8 s, sigma 0.7, cut at
4 s), a step trains 16 groups, and trainer, weight sync, collector, policies and log are the shipped ones. Per row:

- efficiency: the ideal step (the longer of training + sync and of 16 groups' mean generation over W places) divided
  by the measured step; 1 means that nobody waited who need not;
- lag: the largest, and the mean, of the groups trained;
- token: the largest lag of a token that is trained; groups of `token_windowed` may lag more, their old tokens are
  masked;
- waste: groups given up per group trained, evicted or surplus;
- masked: share of the tokens of trained groups that are left out of the loss. Every answer has 100 tokens, sampled
  evenly over its time.

The first 4 steps are not counted, nor are the last 6, in which the run starts no more groups than it can still
train. `--sweep` varies W, sigma and max_staleness, so that nobody is led to tune a policy
to the numbers of one cluster. The peers' numbers beside them were measured in August 2026 with their own schedulers
on the same cluster in real time, one run of 60 (train-bound) and 40 steps (generation-bound) each.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

from eventrain.adapters.simulated import cluster
from eventrain.core.config import RunConfig

SKIPPED, LAST = 4, 6
"""Steps at the beginning and at the end that are not counted."""
PER_STEP = 16
MEAN_S, LONGEST_S = 0.8, 4.0


@dataclass(frozen=True)
class Cluster:
    """A simulated cluster."""

    name: str
    places: int
    train_s: float
    sync_s: float
    sigma: float = 0.7

    @property
    def ideal_s(self) -> float:
        """Seconds of a step if nobody waited who need not."""
        return max(self.train_s + self.sync_s, PER_STEP * mean_generation_s(self.sigma) / self.places)


CLUSTERS = (
    Cluster("train-bound", 32, 0.45, 0.05),
    Cluster("generation-bound", 16, 0.2, 0.05),
    Cluster("long steps", 8, 4.5, 0.5),
)
POLICIES = ("targeted", "capacity", "windowed", "token_windowed")
PEERS = {
    "train-bound": (
        ("synchronous", 0.178, "0 / 0", 0.0),
        ("NeMo-RL in_order, verl wait", 0.442, "2 / 1.95", 0.0),
        ("SkyRL", 0.932, "8 / 1.94", 0.0),
        ("miles without limit", 0.991, "12 / 4.57", 0.0),
        ("NeMo-RL windowed", 0.893, "2 / 1.67", 0.41),
        ("miles with limit", 0.889, "2 / 1.63", 0.42),
        ("verl drop", 0.839, "2 / 1.33", 0.16),
        ("prime-rl", 0.957, "2 / 1.69", 0.55),
    ),
    "generation-bound": (
        ("synchronous", 0.292, "0 / 0", 0.0),
        ("NeMo-RL in_order, verl wait", 0.683, "2 / 1.80", 0.0),
        ("SkyRL", 0.977, "6 / 1.26", 0.0),
        ("miles with limit, NeMo-RL windowed", 0.915, "2 / 1.00", 0.06),
        ("verl drop", 0.870, "2 / 1.49", 0.13),
        ("prime-rl", 0.962, "2 / 0.99", 0.07),
    ),
    "long steps": (("every asynchronous one", 0.999, "", math.nan), ("synchronous", 0.643, "0 / 0", 0.0)),
}


@cache
def mean_generation_s(sigma: float) -> float:
    """Return the mean of the cut distribution, from its closed form."""
    normal = statistics.NormalDist()
    mu = math.log(MEAN_S) - sigma**2 / 2
    edge = (math.log(LONGEST_S) - mu) / sigma
    return MEAN_S * normal.cdf(edge - sigma) + LONGEST_S * (1 - normal.cdf(edge))


@dataclass(frozen=True)
class Row:
    """What one run came to."""

    efficiency: float
    of: cluster.Row


def seconds(seed: int, group: int, sigma: float) -> float:
    """Return how long `group` takes: a draw that depends on the seed and the group alone."""
    draw = random.Random(f"{seed}:{group}")
    return min(LONGEST_S, draw.lognormvariate(math.log(MEAN_S) - sigma**2 / 2, sigma))


def measure(
    on: Cluster, policy: str, staleness: int, steps: int, seed: int, oversample: int = 0
) -> Row:
    """Run once and return what it came to."""
    window = PER_STEP * (staleness + 1)
    settings = cluster.settings(policy, PER_STEP, staleness, steps, seed)
    permits = min(on.places, window) if policy == "capacity" else on.places
    settings["scheduler"] |= {"permits": permits, "oversample_groups": oversample}
    simulated = cluster.Cluster(
        on.places, partial(seconds, sigma=on.sigma), lambda seed, step: on.train_s, lambda seed, version: on.sync_s
    )
    row = cluster.measure(simulated, RunConfig.model_validate(settings), skipped=SKIPPED, last=LAST)
    return Row(on.ideal_s / row.step_s, row)


HEAD = f"  {'':<36} {'efficiency':>13} {'lag':>11} {'token':>6} {'waste':>6} {'masked':>6}"


def line(name: str, rows: Iterable[Row]) -> str:
    """Return the mean of several seeds as one line, with the deviation of efficiency between them."""
    rows = list(rows)
    efficiency, of = [row.efficiency for row in rows], [row.of for row in rows]
    lag = f"{max(row.lag_max for row in of)} / {statistics.fmean(row.lag_mean for row in of):.2f}"
    return (
        f"  {name:<36} {statistics.fmean(efficiency):>6.3f} ±{statistics.pstdev(efficiency):.3f}"
        f" {lag:>11} {max(row.token_lag_max for row in of):>6}"
        f" {statistics.fmean(row.waste for row in of):>6.2f} {statistics.fmean(row.masked for row in of):>6.3f}"
    )


def main() -> None:
    """Print one table a cluster, and the sweep when asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sweep", action="store_true", help="also vary W, sigma and max_staleness")
    parser.add_argument(
        "--quick", action="store_true", help="20 steps and one seed: shows that it works, says little"
    )
    arguments = parser.parse_args()
    steps, seeds = (20, 1) if arguments.quick else (arguments.steps, arguments.seeds)
    print(f"mean and deviation of {seeds} seeds, {steps} steps; max_staleness S; lag: largest / mean")
    for on in CLUSTERS:
        print(f"\n{on.name}: W = {on.places}, ideal step {on.ideal_s:.3f} s")
        print(HEAD)
        rows = [("synchronous (S = 0)", "targeted", 0)]
        rows += [
            (f"{policy}, S = {staleness}", policy, staleness) for staleness in (2, 4) for policy in POLICIES
        ]
        for name, policy, staleness in rows:
            print(line(name, (measure(on, policy, staleness, steps, seed) for seed in range(seeds))))
        for staleness, oversample in ((0, 4), (0, 8), (2, 4), (2, 8), (4, 4), (4, 8)):
            name = f"targeted + {oversample}, S = {staleness}"
            runs = (
                measure(on, "targeted", staleness, steps, seed, oversample) for seed in range(seeds)
            )
            print(line(name, runs))
        for name, efficiency, lag, waste in PEERS[on.name]:
            given_up = f"{waste:>6.2f}" if not math.isnan(waste) else ""
            print(f"  {name + ' *':<36} {efficiency:>6.3f} {'':>6} {lag:>11} {'':>6} {given_up}")
    print("\n* measured in August 2026, S = 2 where there is a limit")
    if arguments.sweep:
        sweep(steps, seeds)


def sweep(steps: int, seeds: int) -> None:
    """Print the windowed policies over W, sigma and max_staleness, training 0.45 s and sync 0.05 s."""
    for policy in ("windowed", "token_windowed"):
        print(f"\n{policy} over W, sigma and S\n{HEAD}")
        for places, sigma, staleness in product((20, 32, 48), (0.4, 0.7, 1.0), (1, 2, 4)):
            on = Cluster("sweep", places, 0.45, 0.05, sigma)
            rows = (measure(on, policy, staleness, steps, seed) for seed in range(seeds))
            print(line(f"W = {places}, sigma = {sigma}, S = {staleness}", rows), flush=True)


if __name__ == "__main__":
    main()
