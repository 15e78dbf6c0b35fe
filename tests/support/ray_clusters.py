"""Ray clusters of this machine that are not a run's own: nodes that are started, and ended, one by one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ray_controllers import below, ended


@contextmanager
def two_nodes(
    *options: str, within: Sequence[str] = ()
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start two nodes with a CPU each; give the address, and the process of the second.

    `options` are of the second, which is started by the command `within`.
    """
    port = free_port()
    head = ray_start("--head", f"--port={port}", "--include-dashboard=false", f"--ray-client-server-port={free_port()}")
    try:
        with head:
            wait_listening(port)
            second = ray_start(f"--address=127.0.0.1:{port}", *options, within=within)
            with second:
                try:
                    wait_nodes(f"127.0.0.1:{port}", 2)
                    yield f"127.0.0.1:{port}", second
                finally:
                    end(second)
                    end(head)
    finally:
        end(head)


def ray_start(*options: str, within: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start one node with a CPU; it ends when it is told to."""
    return subprocess.Popen(
        [*within, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", *options],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_listening(port: int) -> None:
    """Return once something listens at `port`, within a minute."""

    async def main() -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.1)  # another process's start has no event
                else:
                    writer.close()
                    return

    asyncio.run(main())


def wait_nodes(address: str, count: int) -> None:
    """Return once the cluster has so many nodes, within a minute."""
    script = (
        "import sys, time, ray; ray.init(address=sys.argv[1], log_to_driver=False); ends = time.monotonic() + 60\n"
        "while len(ray.nodes()) < int(sys.argv[2]) and time.monotonic() < ends: time.sleep(0.1)"
    )
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    subprocess.run([sys.executable, "-c", script, address, str(count)], env=env, check=True, capture_output=True)


def end(node: subprocess.Popen[bytes]) -> None:
    """End a node and everything below it."""
    if node.poll() is not None:
        return
    pids = below(node.pid)
    node.send_signal(signal.SIGTERM)
    node.wait(60)
    for pid in pids:
        if not ended(pid):
            os.kill(pid, signal.SIGKILL)
