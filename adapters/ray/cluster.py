"""A Ray cluster that this run is connected to, and the places in it that the run's workers were promised.

All that blocks is done in one thread, which lives as long as the cluster is held: Ray's own processes, where there is
no cluster to join, are bound by the kernel to the thread that started them, and die with it however it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from ...core.config import RunConfig
from ...core.placement import asks
from ..telemetry.devices.worker_thread import WorkerThread
from ..wording import MissingExtra, require
from .bundles import ClusterRefused, Place, bundled, counted, misfit
from .leftovers import Reaper

T = TypeVar("T")

PORT = 6379
"""Where a cluster listens if its address names no port."""
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
        self._ray: Any = None
        self._group: Any = None
        self._reaper: Reaper | None = None
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
        where, limit_s = self._where, self._section.connect_s
        try:
            async with asyncio.timeout(limit_s):
                await self.ask(self._connect)
        except TimeoutError:
            self._let_go()
            raise ClusterRefused(f"{where}: no answer within cluster.connect_s = {limit_s:g} s") from None
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
        try:
            self._ray = require("ray", "ray")
            require("ray.util.placement_group", "ray")
        except MissingExtra as error:
            raise ClusterRefused(str(error)) from error
        logging.getLogger("ray").setLevel(logging.ERROR)  # what it says at its start is news to nobody
        self._join(ends)
        try:
            self.home = self._ray.get_runtime_context().get_node_id()
            self._reserve(ends)
        except BaseException:
            self._leave()
            raise

    def _join(self, ends: float) -> None:
        ray, address = self._ray, self._section.address
        if address:
            _require_reachable(address, ends - time.monotonic())
        if ray.is_initialized():
            self._ray = None  # it is not ours to end
            raise ClusterRefused("this process is connected to a Ray cluster already, and Ray allows one")
        options: dict[str, Any] = {"address": address} if address else {"address": "local", "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not address:
            self._reaper = Reaper()
        try:
            with self._reaper or nullcontext():
                ray.init(**options, log_to_driver=False, configure_logging=False)
        except (ray.exceptions.RayError, RuntimeError, OSError, ValueError) as error:
            self._leave()
            raise ClusterRefused(f"{self._where}: {_why(error)}{_hint(error, address)}") from error
        _silence()

    def _reserve(self, ends: float) -> None:
        """Have a place promised to every worker; one that asks for nothing goes anywhere."""
        ray = self._ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        asked = asks(self._config, gpus_there=any(node.get("GPU", 0) > 0 for node in nodes))
        places, bundles = bundled(asked, colocated=self._section.placement == "colocated")
        refusal = misfit(asked, bundles, [(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes])
        if refusal:
            raise ClusterRefused(f"{self._where}: {refusal}")
        if bundles:
            asked_for = ({"CPU": cpus, "GPU": gpus} for cpus, gpus in bundles)
            resources = [{name: amount for name, amount in one.items() if amount} for one in asked_for]
            self._group = ray.util.placement_group(resources, strategy=STRATEGIES[self._section.spread])
            if not self._group.wait(timeout_seconds=max(1.0, ends - time.monotonic() - ANSWER_S)):
                free = ray.available_resources()
                raise ClusterRefused(
                    f"{self._where}: no place for {counted(asked)} within cluster.connect_s = "
                    f"{self._section.connect_s:g} s; free are {free.get('CPU', 0):g} CPUs and "
                    f"{free.get('GPU', 0):g} GPUs, in parts that may be too small"
                )
        self._places = places

    def _leave(self) -> None:
        ray, group, left = self._ray, self._group, self._reaper
        self._group = self._reaper = None
        if ray is not None and ray.is_initialized():
            if group is not None:
                with suppress(ray.exceptions.RayError):
                    ray.util.remove_placement_group(group)
            ray.shutdown()
        if left is not None:
            left.reap()

    @property
    def _where(self) -> str:
        address = self._section.address
        return f"the Ray cluster at '{address}'" if address else "Ray on this machine"


def _require_reachable(address: str, limit_s: float) -> None:
    """Raise `ClusterRefused` unless something listens at `address`: Ray itself would try for long, and then abort."""
    if address == "auto":
        return
    if "://" in address:
        raise ClusterRefused(
            f"cluster.address = '{address}': Ray Client cannot carry a run; give the head's host:port from a machine "
            "of the cluster, or submit the run as a job and say 'auto'"
        )
    host, _, port = address.rpartition(":") if ":" in address else (address, "", str(PORT))
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=max(0.1, limit_s)).close()
    except (OSError, ValueError) as error:
        raise ClusterRefused(f"the Ray cluster at '{address}' cannot be reached: {_why(error)}") from error


def _silence() -> None:
    """Keep Ray from printing a worker's death into the run's screen; events tell of it.

    There is no setting for that: ``log_to_driver`` is about the output of workers alone.
    """
    private: Any = sys.modules.get("ray._private.worker")
    if hasattr(private, "print_to_stdstream"):
        private.print_to_stdstream = lambda *_, **__: None


def _hint(error: BaseException, address: str) -> str:
    """Return what may be wrong where something listens and will not have us: Ray does not say."""
    if isinstance(error, ConnectionError) and address:
        return "; something listens there: is it a Ray head, and are RAY_AUTH_MODE and RAY_AUTH_TOKEN those of it?"
    return ""


def _why(error: BaseException) -> str:
    """Return the error's text as one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 400 else text[:397] + "..."
