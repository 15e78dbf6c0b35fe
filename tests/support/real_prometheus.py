"""A real Prometheus for tests; where it is not installed they are skipped."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def binary(name: str) -> str:
    """Return the path of Prometheus' binary `name`, or skip the test."""
    folder = os.environ.get("EVENTRAIN_PROMETHEUS_DIR")
    found = shutil.which(name, path=folder) if folder else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@contextmanager
def prometheus(data: Path, config: str = "global: {}\n") -> Iterator[str]:
    """Yield the address of a Prometheus that has `data`, and does what `config` says."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = data.parent / "prometheus.yml"
    settings.write_text(config)
    command = [
        binary("prometheus"), f"--config.file={settings}", f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=20y", f"--web.listen-address={address}", "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not _ready(address):
            assert time.monotonic() < deadline
            with suppress(subprocess.TimeoutExpired):
                raise RuntimeError(f"Prometheus ended with {process.wait(0.1)}")
        yield address
    finally:
        process.terminate()
        process.wait(20)


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=2):
            return True
    except OSError:
        return False


def query(address: str, promql: str, at_s: float) -> list[dict]:
    """Return what Prometheus answers to `promql` at a time."""
    asked = urllib.parse.urlencode({"query": promql, "time": f"{at_s:.3f}"})
    with urllib.request.urlopen(f"http://{address}/api/v1/query?{asked}", timeout=20) as answer:
        return json.load(answer)["data"]["result"]
