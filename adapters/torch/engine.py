"""The local inference engine: the `Engine` port over a process that decodes with continuous batching.

This is the parent's side and imports neither torch nor numpy; the work is done in `engine_process`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...core.ports import (
    EngineError,
    EngineGone,
    EngineInfo,
    GenerateRequest,
    Generation,
    PortError,
    PromptRefused,
    PromptTooLong,
    Receipt,
    SyncMode,
    Weights,
)
from ...core.weight_update import differs
from ..engine_setup import EngineSetup, starting
from ..gpus import known_device
from ..launching import LOCAL, Launcher, Worker
from ..worker import RemoteError, WorkerFailed, WorkerGone

TARGET = "eventrain.adapters.torch.engine_process:make"

_TYPED: dict[str, type[PortError]] = {
    "PromptTooLong": PromptTooLong,
    "PromptRefused": PromptRefused,
    "EngineError": EngineError,
}


class TorchEngine:
    """One engine in a worker of its own, which `launcher` starts."""

    def __init__(self, setup: EngineSetup, launcher: Launcher = LOCAL) -> None:
        self.name = setup.name
        self._setup = setup
        self._launcher = launcher
        self._worker: Worker | None = None
        self._fresh = False
        """Whether the process is prepared and has no weights yet."""

    @property
    def pid(self) -> int | None:
        """The process id, or None before the first start and after close."""
        return self._worker.pid if self._worker is not None else None

    async def prepare(self) -> None:
        """Start the process and build the model, which needs no weights; see `Engine.prepare`.

        Raises `EngineGone`. Cancelled or failed, it leaves no process behind.
        """
        await self.close()
        setup, section = self._setup, self._setup.section
        threads = str(section.threads)
        settings = {
            "model_path": str(setup.model_path),
            "device": section.device,
            "threads": section.threads,
            "slots": section.slots,
            "context_tokens": setup.rollout.context_tokens,
            "keep_cache": section.kv_after_sync == "keep",
        }
        try:
            self._worker = await self._launcher.start(
                TARGET,
                settings,
                name=self.name,
                log_path=setup.log_path,
                deadline_s=setup.deadlines.start_s,
                env={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"},
            )
        except WorkerFailed as error:
            raise EngineGone(str(error)) from error
        self._fresh = True

    async def start(self, weights: Weights) -> EngineInfo:
        """Serve with these weights, in a prepared process or in a new one; see `Engine.start`.

        Raises `EngineGone`, and then, as when it is cancelled, leaves no process behind.
        """
        if self._worker is None or not self._fresh or not self._worker.alive:
            await self.prepare()
        self._fresh = False
        async with starting(self.name, self._setup.deadlines.start_s, self.close):
            path = await self._reached(weights)
            begun = await self._call("begin", weights=path, version=weights.version)
            _require_agreement(self.name, weights, Receipt(**begun["receipt"]))
        assert self._worker is not None, "it has answered"
        info = {**begun["info"], "device": known_device(self._worker.gpus, begun["info"]["device"])}
        return EngineInfo(**info, node=self._worker.node)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion; see `Engine.generate`. Cancelling frees its slot before the next step."""
        answer = await self._call(
            "generate",
            request=request.request,
            prompt=array("i", request.prompt_ids).tobytes(),
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            stop=list(request.stop_token_ids),
            seed=request.seed,
        )
        return Generation(
            token_ids=array("i", answer["tokens"]).tolist(),
            logprobs=array("f", answer["logprobs"]).tolist(),
            version_spans=tuple((version, count) for version, count in answer["version_spans"]),
            finish_reason=answer["reason"],
            queue_s=answer["queue_s"],
            engine_s=answer["engine_s"],
        )

    async def pause(self, mode: SyncMode) -> None:
        """Stop decoding; see `Engine.pause`. ``in_flight`` does nothing: an update needs no pause here.

        Requests that have no slot yet wait for `resume` in every mode; ``drain`` does not wait for them. Cancelled,
        the engine stays paused (or goes on draining) until `resume`.
        """
        if mode != "in_flight":
            await self._call("pause", mode=mode)

    async def fetch(self, weights: Weights) -> None:
        """Have the file of `weights` read and verified by the worker; see `Engine.fetch`."""
        await self._call("fetch", weights=await self._reached(weights))

    async def begin_update(self, weights: Weights, lease: int) -> None:
        """Open the file of the new weights; see `Engine`, also for the next two. Decoding goes on unless paused."""
        path = await self._reached(weights)
        await self._call("begin_update", weights=path, version=weights.version, lease=lease)

    async def transfer(self, bucket: int, lease: int) -> None:
        """Read one bucket, beside the decoding. Raises `EngineError` for a damaged one."""
        await self._call("transfer", bucket=bucket, lease=lease)

    async def finish_update(self, lease: int) -> Receipt:
        """Take the new weights between two steps, running or paused.

        Raises `EngineError` for weights that are not of this model: the engine then goes on with what it had.
        Cancelled, it may or may not have taken them.
        """
        return Receipt(**await self._call("finish_update", lease=lease))

    async def resume(self) -> None:
        """Decode again after `pause`."""
        await self._call("resume")

    async def occupancy(self) -> tuple[int, int]:
        """Return how many requests hold a slot, and how many wait for one."""
        answer = await self._call("occupancy")
        return answer["active"], answer["waiting"]

    async def close(self) -> None:
        """End the process. Requests in flight end in `EngineGone`. Idempotent."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close(self._setup.deadlines.close_s)

    async def _reached(self, weights: Weights) -> str:
        with _typed():
            return await self._started().reach(weights.path)

    async def _call(self, method: str, **params: Any) -> Any:
        with _typed():
            return await self._started().call(method, **params)

    def _started(self) -> Worker:
        if self._worker is None or self._fresh:
            raise EngineGone(f"{self.name} is not started")
        return self._worker


def _require_agreement(name: str, weights: Weights, receipt: Receipt) -> None:
    difference = differs(weights, receipt)
    if difference:
        raise EngineGone(f"{name} took other weights than were published: {difference}")


@contextmanager
def _typed() -> Iterator[None]:
    """Raise what the worker says, or that it is gone, as an error of this port."""
    try:
        yield
    except WorkerGone as error:
        raise EngineGone(str(error)) from error
    except RemoteError as error:
        kind = _TYPED.get(error.kind)
        raise (kind(error.message) if kind is not None else EngineError(str(error))) from error
