"""Which versions of vLLM are known to do what is asked of them."""

from __future__ import annotations

import re

SUPPORTED = ((0, 32), (0, 33))
"""From the first, up to the second without it. What is used of vLLM is younger than most of its API, and moves."""


def require_supported(version: str, whose: str) -> None:
    """Raise ValueError, with one line, unless `version` of vLLM is supported."""
    low, high = SUPPORTED
    parts = re.match(r"(\d+)\.(\d+)", version)
    if parts is None or not low <= (int(parts[1]), int(parts[2])) < high:
        raise ValueError(
            f"{whose} has version {version}; supported are {low[0]}.{low[1]} and later, before {high[0]}.{high[1]}"
        )
