"""Where workers are started: what every adapter with work elsewhere needs of a machine, or of a cluster.

A worker holds one object, made in it by a function that is named, and its methods are called by name. Whether it is a
process of this machine (`worker.WorkerProcess`) or an actor of a Ray cluster is the launcher's to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .gpus import environment_of
from .worker import WorkerProcess

NO_ENV: Mapping[str, str] = {}
NO_GPUS: Mapping[str, Sequence[int]] = {}


class LauncherRefused(ValueError):
    """The workers of a run cannot be started here. `lines` say why, one problem each."""

    def __init__(self, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


class Worker(Protocol):
    """An object that lives elsewhere."""

    name: str
    node: str
    """Name of its machine; empty for the controller's own."""

    gpus: Sequence[int] | None
    """Numbers of the GPUs of the controller's machine that it was given; None: not said, or of another machine."""

    @property
    def pid(self) -> int | None:
        """Its process, where that is one of this machine."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it is not known to have ended."""
        ...

    async def call(self, method: str, /, *, deadline_s: float | None = None, **params: Any) -> Any:
        """Call `method` of the object; parameters and result are what msgpack can carry.

        Calls run concurrently: async methods on the worker's loop, others one after another in a thread there.
        Raises `RemoteError` for what the method raised, `WorkerGone` once the worker has ended, `TimeoutError` after
        `deadline_s`. Cancelled or expired, it asks the worker to cancel that call and does not wait for it.
        """
        ...

    async def reach(self, path: str) -> str:
        """Return the path under which it finds the file that the learner has written at `path`, once it does.

        Where that takes a copy, it is made once for all workers of a machine, and again by the next call if it was
        lost. Raises `WorkerGone`, and `RemoteError` where the file does not come. Cancelled, it leaves no half of one.
        """
        ...

    async def wait_gone(self) -> str:
        """Wait until it has ended; return how, in one line. Cancelling changes nothing."""
        ...

    async def close(self, deadline_s: float) -> None:
        """End it and everything it started. Idempotent. Calls under way end in `WorkerGone`."""
        ...


class Reporting(Protocol):
    """A worker that keeps what it has to tell until it is asked."""

    name: str
    node: str

    @property
    def alive(self) -> bool:
        """Whether it is not known to have ended."""
        ...

    async def reports(self, received: int, deadline_s: float) -> bytes:
        """Return what it has to tell since item `received`; see `ray.outbox`.

        Raises `WorkerGone`, `RemoteError` while it cannot be reached, and `TimeoutError` after `deadline_s`.
        """
        ...


class Launcher(Protocol):
    """Starts workers. A worker's `name` says what it is given: ``engine-0``, ``learner-1``, ``environment-0``."""

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
    ) -> Worker:
        """Start a worker that holds what ``"package.module:function"`` makes of `settings`; return when it answers.

        `python` is the interpreter, by default the one that runs this. Raises `WorkerFailed`. Cancelled or failed, it
        leaves nothing behind.
        """
        ...

    async def connect(self) -> None:
        """Make sure that workers can be started. Idempotent.

        Raises `LauncherRefused` where they cannot. Cancelled or failed, it holds nothing afterwards.
        """
        ...

    def forget(self, path: str) -> None:
        """Let go of the copies of a file that nobody reaches for any more; see `Worker.reach`. Does not wait."""
        ...

    async def close(self) -> None:
        """Let go of what it holds, once all workers are closed. Idempotent."""
        ...

    def reporting(self) -> Iterable[Reporting]:
        """Return the workers, not known to have ended, whose reports are to be brought home."""
        ...


class LocalLauncher:
    """Starts processes of this machine. `gpus` are the numbers of those that workers are given, by name.

    A worker that is not in it sees the GPUs that this process sees.
    """

    def __init__(self, gpus: Mapping[str, Sequence[int]] = NO_GPUS) -> None:
        self._gpus = gpus

    def gpus_of(self, name: str) -> Sequence[int] | None:
        """Return what worker `name` is given; a learner rank that is alone may be called ``learner``."""
        return self._gpus.get(name, self._gpus.get(f"{name}-0"))

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
    ) -> Worker:
        """Start one; see `Launcher.start`."""
        gpus = self.gpus_of(name)
        worker = await WorkerProcess.start(
            target,
            settings,
            name=name,
            log_path=log_path,
            deadline_s=deadline_s,
            env={**env, **environment_of(gpus)},
            python=python,
        )
        worker.gpus = gpus
        return worker

    async def connect(self) -> None:
        """Do nothing: this machine is there."""

    def forget(self, path: str) -> None:
        """Do nothing: workers of this machine need no copies."""

    async def close(self) -> None:
        """Do nothing: each worker was closed."""

    def reporting(self) -> Iterable[Reporting]:
        """Return none: they write to files of this machine."""
        return ()


LOCAL = LocalLauncher()
