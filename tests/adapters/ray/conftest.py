"""One Ray of this machine for all tests of this folder: it takes some seconds to start."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from ray_controllers import TARGETS, configured

from eventrain.adapters.ray import RayLauncher


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.Runner]:
    """Give one event loop to all tests, because the workers that they share belong to one."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def run(loop: asyncio.Runner) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Give a function that runs a coroutine to its end."""
    return loop.run


@pytest.fixture(scope="session")
def launcher(loop: asyncio.Runner) -> Iterator[RayLauncher]:
    """Start Ray, and end it."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    launcher = RayLauncher(configured(), modules=TARGETS)
    loop.run(launcher.cluster.connect())
    yield launcher
    loop.run(launcher.close())
