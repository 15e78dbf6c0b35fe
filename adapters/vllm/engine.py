"""The engine ``kind = "vllm"``: vLLM in processes that belong to this run.

This is the controller's side and imports neither torch nor vLLM, which may live in an environment of its own.
"""

from __future__ import annotations

import asyncio
from array import array
from typing import Any, NoReturn

from ...core.ports import (
    EngineError,
    EngineGone,
    EngineInfo,
    GenerateRequest,
    Generation,
    Weights,
)
from ..engine_setup import EngineSetup
from ..launching import Launcher, Worker
from ..worker import RemoteError, WorkerFailed, WorkerGone
from .arguments import environment
from .link import PauseMode
from .linked import LinkedEngine
from .ownership import version_named
from .requests import Bounds, sampling

WORKER_SHARE = 0.9
"""Of a start's deadline, for the worker alone: whoever asked for the start is to hear what took too long."""
TARGET = "eventrain.adapters.vllm.engine_process:make"


class VllmEngine(LinkedEngine):
    """vLLM in a worker that `launcher` starts with the interpreter `section.python`; its output goes to `log_path`."""

    def __init__(self, setup: EngineSetup, launcher: Launcher) -> None:
        super().__init__(setup)
        self._launcher = launcher
        self._prepared: ProcessLink | None = None
        self.pid: int | None = None
        """Process of the worker that was started last, where that is one of this machine."""

    async def prepare(self) -> None:
        """Start the process and vLLM in it, with dummy weights; see `Engine.prepare`.

        Raises `EngineGone`. Cancelled or failed, it leaves no process behind.
        """
        await self.close()
        section, limit_s = self._setup.section, self._setup.deadlines.start_s
        try:
            worker = await self._launcher.start(
                TARGET,
                self._arguments,
                name=self.name,
                log_path=self._setup.log_path,
                deadline_s=limit_s * WORKER_SHARE,
                env=environment(section),
                python=section.python,
            )
        except WorkerFailed as error:
            raise EngineGone(str(error)) from error
        self._prepared = ProcessLink(worker, self._setup.deadlines.close_s)
        self.pid = worker.pid
        self._gpus = worker.gpus
        try:
            async with asyncio.timeout(limit_s):
                await self._prepared.load()
        except TimeoutError as error:
            await self.close()
            raise EngineGone(f"{self.name}: vLLM was not up within {limit_s:g} s") from error
        except EngineError as error:
            await self.close()
            raise EngineGone(f"{self.name}: vLLM did not start: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def start(self, weights: Weights) -> EngineInfo:
        """Serve `weights`, in a prepared process or in a new one; see `Engine.start`.

        Raises `EngineGone`, and then, as when it is cancelled, leaves no process behind.
        """
        if self._prepared is None or not self._prepared.alive:
            await self.prepare()
        link, self._prepared = self._prepared, None
        assert link is not None, "prepare() has made it"
        return await self._taken_up(link, weights)

    async def close(self) -> None:
        """End the processes. Requests in flight end in `EngineGone`. Idempotent."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await prepared.close()
        await super().close()


class ProcessLink:
    """A `Link` to vLLM in a worker."""

    def __init__(self, worker: Worker, close_s: float) -> None:
        self._worker = worker
        self._close_s = close_s
        self.bounds = Bounds()
        self.owner = ""

    @property
    def alive(self) -> bool:
        """Whether the worker is not known to have ended."""
        return self._worker.alive

    async def load(self) -> None:
        """Start vLLM in the worker."""
        await self._call("load")

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion; see `Link`."""
        self.bounds.check(request)
        try:
            answer = await self._worker.call(
                "generate",
                request=request.request,
                prompt=array("i", request.prompt_ids).tobytes(),
                sampling=sampling(request),
                trace_parent=request.trace_parent,
            )
        except WorkerGone as error:
            raise EngineGone(str(error)) from error
        except RemoteError as error:
            if error.kind == "VllmRefused":
                raise self.bounds.refusal(error.message, request) from error
            _raise_typed(error)
        return Generation(
            token_ids=array("i", answer["tokens"]).tolist(),
            logprobs=array("d", answer["logprobs"]).tolist(),
            version_spans=tuple((version_named(name, self.owner), count) for name, count in answer["version_spans"]),
            finish_reason=answer["reason"],
            queue_s=answer["queue_s"],
            engine_s=answer["engine_s"],
        )

    async def reach(self, path: str) -> str:
        """Return where the worker's machine has a file."""
        try:
            return await self._worker.reach(path)
        except WorkerGone as error:
            raise EngineGone(str(error)) from error
        except RemoteError as error:
            raise EngineError(error.message) from error

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Stop scheduling."""
        await self._call("pause", mode=mode, clear_cache=clear_cache)

    async def resume(self) -> None:
        """Schedule again."""
        await self._call("resume")

    async def workers(self, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Call vLLM's workers."""
        answers: list[dict[str, Any]] = await self._call("workers", method=method, request=request)
        return answers

    async def set_version(self, version: str) -> None:
        """Name the weights' version."""
        await self._call("set_version", version=version)

    async def drop_cache(self) -> bool:
        """Forget all keys and values."""
        return bool(await self._call("drop_cache"))

    async def metrics(self) -> str:
        """Return vLLM's metrics."""
        return str(await self._call("metrics"))

    async def check_alive(self) -> None:
        """Raise `EngineGone` if the worker or vLLM in it is dead."""
        await self._call("check_alive")

    async def close(self) -> None:
        """End the worker."""
        await self._worker.close(self._close_s)

    async def _call(self, method: str, /, **params: Any) -> Any:
        try:
            return await self._worker.call(method, **params)
        except WorkerGone as error:
            raise EngineGone(str(error)) from error
        except RemoteError as error:
            _raise_typed(error)


def _raise_typed(error: RemoteError) -> NoReturn:
    if error.kind in ("EngineGone", "EngineDeadError"):
        raise EngineGone(error.message) from error
    raise EngineError(error.message if error.kind == "EngineError" else str(error)) from error
