"""The environment pool: keeps the workers that hold environments alive, and finds each attempt a place in one.

A new environment goes to the worker that holds the fewest. A worker that dies is lost at once, and what it held with
it: those attempts fail as retryable, are charged to nobody's prompt, and are made again elsewhere. It is restarted
within its budget. When no worker is left and none may be restarted, the run ends with the first cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ..events.record import causing
from ..events.types import EnvironmentWorkerLost, EnvironmentWorkerRestarted, EnvironmentWorkerUp
from .config import RunConfig
from .failures import Failure, RunFailure, TrajectoryAborted, one_line
from .lives import Lives
from .ports import EnvironmentWorker, HeldEnvironment, PortError
from .projections import EnvironmentWorkers, EnvironmentWorkerStatus, View
from .waits import Edge, Expired, Waiter


def route(workers: EnvironmentWorkers) -> EnvironmentWorkerStatus | None:
    """Return the worker that holds the fewest environments, None while none is up."""
    return min(workers.up(), key=lambda worker: (worker.open, worker.name), default=None)


def step(view: View, config: RunConfig, count: int) -> list[EnvironmentWorkerRestarted]:
    """Return the restarts that are due. Raises `RunFailure` when none of `count` workers is left to hope for.

    A worker that has not come up yet is not in the view, and is one to hope for.
    """
    lost = [worker for worker in view.environment_workers.by_name.values() if worker.state == "lost"]
    due = [
        EnvironmentWorkerRestarted(worker=worker.name, restart=worker.restarts + 1)
        for worker in lost
        if worker.restarts < config.environment.restarts_max
    ]
    if lost and not due and len(lost) == count:
        first = min(lost, key=lambda worker: worker.lost_seq or 0)
        raise RunFailure(
            "no_environment_worker_left",
            f"every environment worker is lost and none may be restarted (environment.restarts_max = "
            f"{config.environment.restarts_max}); {first.name}: {first.lost_message}",
            first.lost_seq,
        )
    return due


def wait_edge(view: View, count: int) -> Edge:
    """Return what the pool of `count` workers waits for, which has nothing to decide."""
    return Edge("work", "a lost environment worker", f"{len(view.environment_workers.up())}/{count} up")


class Place(NamedTuple):
    """Where an environment lives."""

    environment: HeldEnvironment
    life: int
    """Restarts that its worker had."""

    @property
    def worker(self) -> str:
        """Name of the worker that holds it."""
        return self.environment.worker


class EnvironmentPool:
    """The shell: starts and restarts workers, and has them make environments on behalf of rollouts."""

    def __init__(
        self, view: View, config: RunConfig, workers: Sequence[EnvironmentWorker], waiter: Waiter
    ) -> None:
        self.view = view
        self.config = config
        self.workers = {worker.name: worker for worker in workers}
        self.waiter = waiter
        self.lives = Lives(
            waiter,
            lambda: view.environment_workers.by_name,
            lambda name, message: EnvironmentWorkerLost(worker=name, message=message),
            lambda name: self.workers[name].close(),
            closing="environment_worker_close",
            close_s=config.deadlines.close_s,
        )
        self._suspected: set[str] = set()

    async def run(self) -> None:
        """Start all workers, then restart lost ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            with self.lives.within(tasks):
                for name in self.workers:
                    tasks.create_task(self._start(name), name=f"start {name}")
                while True:
                    for restart in await self.waiter.until(self._due, self._rest):
                        record = self.waiter.publish(restart, cause=self.view.last_seq)
                        with causing(record.seq):
                            tasks.create_task(self._start(restart.worker), name=f"restart {restart.worker}")

    def _due(self) -> list[EnvironmentWorkerRestarted] | None:
        return step(self.view, self.config, len(self.workers)) or None

    def _rest(self) -> Edge:
        return wait_edge(self.view, len(self.workers))

    async def _start(self, name: str) -> None:
        worker, limit_s = self.workers[name], self.config.deadlines.start_s
        await self.lives.ended(name)
        try:
            info = await self.waiter.bounded("environment_worker_start", name, limit_s, worker.start())
        except (PortError, Expired) as error:
            self.lives.lose(name, one_line(error), self.lives.present(name))
            return
        self.waiter.publish(EnvironmentWorkerUp(worker=name, node=info.node, pid=info.pid))

    def suspect(self, name: str, life: int) -> None:
        """Find out whether a worker in which a call expired still answers, and declare it lost if it does not.

        One environment that computes for ever holds up all others of its worker, and every one to come.
        """
        tasks = self.lives.tasks
        if tasks is None or name in self._suspected:
            return
        self._suspected.add(name)
        tasks.create_task(self._ping(name, life), name=f"ping {name}")

    async def _ping(self, name: str, life: int) -> None:
        limit_s = self.config.deadlines.env_step_s
        try:
            await self.waiter.bounded("environment_worker_ping", name, limit_s, self.workers[name].ping())
        except Expired:
            held_up = f"no answer within {limit_s:g} s: something in an environment or a reward blocks it"
            self.lives.lose(name, held_up, life)
        except PortError as error:
            self.lives.lose(name, one_line(error), life)
        finally:
            self._suspected.discard(name)

    async def place(self, trajectory: str) -> Place:
        """Have the worker with the fewest environments make one; wait while none is up, as long as a restart may take.

        Raises `TrajectoryAborted` when none came up. Cancelling ends the wait.
        """
        limits = self.config.deadlines
        limit_s = max(limits.env_reset_s, limits.close_s + limits.start_s)
        self.waiter.bus.fold()
        while (worker := route(self.view.environment_workers)) is None:
            try:
                await self.waiter.until(
                    lambda: route(self.view.environment_workers),
                    lambda: Edge("environment_available", "an environment worker", self._rest().present),
                    deadline_s=limit_s,
                    waiter=trajectory,
                )
            except Expired:
                message = f"no environment worker was up within {limit_s:g} s"
                raise TrajectoryAborted(Failure("env_lost", True, "infrastructure", message)) from None
            self.waiter.bus.fold()  # others that waited have a place by now
        environment = self.workers[worker.name].make()
        return Place(environment, self.lives.present(environment.worker))
