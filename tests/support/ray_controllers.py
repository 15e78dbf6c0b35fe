"""Controllers in processes of their own: what the tests of Ray kill, and what has to end with it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from eventrain.core.config import RunConfig

HERE = Path(__file__).parent
ENDED_S = 30
TARGETS = Path(__file__).parent.parent / "adapters"
"""Where `worker_target` is."""


def configured(**cluster: Any) -> RunConfig:
    """Return settings that ask for one engine, one learner rank and one environment worker, of a tiny share each."""
    shares = {"engine_cpus": 0.1, "learner_cpus": 0.1, "environment_cpus": 0.1}
    return RunConfig.model_validate(
        {
            "run": {"steps": 1, "name": "small"},
            "model": {"path": "none"},
            "data": {"kind": "generated", "size": 100},
            "environment": {"kind": "none", "workers": 1},
            "scheduler": {"groups_per_step": 2},
            "cluster": {"kind": "ray", **shares, **cluster},
        }
    )

CONTROLLER = """\
import asyncio, json, os, sys
from ray_controllers import TARGETS, configured
from eventrain.adapters.ray import ClusterRefused, RayLauncher
from eventrain.adapters.ray.reports import collect
from eventrain.adapters.worker import WorkerGone

said = json.loads(os.environ["SAID"])
WORKERS = ("engine-0", "environment-0")

async def until_told(launcher):
    told = {name: set() for name in WORKERS}
    try:
        async with asyncio.timeout(3.5):
            await collect(launcher.reporting, lambda event: told[event.origin.worker].add(type(event).__name__))
    except TimeoutError:
        return told

async def held(worker, method, **params):
    try:
        await worker.call(method, **params)
    except WorkerGone as error:
        print(error, flush=True)

async def main():
    launcher = RayLauncher(configured(**said["cluster"]), modules=TARGETS)
    try:
        await launcher.connect()
    except ClusterRefused as error:
        print(error)
        return
    async with asyncio.TaskGroup() as group:
        workers = [
            await launcher.start("worker_target:make", {}, name=name, log_path=None, deadline_s=60)
            for name in WORKERS
        ]
        pids = {}
        for worker in workers:
            pids[worker.name] = await worker.call("pid")
            await worker.call("warn", text="look out")
        told = await until_told(launcher) if said["cluster"]["address"] else {}
        for worker in workers:
            group.create_task(held(worker, "block", seconds=600))
            group.create_task(held(worker, "hang"))
            await worker.call("cancellations")
        for worker in workers:
            home = "away" if worker.node else "home"
            print(worker.name, home, pids[worker.name], *sorted(told.get(worker.name, ())), flush=True)

asyncio.run(main())
"""


def controller(address: str = "", **cluster: Any) -> subprocess.Popen[str]:
    """Start a process that has two workers compute, once it has said a line of each: name, where, process, reports.

    A refusal is the only line that it says otherwise.
    """
    said = {"cluster": {"address": address, **cluster}}
    return subprocess.Popen(
        [sys.executable, "-c", CONTROLLER],
        env={
            **os.environ,
            "RAY_AUTH_MODE": "disabled",
            "SAID": json.dumps(said),
            "PYTHONPATH": str(HERE),
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def said_by(process: subprocess.Popen[str]) -> str:
    """Return what a controller says that ends by itself."""
    said, _ = process.communicate(timeout=90)
    return said.strip()


def below(pid: int) -> list[int]:
    """Return the pids of all processes that `pid` started, and that those started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *below(int(child))]
    return found


def ended(pid: int, timeout_s: float = 0) -> bool:
    """Return whether process `pid` has ended, waiting for it."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def wait_ended(pids: list[int], timeout_s: float) -> None:
    """Wait until all have ended; fail with those that have not in time."""
    ends = time.monotonic() + timeout_s
    left = [pid for pid in pids if not ended(pid, max(0.0, ends - time.monotonic()))]
    assert not left, f"{left} still run"
