"""Rows as the core sends them, for a vocabulary of 64."""

from __future__ import annotations

from typing import Any

import numpy as np


def row(seed: int, length: int = 12, advantage: float | None = None, version: int = 0) -> dict[str, Any]:
    """Return one random trajectory of `length` tokens in which every third one was sampled."""
    draw = np.random.default_rng(seed)
    sampled = np.zeros(length, np.uint8)
    sampled[2::3] = 1
    return {
        "trajectory": f"{seed}/0",
        "tokens": draw.integers(0, 64, length).astype("<i4").tobytes(),
        "sampled": sampled.tobytes(),
        "logprobs": np.where(sampled, draw.uniform(-6, -2, length), 0).astype("<f4").tobytes(),
        "versions": np.where(sampled, version, -1).astype("<i4").tobytes(),
        "advantage": float(draw.normal()) if advantage is None else advantage,
    }


def batch(seed: int, version: int = 0) -> list[dict[str, Any]]:
    """Return nine trajectories of different lengths."""
    return [row(100 * seed + index, 6 + 2 * index, version=version) for index in range(9)]


def changed(row_: dict[str, Any], **arrays: Any) -> dict[str, Any]:
    """Return a copy of a row with other fields."""
    return {**row_, **arrays}
