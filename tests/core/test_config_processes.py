"""Settings of engines and cluster that cannot be meant together."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from eventrain.core.config import RunConfig


def configured(**sections) -> RunConfig:
    """Return a small run's configuration with `sections` in it."""
    return RunConfig.model_validate(
        {
            "run": {"steps": 1},
            "model": {"path": "model"},
            "data": {"kind": "generated", "size": 100},
            "environment": {"kind": "number_hunt"},
            "scheduler": {"groups_per_step": 1},
            **sections,
        }
    )


URLS = ["http://10.0.0.7:8000"]
FOR_VLLM = "is for vLLM, but engine.kind = 'torch': use 'vllm' or 'vllm_server'"


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (
            {"engine": {"kind": "vllm", "urls": URLS}},
            "engine.urls names servers that run already, but engine.kind = 'vllm' starts its own: use 'vllm_server'",
        ),
        (
            {"engine": {"urls": URLS}},
            "engine.urls names servers that run already, but engine.kind = 'torch' starts its own: use 'vllm_server'",
        ),
        ({"engine": {"python": "python3"}}, f"engine.python {FOR_VLLM}"),
        ({"engine": {"tensor_parallel": 2}}, f"engine.tensor_parallel {FOR_VLLM}"),
        ({"engine": {"options": {"seed": 1}}}, f"engine.options {FOR_VLLM}"),
        ({"engine": {"api_key_env": "KEY"}}, f"engine.api_key_env {FOR_VLLM}"),
        ({"engine": {"tls_ca": "ca.pem"}}, f"engine.tls_ca {FOR_VLLM}"),
        (
            {"engine": {"kind": "vllm", "tensor_parallel": 2, "device": "cpu"}},
            "engine.tensor_parallel is 2, but engine.device = 'cpu': it spreads an engine over GPUs",
        ),
        (
            {"engine": {"kind": "vllm", "tensor_parallel": 2}, "cluster": {"engine_gpus": 1}},
            "cluster.engine_gpus is 1, but engine.tensor_parallel is 2: an engine needs a GPU for each part",
        ),
        (
            {"engine": {"kind": "vllm_server"}, "cluster": {"kind": "ray"}},
            (
                "engine.kind = 'vllm_server' without engine.urls starts servers on the controller's machine, which "
                "cluster.kind = 'ray' is not for: use 'vllm', or name servers that run already"
            ),
        ),
        (
            {"engine": {"kind": "vllm", "device": "cuda:1"}},
            (
                "engine.device is 'cuda:1', but engine.kind = 'vllm' takes the GPUs that the run gives it: use 'auto', "
                "and CUDA_VISIBLE_DEVICES for the run to choose them"
            ),
        ),
        (
            {"cluster": {"address": "auto"}},
            "cluster.address is 'auto', but cluster.kind = 'local' starts processes of this machine: use 'ray'",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(sections, line):
    """What would do nothing, or could not work, is said in one line."""
    with pytest.raises(ValidationError) as caught:
        configured(**sections)
    (problem,) = caught.value.errors()
    assert problem["msg"] == f"Value error, {line}"


@pytest.mark.parametrize(
    "sections",
    [
        {"engine": {"kind": "vllm_server", "urls": URLS}, "cluster": {"kind": "ray"}},
        {"engine": {"kind": "vllm", "tensor_parallel": 2, "python": "python3", "options": {"seed": 1}}},
        {"engine": {"kind": "vllm_server", "urls": URLS, "api_key_env": "KEY", "tls_ca": "ca.pem"}},
        {"engine": {"kind": "vllm", "tensor_parallel": 2}, "cluster": {"engine_gpus": 2}},
        {"cluster": {"kind": "ray", "address": "auto"}},
        {"cluster": {"placement": "colocated"}, "engine": {"device": "cpu"}},
    ],
)
def test_settings_that_go_together_are_taken(sections):
    """The neighbours of what is refused are not."""
    configured(**sections)
