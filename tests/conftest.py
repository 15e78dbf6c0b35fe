"""What the marks of tests ask of the machine: a marked test is skipped where that is not there."""

from __future__ import annotations

import importlib.util
import os

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `vllm` or `ray` where there is none, before any fixture of it is made."""
    if item.get_closest_marker("vllm") and not os.environ.get("EVENTRAIN_VLLM_PYTHON"):
        pytest.skip("EVENTRAIN_VLLM_PYTHON is not set: scripts/vllm_env.sh makes an environment with vLLM")
    if item.get_closest_marker("ray") and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: it comes with eventrain[ray]")
