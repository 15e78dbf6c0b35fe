"""Weights on their way to another machine of a Ray cluster, beside the bare copy of the same bytes.

Two nodes of one Ray on this machine; what goes from one to the other takes the way that it would take between two
machines, with the loopback in the place of the network. A file in memory is brought to the second node, part by part;
the limit is one process that copies the same file once::

    python benchmarks/bench_carried.py [--megabytes 512] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

from bench_ray import configured
from ray.cluster_utils import Cluster

from eventrain.adapters.ray import RayLauncher

HERE = Path(__file__).parent
ENGINE, OTHER = "engine-0", "environment-0"


class Nothing:
    """What a worker holds here."""


def make(settings: dict[str, object]) -> Nothing:
    """Return it. Called in the worker."""
    return Nothing(**settings)


async def carried(address: str, path: Path, rounds: int) -> tuple[float, float]:
    """Return median seconds of bringing the file to the other node, and of asking for it when it is there."""
    launcher = RayLauncher(configured(0.9, 0.9, address=address), modules=HERE)
    try:
        workers = [
            await launcher.start("bench_carried:make", {}, name=name, log_path=None, deadline_s=60)
            for name in (ENGINE, OTHER)
        ]
        (away,) = [worker for worker in workers if worker.node]
        first, again = [], []
        for _ in range(rounds + 1):
            for seconds in (first, again):
                began = time.perf_counter()
                await away.reach(str(path))
                seconds.append(time.perf_counter() - began)
            launcher.forget(str(path))
        return median(first[1:]), median(again[1:])  # the first starts the couriers
    finally:
        await launcher.close()


def copied(path: Path, rounds: int) -> float:
    """Return median seconds of a copy of the file beside it."""
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        shutil.copyfile(path, path.with_name("copy"))
        seconds.append(time.perf_counter() - began)
        path.with_name("copy").unlink()
    return median(seconds[1:])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time until another node has a file, beside the bare copy.")
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--quick", action="store_true", help="an eighth of the bytes, two rounds")
    arguments = parser.parse_args()
    megabytes, rounds = (arguments.megabytes // 8, 2) if arguments.quick else (arguments.megabytes, 5)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    store = 2**30
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": store}, shutdown_at_exit=False
    )
    try:
        cluster.add_node(num_cpus=1, object_store_memory=store)
        with tempfile.TemporaryDirectory(dir=base) as name:
            path = Path(name) / "weights"
            path.write_bytes(os.urandom(2**20) * megabytes)
            size = path.stat().st_size
            copy_s = copied(path, rounds)
            brought_s, there_s = asyncio.run(carried(cluster.address, path, rounds))
    finally:
        cluster.shutdown()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    print(f"{size / 1e6:,.0f} MB in {base or 'the temporary folder'}\n")
    print(f"{'':28}{'ms':>9}{'MB/s':>9}{'ratio':>8}")
    for what, seconds in (("bare copy", copy_s), ("brought to another node", brought_s)):
        print(f"{what:28}{seconds * 1e3:>9,.0f}{size / seconds / 1e6:>9,.0f}{seconds / copy_s:>8.2f}")
    print(f"{'asked for where it is':28}{there_s * 1e3:>9,.1f}")


if __name__ == "__main__":
    main()
