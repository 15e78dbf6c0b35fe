"""What vLLM is started with, and how its metrics are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventrain.adapters.vllm.arguments import command_line, engine_arguments, require_known
from eventrain.adapters.vllm.load import engine_load
from eventrain.core.config import EngineSection, RolloutSection

ROLLOUT = RolloutSection(context_tokens=512, max_tokens=32)
METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.2e+06
vllm:prompt_tokens_cached_total{engine="0",model_name="m"} 64.0
vllm:generation_tokens_total{engine="0",model_name="m"} 500.0
vllm:generation_tokens_total{engine="1",model_name="m"} 500.0
"""


def arguments(**section: Any) -> dict[str, Any]:
    """Return vLLM's arguments for the settings of an engine."""
    return engine_arguments(Path("/model"), EngineSection(kind="vllm", **section), ROLLOUT)


def test_settings_become_the_arguments_that_mean_the_same() -> None:
    """Context, slots, parallelism and memory, in vLLM's words."""
    given = arguments(slots=12, tensor_parallel=2, memory_share=0.5)
    assert (given["model"], given["max_model_len"], given["max_num_seqs"]) == ("/model", 512, 12)
    assert (given["tensor_parallel_size"], given["gpu_memory_utilization"]) == (2, 0.5)
    assert given["logprobs_mode"] == "processed_logprobs"
    assert "distributed_executor_backend" not in given, "with several GPUs that is vLLM's own choice"
    assert "dtype" not in given, "on GPUs it is the model's own"


def test_on_a_cpu_numbers_are_as_wide_as_in_the_learner() -> None:
    """And nothing is compiled, unless an option says otherwise."""
    given = arguments(device="cpu", options={"enforce_eager": False, "block_size": 32})
    assert (given["dtype"], given["enforce_eager"], given["block_size"]) == ("float32", False, 32)


@pytest.mark.parametrize(
    ("name", "where"), [("max_num_seqs", "; it is said by engine.slots"), ("load_format", "")]
)
def test_what_eventrain_says_itself_is_no_option(name: str, where: str) -> None:
    """Said twice, one of the two would be wrong."""
    with pytest.raises(ValueError, match="eventrain sets") as refused:
        arguments(options={name: 1})
    assert str(refused.value) == f"engine.options.{name}: eventrain sets this argument of vLLM itself{where}"


def test_an_argument_that_vllm_lacks_is_refused_with_the_nearest_one() -> None:
    """One line says which, and what may have been meant."""
    with pytest.raises(
        ValueError, match=r"engine\.options\.max_batched is no engine argument of vLLM"
    ) as refused:
        require_known(["dtype", "max_batched"], ["dtype", "max_batches"])
    assert str(refused.value).endswith("; did you mean 'max_batches'?")


def test_arguments_become_flags() -> None:
    """Truth values as vLLM's pairs of flags, structures as JSON."""
    flags = command_line({"max_model_len": 8, "enforce_eager": True, "enable_x": False, "some": {"a": [1]}})
    assert flags == ["--max-model-len", "8", "--enforce-eager", "--no-enable-x", "--some", '{"a": [1]}']


def test_load_is_added_up_over_the_engines_inside() -> None:
    """Counts are sums; the cache is as full as the fullest. Families that only begin alike are not counted."""
    load = engine_load(METRICS, "engine-3")
    assert (load.engine, load.running, load.waiting, load.kv_used) == ("engine-3", 7, 2, 0.5)
    assert (load.preemptions, load.prompt_tokens, load.cached_tokens, load.sampled_tokens) == (
        1,
        1_200_000,
        64,
        1000,
    )


def test_metrics_of_something_else_are_refused() -> None:
    """A page without vLLM's families says nothing of a load."""
    with pytest.raises(ValueError, match="no vllm:num_requests_running"):
        engine_load("process_cpu_seconds_total 3.0\n", "engine-0")
