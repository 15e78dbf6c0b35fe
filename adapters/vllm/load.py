"""vLLM's load, from its metrics."""

from __future__ import annotations

import re
from collections import defaultdict

from ...events.types import EngineSampled

_LINE = re.compile(r"^(vllm:\w+)(?:\{[^}]*\})? (\S+)")


def engine_load(metrics: str, engine: str) -> EngineSampled:
    """Return what `metrics` (Prometheus text) say of `engine`.

    Counts are added up where vLLM has several engines inside (data parallel); the use of the cache is that of the
    fullest. Raises ValueError, with one line, if these are no metrics of vLLM.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for line in metrics.splitlines():
        if match := _LINE.match(line):
            found[match[1].removesuffix("_total")].append(float(match[2]))
    if "vllm:num_requests_running" not in found:
        raise ValueError("its metrics have no vllm:num_requests_running")

    def total(name: str) -> int:
        return round(sum(found[f"vllm:{name}"]))

    return EngineSampled(
        engine=engine,
        running=total("num_requests_running"),
        waiting=total("num_requests_waiting"),
        kv_used=max(found["vllm:kv_cache_usage_perc"], default=0.0),
        preemptions=total("num_preemptions"),
        prompt_tokens=total("prompt_tokens"),
        cached_tokens=total("prompt_tokens_cached"),
        sampled_tokens=total("generation_tokens"),
    )
