"""Files on their way from one machine of a cluster to others, so that no file system has to be shared for them.

Every machine that is to have a copy has a courier, and so has the one where the file lies. Parts of the file go from
courier to courier through Ray's object store and never come near the controller. A few are on their way at a time, so
that is what the store needs room for; the copy itself takes its size in the memory of the machine, once for all
workers there.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ..wording import require
from .cluster import RayCluster
from .worker import cause_of, settled

PART_BYTES = 32 * 2**20
PARTS = 4
"""On their way to one machine at the same time."""


class NotBrought(Exception):
    """A file has not come to a machine; why, in one line. It may be asked for again."""


class Couriers:
    """Copies of files, by path and machine; machines go by Ray's names of nodes. To be used from one event loop.

    No copy takes longer than `limit_s`. What has been copied is the couriers' to know, for they may die.
    """

    def __init__(self, cluster: RayCluster, limit_s: float) -> None:
        self._cluster = cluster
        self._limit_s = limit_s
        self._couriers: dict[str, Any] = {}
        self._bringing: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def bring(self, path: str, source: str, node: str) -> str:
        """Return the path under which workers of `node` find the file `path` of `source`, once it is whole there.

        It is brought once, however many ask. Raises `NotBrought`, also where it took too long. Cancelled, it leaves no
        half of a copy, and the next who asks begins anew.
        """
        async with self._bringing[path, node]:
            errors, where = self._cluster.errors, f"{path} could not be brought to another machine"
            asked: dict[str, Any] = {}
            try:
                async with asyncio.timeout(self._limit_s):
                    return await self._opened(path, node, asked) or await self._copied(path, source, node, asked)
            except TimeoutError:
                self._give_up(asked)
                raise NotBrought(f"{where} within {self._limit_s:g} s") from None
            except errors.RayTaskError as error:
                raise NotBrought(f"{where}: {type(error.cause).__name__}: {error.cause}") from error
            except errors.RayError as error:
                self._give_up(asked)
                raise NotBrought(f"{where}: {cause_of(error)}") from error

    def forget(self, path: str) -> None:
        """Let go of all copies of `path`; does not wait for that."""
        for wanted in [wanted for wanted in self._bringing if wanted[0] == path]:
            del self._bringing[wanted]
            courier = self._couriers.get(wanted[1])
            if courier is not None:
                courier.drop.remote(path)

    def _give_up(self, asked: Mapping[str, Any]) -> None:
        """Have new couriers made of these, by node: one has died or hangs, and nobody knows which."""
        for node, courier in asked.items():
            if self._couriers.get(node) is courier:  # another may have had it replaced
                del self._couriers[node]

    async def _opened(self, path: str, node: str, asked: dict[str, Any]) -> str | None:
        """Return where `node` has its copy, if it has one. Whom it asks is in `asked` then."""
        courier = self._couriers.get(node)
        if courier is None:
            return None
        asked[node] = courier
        try:
            opened: str | None = await settled(courier.opened.remote(path))
        except self._cluster.errors.RayError:  # it has died, and what it had with it
            self._give_up(asked)
            return None
        return opened

    async def _copied(self, path: str, source: str, node: str, asked: dict[str, Any]) -> str:
        reader = asked[source] = await self._courier(source)
        writer = asked[node] = await self._courier(node)
        size = await settled(reader.size.remote(path))
        under_way: list[Any] = [writer.begin.remote(path, size)]
        try:
            for start in range(0, size, PART_BYTES):
                if len(under_way) >= PARTS:
                    await settled(under_way.pop(0))
                part = reader.read.remote(path, start, min(PART_BYTES, size - start))
                under_way.append(writer.write.remote(path, start, part))
            for write in under_way:
                await settled(write)
            opened: str = await settled(writer.finish.remote(path))
        except BaseException:
            writer.drop.remote(path)
            raise
        return opened

    async def _courier(self, node: str) -> Any:
        """Return the courier of `node`, which may have died."""
        if node not in self._couriers:
            courier = await self._cluster.ask(lambda: _courier_on(node))
            self._couriers.setdefault(node, courier)
        return self._couriers[node]


def _courier_on(node: str) -> Any:
    """Ask Ray for an actor on `node`, which takes no CPU of it in Ray's books."""
    from .courier import as_remote

    strategies = require("ray.util.scheduling_strategies", "ray")
    where = strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return as_remote(num_cpus=0, max_restarts=0, max_task_retries=0, scheduling_strategy=where).remote()
