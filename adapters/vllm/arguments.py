"""What vLLM is started with, for both kinds of engines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.config import EngineSection, RolloutSection
from ..wording import did_you_mean
from .backend import BACKEND, EXTENSION

_OURS = {
    "model": "model.path",
    "max_model_len": "rollout.context_tokens",
    "max_num_seqs": "engine.slots",
    "tensor_parallel_size": "engine.tensor_parallel",
    "gpu_memory_utilization": "engine.memory_share",
    "load_format": "",
    "skip_tokenizer_init": "",
    "logprobs_mode": "",
    "generation_config": "",
    "disable_log_stats": "",
    "worker_extension_cls": "",
    "weight_transfer_config": "",
}
"""Arguments that are not to be set in engine.options, with the setting that says them, if one does."""


BATCHED_MIN = 2048
"""Tokens of one forward pass, vLLM's own default."""


def engine_arguments(model_path: Path, section: EngineSection, rollout: RolloutSection) -> dict[str, Any]:
    """Return vLLM's engine arguments. Raises ValueError for an option that eventrain has to say itself.

    vLLM starts with dummy weights and is given the real ones through the update path before it serves. Log-probs are
    the processed ones: of the distribution that a token is sampled from. On CPUs nothing is compiled, which would take
    minutes, and numbers are 32 bits wide as in the learner.
    """
    for name in section.options:
        if name in _OURS:
            other = f"; it is said by {_OURS[name]}" if _OURS[name] else ""
            raise ValueError(f"engine.options.{name}: eventrain sets this argument of vLLM itself{other}")
    arguments: dict[str, Any] = {
        "model": str(model_path),
        "max_model_len": rollout.context_tokens,
        "max_num_seqs": section.slots,
        "tensor_parallel_size": section.tensor_parallel,
        "gpu_memory_utilization": section.memory_share,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "worker_extension_cls": EXTENSION,
        "weight_transfer_config": {"backend": BACKEND},
    }
    if section.tensor_parallel == 1:
        arguments["distributed_executor_backend"] = "uni"
    if section.device == "cpu":
        # A request with a seed whose prompt is computed in two parts kills vLLM 0.32 on a CPU: it takes back what it
        # sampled after the first one, and a CPU's generator cannot be turned back.
        whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(BATCHED_MIN, rollout.context_tokens)}
        arguments |= {"dtype": "float32", "enforce_eager": True, **whole}
    return arguments | section.options


def require_known(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ValueError, with one line, if one of `names` is not among the `known` arguments of vLLM."""
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"engine.options.{name} is no engine argument of vLLM{hint}")


def environment(section: EngineSection) -> Mapping[str, str]:
    """Return the environment variables of a vLLM process, to be laid over ours."""
    threads = str(section.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        # A fork would hold the channel to the controller open after its parent has died.
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
    }


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Return `arguments` as flags of vLLM's server."""
    flags: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return flags
