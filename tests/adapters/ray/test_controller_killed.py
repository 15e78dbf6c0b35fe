"""A controller that dies without a word leaves nothing running, whatever its workers are in the middle of."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.ray]

HERE = Path(__file__).parent
DEADLINE_S = 30

CONTROLLER = """\
import asyncio, os
from conftest import TARGETS, configured
from eventrain.adapters.ray import RayLauncher

async def main():
    launcher = RayLauncher(configured(address=os.environ["ADDRESS"]), modules=TARGETS)
    pids = []
    async with asyncio.TaskGroup() as group:
        for name in ("engine-0", "environment-0"):
            worker = await launcher.start("worker_target:make", {}, name=name, log_path=None, deadline_s=60)
            pids.append(worker.pid)
            group.create_task(worker.call("block", seconds=600))
            group.create_task(worker.call("hang"))
            await worker.call("cancellations")
        print(*pids, flush=True)

asyncio.run(main())
"""


def controller(address: str = "") -> subprocess.Popen[str]:
    """Start a process with two workers that compute."""
    pytest.importorskip("ray")
    return subprocess.Popen(
        [sys.executable, "-c", CONTROLLER],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "ADDRESS": address, "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        text=True,
    )


def below(pid: int) -> list[int]:
    """Return the pids of all processes that `pid` started, and that those started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *below(int(child))]
    return found


def handles(pids: list[int]) -> list[int]:
    """Return a descriptor for each process, by which its end can be seen."""
    return [os.pidfd_open(pid) for pid in pids]


def still_running(pidfds: list[int]) -> int:
    """Return how many have not ended within the deadline."""
    left = len(pidfds)
    poll = select.poll()
    for one in pidfds:
        poll.register(one, select.POLLIN)
    while left:
        ended = poll.poll(DEADLINE_S * 1000)
        if not ended:
            break
        for one, _ in ended:
            poll.unregister(one)
            left -= 1
    for one in pidfds:
        os.close(one)
    return left


def test_nothing_of_a_ray_of_our_own_is_left() -> None:
    """Killed by SIGKILL, the controller takes its actors and every process of its own Ray along."""
    with controller() as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        pids = below(parent.pid)
        assert set(workers) <= set(pids)
        assert len(pids) > len(workers) + 3  # the store of the cluster's state, the node's daemon, its agents
        watched = handles(pids)
        parent.kill()
    assert still_running(watched) == 0
