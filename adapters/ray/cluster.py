"""A Ray cluster that this run is connected to, and the places in it that the run's workers were promised.

All that blocks is done in one thread, which lives as long as the cluster is held; `membership` says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ...core.config import RunConfig
from ...core.placement import PlacementImpossible, asks, counted, place
from ..telemetry.devices.worker_thread import WorkerThread
from ..wording import require
from .bundles import ClusterRefused, Place, bundled
from .membership import Membership
from .nodes import nodes_told

T = TypeVar("T")

KILL_S = 10.0
CLOSE_S = 20.0
ANSWER_S = 1.0
"""Left of ``cluster.connect_s`` for saying why there was no place."""
STRATEGIES = {"pack": "PACK", "spread": "SPREAD"}


class RayCluster:
    """The cluster at ``cluster.address``, or one of our own on this machine, with a place for every worker."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._section = config.cluster
        self._thread: WorkerThread | None = None
        self._member = Membership(config.cluster)
        self._group: Any = None
        self._places: dict[str, Place] = {}
        self.home = ""
        """Ray's name of the node on which the controller runs."""

    @property
    def errors(self) -> Any:
        """Ray's exceptions, once it is connected."""
        return self._ray.exceptions

    async def connect(self) -> None:
        """Join or start the cluster and have every worker's place promised, within ``cluster.connect_s``. Idempotent.

        Raises `ClusterRefused`. Cancelled or refused, it holds nothing afterwards.
        """
        if self._places:
            return
        where, limit_s = self._member.where, self._section.connect_s
        try:
            async with asyncio.timeout(limit_s):
                await self.ask(self._connect)
        except TimeoutError:
            self._let_go()
            hint = self._member.hint
            raise ClusterRefused(f"{where}: no answer within cluster.connect_s = {limit_s:g} s{hint}") from None
        except BaseException:
            self._let_go()
            raise

    async def place(self, name: str, wanted: Callable[[dict[str, Any]], Any]) -> Any:
        """Return ``wanted(options)``, made in the cluster's thread, with the options that put it in `name`'s place.

        Raises `ClusterRefused` for a worker that has none.
        """
        await self.connect()
        given = self._given(name)
        if given is None:
            raise ClusterRefused(f"{name} has no place in the cluster; there are: {', '.join(self._places)}")
        options: dict[str, Any] = {"num_cpus": given.cpus, "num_gpus": given.gpus}
        if given.bundle is not None:
            strategies = require("ray.util.scheduling_strategies", "ray")
            options["scheduling_strategy"] = strategies.PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=given.bundle
            )
        return await self.ask(lambda: wanted(options))

    def threads_of(self, name: str) -> float:
        """Return how many CPU threads worker `name` was given; at least 1, also for one without a place."""
        given = self._given(name)
        return max(1.0, given.cpus) if given is not None else 1.0

    async def kill(self, actor: Any) -> None:
        """Kill an actor's process; waits at most `KILL_S` until that is asked for. Cancelling stops the wait alone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_S):
                await self.ask(lambda: self._ray.kill(actor, no_restart=True))

    async def close(self) -> None:
        """Leave the cluster, and end it if it is ours; waits for that at most `CLOSE_S`. Idempotent."""
        if self._thread is None:
            return
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self.ask(self._leave)
        finally:
            self._let_go()

    async def ask(self, work: Callable[[], T]) -> T:
        """Return what `work` returns in the cluster's thread. Cancelling no longer waits for it."""
        if self._thread is None:
            self._thread = WorkerThread("eventrain ray")
        return await self._thread.ask(work)

    def _let_go(self) -> None:
        thread, self._thread = self._thread, None
        self._places = {}
        if thread is not None:
            thread.end(self._leave)

    def _given(self, name: str) -> Place | None:
        """Return the place of `name`; a learner rank that is alone may be called ``learner``."""
        return self._places.get(name, self._places.get(f"{name}-0"))

    # In the thread

    def _connect(self) -> None:
        if self._places:
            return
        ends = time.monotonic() + self._section.connect_s
        self._member.join(ends)
        try:
            self.home = self._ray.get_runtime_context().get_node_id()
            self._reserve(ends)
        except BaseException:
            self._leave()
            raise

    def _reserve(self, ends: float) -> None:
        """Have a place promised to every worker; one that asks for nothing goes anywhere."""
        ray, section = self._ray, self._section
        nodes = nodes_told(ray.nodes())
        asked = asks(self._config, gpus_there=any(node.gpus for node in nodes))
        try:
            placed = place(asked, nodes, placement=section.placement, spread=section.spread)
        except PlacementImpossible as error:
            raise ClusterRefused(*(f"{self._member.where}: {line}" for line in error.lines)) from error
        places, bundles = bundled(asked, colocated=placed.colocated)
        if bundles:
            asked_for = ({"CPU": cpus, "GPU": gpus} for cpus, gpus in bundles)
            resources = [{name: amount for name, amount in one.items() if amount} for one in asked_for]
            self._group = ray.util.placement_group(resources, strategy=STRATEGIES[self._section.spread])
            if not self._group.wait(timeout_seconds=max(1.0, ends - time.monotonic() - ANSWER_S)):
                free = ray.available_resources()
                raise ClusterRefused(
                    f"{self._member.where}: no place for {counted(asked)} within cluster.connect_s = "
                    f"{self._section.connect_s:g} s; free are {free.get('CPU', 0):g} CPUs and "
                    f"{free.get('GPU', 0):g} GPUs, in parts that may be too small"
                )
        self._places = places

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None and self._ray.is_initialized():
            with suppress(self._ray.exceptions.RayError):
                self._ray.util.remove_placement_group(group)
        self._member.leave()

    @property
    def _ray(self) -> Any:
        return self._member.ray
