"""The machines of a Ray cluster, as what a plan reckons with."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.config import ClusterSection
from ...core.placement import Node
from ..telemetry.devices.worker_thread import WorkerThread
from .bundles import ClusterRefused
from .membership import Membership

ID_LENGTH = 8


async def nodes_there(section: ClusterSection) -> list[Node]:
    """Join the cluster, ask for its machines and leave, within ``cluster.connect_s``.

    Raises `ClusterRefused`. Cancelled, it leaves as soon as Ray lets it.
    """
    member, thread, limit_s = Membership(section), WorkerThread("eventrain ray"), section.connect_s

    def look() -> list[Node]:
        member.join(time.monotonic() + limit_s)
        try:
            return nodes_told(member.ray.nodes())
        finally:
            member.leave()

    try:
        async with asyncio.timeout(limit_s):
            return await thread.ask(look)
    except TimeoutError:
        raise ClusterRefused(f"{member.where}: no answer within cluster.connect_s = {limit_s:g} s") from None
    finally:
        thread.end(member.leave)


def nodes_told(told: Sequence[Mapping[str, Any]]) -> list[Node]:
    """Return the living ones of the machines that ``ray.nodes()`` tells of.

    Memory is what Ray lets workers have, without its object store; Ray does not say that of GPUs. A name that several
    have (nodes of one machine) has the beginning of Ray's id behind it.
    """
    living = [one for one in told if one["Alive"]]
    names = Counter(_name(one) for one in living)
    return [
        Node(
            _name(one) if names[_name(one)] == 1 else f"{_name(one)}/{one['NodeID'][:ID_LENGTH]}",
            float(one["Resources"].get("CPU", 0)),
            int(one["Resources"].get("GPU", 0)),
            int(one["Resources"].get("memory", 0)),
        )
        for one in living
    ]


def _name(one: Mapping[str, Any]) -> str:
    return str(one["NodeName"] or one["NodeManagerAddress"])
