"""The inside of an engine's process: requests come in on the event loop, a thread of its own decodes.

The thread is the only one that touches the decoder. Between two steps it runs whatever was asked of it since, in
order of arrival: requests that join, aborts, new weights, pause and resume. So a batch is a function of the order
of arrivals, and nobody needs a lock.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from transformers import PreTrainedConfig

from ...core.ports import EngineError, PromptRefused, PromptTooLong
from ..weights.update import Updates
from .decoding import Decoder
from .proving import prove
from .rows import Finished, Sequence
from .weights import WeightsUnusable, model_of_folder, resolve_device, tensors_of

NO_VERSION = -1
"""Of the random weights that a model has until `EngineProcess.begin`."""
FIRST_LEASE = -1
"""Of the first weights: older than any lease of a run."""


class EngineSettings(msgspec.Struct, frozen=True):
    """What an engine's process is started with."""

    model_path: str
    device: str
    threads: int
    slots: int
    context_tokens: int
    keep_cache: bool


class EngineProcess:
    """Answers the calls of `engine.TorchEngine`. Made without weights; serves after `begin`."""

    def __init__(self, settings: EngineSettings) -> None:
        torch.set_num_threads(settings.threads)
        device = resolve_device(settings.device)
        model = model_of_folder(Path(settings.model_path), device)
        config = model.config.get_text_config()
        self._vocabulary: int = config.vocab_size
        self._context = min(settings.context_tokens, _context_of(config, settings.context_tokens))
        self._slots = settings.slots
        self._device = str(device)
        make_decoder = partial(Decoder, model, keep_cache=settings.keep_cache, clock=time.monotonic)
        self._prove = partial(prove, model, make_decoder, self._context)
        self._decoder = make_decoder(version=NO_VERSION, slots=settings.slots, context_tokens=self._context)
        self._state: Literal["running", "draining", "paused"] = "running"
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._answers: dict[int, asyncio.Future[Finished]] = {}
        self._drained: list[Callable[[], object]] = []
        self._updates = Updates()
        self._tensors: dict[str, torch.Tensor] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(
            target=self._decode, args=(settings.threads,), name="decode", daemon=True
        )
        self._thread.start()

    # Calls

    async def begin(self, weights: str, version: int) -> dict[str, Any]:
        """Take the first weights, and prove that the model is served rightly.

        Return what `EngineInfo` holds, and the receipt.
        """
        await self.begin_update(weights, version, FIRST_LEASE)
        for bucket in range(self._updates.buckets):
            await self.transfer(bucket, FIRST_LEASE)
        receipt = await self.finish_update(FIRST_LEASE)
        await self._between_steps(self._prove)
        info = {"context_tokens": self._context, "slots": self._slots, "device": self._device}
        return {"info": info, "receipt": receipt}

    async def occupancy(self) -> dict[str, int]:
        """Return how many sequences hold a slot and how many wait for one, between two steps."""
        counted: dict[str, int] = await self._between_steps(
            lambda: {"active": self._decoder.active, "waiting": self._decoder.waiting}
        )
        return counted

    async def generate(
        self,
        request: str,
        prompt: bytes,
        max_tokens: int,
        temperature: float,
        top_p: float,
        stop: list[int],
        seed: int,
    ) -> dict[str, Any]:
        """Sample one completion. Cancelling frees its slot before the next step."""
        arrived_s = time.monotonic()
        prompt_ids = np.frombuffer(prompt, np.int32).astype(np.int64)
        self._refuse(prompt_ids, max_tokens)
        sequence = Sequence(request, prompt_ids, max_tokens, temperature, top_p, tuple(stop), seed, arrived_s)
        self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[Finished] = self._loop.create_future()
        self._answers[id(sequence)] = answer
        self._commands.put(partial(self._decoder.add, sequence))
        try:
            finished = await answer
        except asyncio.CancelledError:
            self._commands.put(partial(self._decoder.abort, sequence))
            raise
        finally:
            del self._answers[id(sequence)]
        if finished.error:
            raise EngineError(finished.error)
        return {
            "tokens": finished.tokens.tobytes(),
            "logprobs": finished.logprobs.tobytes(),
            "version_spans": finished.version_spans,
            "reason": finished.reason,
            "queue_s": max(0.0, sequence.started_s - arrived_s),
            "engine_s": time.monotonic() - arrived_s,
        }

    async def pause(self, mode: Literal["drain", "pause", "abort"]) -> None:
        """Stop decoding; ``drain`` returns once every slot is empty, or the engine is paused or resumed meanwhile.

        ``abort`` ends what holds a slot, with the tokens so far; what waits for one goes on waiting. Cancelled, it
        stays paused or draining.
        """
        if mode != "drain":
            await self._between_steps(partial(self._enter, "paused"))
            if mode == "abort":
                self._settle(await self._between_steps(self._decoder.cut_off))
            return
        loop = asyncio.get_running_loop()
        drained = asyncio.Event()
        self._commands.put(partial(self._drain, lambda: loop.call_soon_threadsafe(drained.set)))
        await drained.wait()

    async def resume(self) -> None:
        """Decode again."""
        await self._between_steps(partial(self._enter, "running"))

    async def fetch(self, weights: str) -> None:
        """Read and verify the file of new weights while decoding goes on."""
        await asyncio.to_thread(self._updates.fetch, Path(weights))

    async def begin_update(self, weights: str, version: int, lease: int) -> None:
        """Open the file of the new weights."""
        self._updates.begin(Path(weights), version, lease)
        self._tensors.clear()

    async def transfer(self, bucket: int, lease: int) -> None:
        """Read a bucket while decoding goes on."""
        arrived = await asyncio.to_thread(self._updates.transfer, bucket, lease)
        if arrived is not None:
            self._tensors |= tensors_of(arrived.bucket, arrived.data)

    async def finish_update(self, lease: int) -> dict[str, Any]:
        """Exchange the weights between two steps, and return what `Receipt` holds."""
        receipt, new = self._updates.finish(lease)
        if new:
            tensors, self._tensors = self._tensors, {}
            try:
                await self._between_steps(partial(self._decoder.load, tensors, receipt.version))
            except WeightsUnusable as error:
                self._updates.fail()
                raise EngineError(str(error)) from error
            self._updates.close()
        return {"version": receipt.version, "tensors": receipt.tensors, "digest": receipt.digest}

    def _refuse(self, prompt_ids: np.ndarray[Any, np.dtype[np.int64]], max_tokens: int) -> None:
        if len(prompt_ids) >= self._context:
            raise PromptTooLong(f"prompt has {len(prompt_ids)} tokens, the engine's context {self._context}")
        if len(prompt_ids) == 0:
            raise PromptRefused("prompt is empty")
        if prompt_ids.min() < 0 or prompt_ids.max() >= self._vocabulary:
            raise PromptRefused(f"prompt has a token id outside 0 to {self._vocabulary - 1}")
        if max_tokens < 1:
            raise PromptRefused(f"max_tokens must be >= 1, not {max_tokens}")

    async def _between_steps(self, function: Callable[[], Any]) -> Any:
        """Run `function` in the decoding thread, between two steps, and return or raise what it does."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._commands.put(partial(_report, function, loop, done))
        return await done

    # The decoding thread

    def _decode(self, threads: int) -> None:
        torch.set_num_threads(threads)  # OpenMP counts per calling thread
        decoder = self._decoder
        while True:
            busy = decoder.active > 0 or (decoder.waiting > 0 and self._state == "running")
            self._obey(wait=not busy or self._state == "paused")
            if self._state == "paused":
                continue
            try:
                self._deliver(decoder.step(admit=self._state == "running"))
            except Exception as error:  # noqa: BLE001 - reported by every request that it ended
                traceback.print_exc()
                message = f"{type(error).__name__}: {error}"
                self._deliver([_failed(sequence, message) for sequence in decoder.drop_active()])
            if self._state == "draining" and decoder.active == 0:
                self._enter("paused")

    def _obey(self, *, wait: bool) -> None:
        """Run the commands that have come, after waiting for one if there is nothing else to do."""
        while wait or not self._commands.empty():
            self._commands.get()()
            wait = False

    def _enter(self, state: Literal["running", "paused"]) -> None:
        self._state = state
        drained, self._drained = self._drained, []
        for tell in drained:
            tell()

    def _drain(self, tell: Callable[[], object]) -> None:
        self._drained.append(tell)
        if self._state == "running":
            self._state = "draining"
        if self._state == "paused" or self._decoder.active == 0:
            self._enter("paused")

    def _deliver(self, finished: list[Finished]) -> None:
        if finished and self._loop is not None:
            self._loop.call_soon_threadsafe(self._settle, finished)

    def _settle(self, finished: list[Finished]) -> None:
        for one in finished:
            answer = self._answers.get(id(one.sequence))
            if answer is not None and not answer.done():
                answer.set_result(one)


def make(settings: Mapping[str, Any]) -> EngineProcess:
    """Return the engine for `settings`, an `EngineSettings` as a map. Called by `worker_serve`."""
    return EngineProcess(msgspec.convert(settings, EngineSettings))


def _report(function: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any]) -> None:
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - raised again where it is awaited
        loop.call_soon_threadsafe(_settle_error, done, error)
    else:
        loop.call_soon_threadsafe(_settle_result, done, result)


def _settle_result(done: asyncio.Future[Any], result: Any) -> None:
    if not done.done():
        done.set_result(result)


def _settle_error(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


def _failed(sequence: Sequence, message: str) -> Finished:
    return Finished(sequence, np.empty(0, np.int32), np.empty(0, np.float32), (), "stop", message)


def _context_of(config: PreTrainedConfig, default: int) -> int:
    """Return how many tokens the model was built for."""
    return int(getattr(config, "max_position_embeddings", None) or default)
