"""Starts workers as actors of a Ray cluster, each in the place that it was promised."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...core.config import RunConfig
from ..launching import NO_ENV
from ..worker import RemoteError, WorkerFailed
from .bundles import ClusterRefused
from .cluster import RayCluster
from .couriers import Couriers, NotBrought
from .worker import RayWorker, cause_of, settled

LEARNER = ("learner", "learner-0")
"""Names of the worker that writes weights."""
CALLS_MAX = 16384
"""Calls that one actor has under way at the same time; more of them would keep a cancel from being heard."""


class RayLauncher:
    """Starts workers in the cluster of `config`. Modules in the folder `modules` are found where that is there too."""

    def __init__(self, config: RunConfig, modules: Path | None = None) -> None:
        self.cluster = RayCluster(config)
        self._modules = modules
        self._workers: list[RayWorker] = []
        self._couriers = Couriers(self.cluster, config.deadlines.weight_sync_s)
        self._learner_node = ""
        """Where files of the learner lie; empty before it is started."""

    async def connect(self) -> None:
        """Join or start the cluster, where every worker has a place then; see `RayCluster.connect`."""
        await self.cluster.connect()

    def reporting(self) -> Sequence[RayWorker]:
        """Return the workers that are not known to have ended."""
        self._workers = [worker for worker in self._workers if worker.alive]
        return self._workers

    async def start(
        self,
        target: str,
        settings: dict[str, Any],
        *,
        name: str,
        log_path: Path | None,
        deadline_s: float,
        env: Mapping[str, str] = NO_ENV,
        python: str | None = None,
    ) -> RayWorker:
        """Start one; see `Launcher.start`. `log_path` is written where the actor is on the controller's machine.

        Connects first, if that has not been done; a cluster that refuses is a `WorkerFailed` as well. `python` is an
        interpreter on the actor's machine, with the same Ray and eventrain beside it.
        """
        try:
            async with asyncio.timeout(deadline_s):
                return await self._started(target, settings, name, log_path, env, python)
        except TimeoutError:
            other = f"; is Ray installed beside {python}?" if python else ""
            raise WorkerFailed(f"{name} was not up within {deadline_s:g} s{other}") from None
        except ClusterRefused as error:
            raise WorkerFailed(f"{name} could not be started: {error}", type(error).__name__) from error

    async def reached(self, path: str, node: str) -> str:
        """Return the path under which workers of `node` find a file that the learner has written.

        It is brought there unless that is the learner's own machine. Raises `RemoteError`.
        """
        source = self._learner_node or self.cluster.home
        if node == source:
            return path
        try:
            return await self._couriers.bring(path, source, node)
        except NotBrought as error:
            raise RemoteError(NotBrought.__name__, str(error)) from error

    def forget(self, path: str) -> None:
        """Let go of all copies of a file; see `Launcher.forget`."""
        self._couriers.forget(path)

    async def close(self) -> None:
        """Leave the cluster; see `RayCluster.close`. What still runs in it for us is killed by that."""
        await self.cluster.close()

    async def _started(
        self,
        target: str,
        settings: dict[str, Any],
        name: str,
        log_path: Path | None,
        env: Mapping[str, str],
        python: str | None,
    ) -> RayWorker:
        cluster = self.cluster
        await cluster.connect()
        order = self._order(target, settings, name, log_path, env)
        where = {"env_vars": dict(env)} | ({"py_executable": python} if python else {})
        actor = await cluster.place(name, lambda place: _actor(place, where))
        try:
            said = await self._made(actor, order, name)
        except BaseException:
            await cluster.kill(actor)
            raise
        worker = RayWorker(cluster, name, actor, said, log_path, self.reached)
        if name in LEARNER:
            self._learner_node = said["node_id"]
        self._workers.append(worker)
        return worker

    def _order(
        self,
        target: str,
        settings: dict[str, Any],
        name: str,
        log_path: Path | None,
        env: Mapping[str, str],
    ) -> bytes:
        return msgspec.msgpack.encode(
            {
                "worker": name,
                "target": target,
                "settings": settings,
                "home": self.cluster.home,
                "log_path": str(log_path.absolute()) if log_path is not None else "",
                "modules": str(self._modules) if self._modules is not None else "",
                "threads": float(env.get("OMP_NUM_THREADS", self.cluster.threads_of(name))),
            }
        )

    async def _made(self, actor: Any, order: bytes, name: str) -> dict[str, Any]:
        """Return what the actor says of itself once its object is made. Raises `WorkerFailed`."""
        errors = self.cluster.errors
        try:
            answer = msgspec.msgpack.decode(await settled(actor.make.remote(order)))
        except errors.RayError as error:
            raise WorkerFailed(f"{name} did not start: {cause_of(error)}", type(error).__name__) from error
        if answer[0] == "failed":
            raise WorkerFailed(f"{name} did not start: {answer[1]}: {answer[2]}", answer[1])
        said: dict[str, Any] = answer[1]
        return said


def _actor(place: dict[str, Any], where: dict[str, Any]) -> Any:
    """Ask Ray for an actor, which belongs to this run: never restarted by Ray, and gone when we are."""
    from .actor import as_remote

    remote = as_remote(
        max_restarts=0, max_task_retries=0, max_concurrency=CALLS_MAX, runtime_env=where, **place
    )
    return remote.remote()
