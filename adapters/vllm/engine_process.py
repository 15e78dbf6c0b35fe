"""The inside of the process that hosts vLLM: the calls of `engine.ProcessLink`, answered by vLLM's AsyncLLM.

vLLM has a process of its own for its scheduler and workers; it ends with this one.
"""

from __future__ import annotations

import dataclasses
import json
import time
from array import array
from collections.abc import Mapping
from typing import Any

import vllm
from prometheus_client import generate_latest
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.prometheus import get_prometheus_registry

from ...core.ports import EngineError, EngineGone
from .arguments import require_known
from .versions import require_supported

SHUTDOWN_S = 2.0
"""For vLLM's processes to end by themselves; nothing in them is worth more."""


class VllmRefused(Exception):
    """vLLM does not take this request."""


class EngineProcess:
    """Answers the calls of `engine.ProcessLink`. Serves after `load`."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        require_supported(vllm.__version__, "the installed vLLM")
        require_known(arguments, [field.name for field in dataclasses.fields(AsyncEngineArgs)])
        self._arguments = dict(arguments)
        self._llm: AsyncLLM | None = None

    async def load(self) -> None:
        """Start vLLM, with weights that mean nothing yet. Blocks this process's loop: there is nothing else to do."""
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._arguments))

    async def generate(
        self, request: str, prompt: bytes, sampling: dict[str, Any], trace_parent: str
    ) -> dict[str, Any]:
        """Sample one completion. Cancelling aborts it."""
        arrived_s = time.monotonic()
        last: RequestOutput | None = None
        try:
            async for output in self._vllm.generate(
                {"prompt_token_ids": array("i", prompt).tolist()},
                # Nobody reads an answer before it is whole; token by token it would keep this loop busy.
                SamplingParams(**sampling, output_kind=RequestOutputKind.FINAL_ONLY),
                request,
                trace_headers={"traceparent": trace_parent} if trace_parent else None,
            ):
                last = output
        except VLLMClientError as error:
            raise VllmRefused(str(error)) from error
        except EngineDeadError as error:
            raise EngineGone(_one_line(error)) from error
        except Exception as error:
            raise EngineError(_one_line(error.__cause__ or error)) from error
        assert last is not None, "vLLM ends a request with an output"
        return _answer(last, arrived_s)

    async def pause(self, mode: str, clear_cache: bool) -> None:
        """Stop scheduling."""
        await self._vllm.pause_generation(mode=mode, clear_cache=clear_cache)

    async def resume(self) -> None:
        """Schedule again."""
        await self._vllm.resume_generation()

    async def workers(self, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Call a method of `transfer.UpdateExtension` in all workers."""
        answers: list[dict[str, Any]] = await self._vllm.collective_rpc(method, args=(json.dumps(request),))
        return answers

    async def set_version(self, version: str) -> None:
        """Name the weights' version."""
        await self._vllm.update_weight_version(version)

    async def drop_cache(self) -> bool:
        """Forget all keys and values."""
        return bool(await self._vllm.reset_prefix_cache(reset_running_requests=True))

    async def metrics(self) -> str:
        """Return vLLM's metrics as text."""
        return generate_latest(get_prometheus_registry()).decode()

    async def check_alive(self) -> None:
        """Raise `EngineGone` if vLLM has found that it is dead."""
        if self._vllm.errored:
            raise EngineGone("vLLM's engine process has died")

    async def close(self) -> None:
        """End vLLM's own processes, so that what they hold is free when this one has ended."""
        if self._llm is not None:
            self._llm.shutdown(timeout=SHUTDOWN_S)

    @property
    def _vllm(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineGone("vLLM is not loaded")
        return self._llm


def make(arguments: Mapping[str, Any]) -> EngineProcess:
    """Return the engine for vLLM's engine `arguments`. Called by `worker_serve`."""
    return EngineProcess(arguments)


def _answer(output: RequestOutput, arrived_s: float) -> dict[str, Any]:
    sampled = output.outputs[0]
    tokens = list(sampled.token_ids)
    stats = output.metrics
    waited_s = stats.scheduled_ts - stats.queued_ts if stats is not None and stats.scheduled_ts else 0.0
    return {
        "tokens": array("i", tokens).tobytes(),
        "logprobs": array(
            "d", [at[token].logprob for token, at in zip(tokens, sampled.logprobs or [], strict=True)]
        ).tobytes(),
        "version_spans": [
            [span.version, span.end - span.start] for span in sampled.weight_versions or []
        ],
        "reason": sampled.finish_reason,
        "queue_s": max(0.0, waited_s),
        "engine_s": time.monotonic() - arrived_s,
    }


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
