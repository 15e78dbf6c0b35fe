"""What a worker is told of the GPUs that it was given on this machine, and what it calls them.

GPUs have the numbers by which this process knows them: ``CUDA_VISIBLE_DEVICES=3,2`` makes the machine's GPU 3 number 0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"


def environment_of(gpus: Sequence[int] | None) -> dict[str, str]:
    """Return what makes a process see `gpus` alone, and nothing where they are None: it sees what this one sees."""
    if gpus is None:
        return {}
    listed = os.environ.get(VISIBLE)
    names = None if listed is None else [name.strip() for name in listed.split(",")]
    return {VISIBLE: ",".join(str(number) if names is None else names[number] for number in gpus)}


def known_device(gpus: Sequence[int] | None, device: str) -> str:
    """Return under which name this process knows what one that was given `gpus` calls `device`.

    ``cuda`` alone is the first of them.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda" or not gpus:
        return device
    return f"cuda:{gpus[int(number or 0)]}"
