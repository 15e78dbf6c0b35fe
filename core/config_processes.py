"""What cannot be said together of the processes of a run: settings that would do nothing, or could not work."""

from __future__ import annotations

from .config_sections import ClusterSection, EngineSection


def require_sensible_processes(engine: EngineSection, cluster: ClusterSection) -> None:
    """Raise ValueError, with one line, for the first setting that would do nothing or cannot work."""
    _of_the_kind(engine)
    if engine.tensor_parallel > 1 and engine.device == "cpu":
        raise ValueError(
            f"engine.tensor_parallel is {engine.tensor_parallel}, but engine.device = 'cpu': it spreads an engine over "
            "GPUs"
        )
    if cluster.engine_gpus is not None and cluster.engine_gpus < engine.tensor_parallel > 1:
        raise ValueError(
            f"cluster.engine_gpus is {cluster.engine_gpus}, but engine.tensor_parallel is {engine.tensor_parallel}: "
            "an engine needs a GPU for each part"
        )
    if cluster.kind == "ray" and engine.kind == "vllm_server" and not engine.urls:
        raise ValueError(
            "engine.kind = 'vllm_server' without engine.urls starts servers on the controller's machine, which "
            "cluster.kind = 'ray' is not for: use 'vllm', or name servers that run already"
        )
    if engine.kind != "torch" and engine.device.startswith("cuda:"):
        raise ValueError(
            f"engine.device is '{engine.device}', but engine.kind = '{engine.kind}' takes the GPUs that the run gives "
            "it: use 'auto', and CUDA_VISIBLE_DEVICES for the run to choose them"
        )
    if cluster.address and cluster.kind == "local":
        raise ValueError(
            f"cluster.address is '{cluster.address}', but cluster.kind = 'local' starts processes of this machine: "
            "use 'ray'"
        )


def _of_the_kind(engine: EngineSection) -> None:
    if engine.urls and engine.kind != "vllm_server":
        raise ValueError(
            f"engine.urls names servers that run already, but engine.kind = '{engine.kind}' starts its own: use "
            "'vllm_server'"
        )
    if engine.kind != "torch":
        return
    used = {
        "python": engine.python is not None,
        "tensor_parallel": engine.tensor_parallel > 1,
        "options": bool(engine.options),
        "api_key_env": engine.api_key_env is not None,
        "tls_ca": engine.tls_ca is not None,
    }
    for key, is_set in used.items():
        if is_set:
            raise ValueError(f"engine.{key} is for vLLM, but engine.kind = 'torch': use 'vllm' or 'vllm_server'")
