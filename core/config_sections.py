"""The sections of a configuration that stand for themselves: processes, deadlines, failures, log and watchdog.

`config` has the others, what has to fit together, and the whole.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

T = TypeVar("T")


def _as_tuple(value: Any) -> Any:
    """Return what TOML and JSON have instead of a tuple as one: where types are strict, a list is none."""
    return tuple(value) if isinstance(value, list) else value


_URL = r"^https?://[^/]+(/.*)?$"
Several = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]
"""Any number of values; a list in a file."""


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


SyncModeName = Literal["drain", "pause", "abort", "in_flight"]


class LearnerSection(Section):
    """The optimizer and where it runs."""

    kind: Literal["torch"] = Field("torch", description="PyTorch, in a process of its own for each rank.")
    ranks: int = Field(
        1,
        ge=1,
        description="Processes that share the weights and each batch (FSDP2); with NCCL on GPUs, with gloo on CPUs.",
    )
    bucket_bytes: int = Field(
        256 * 2**20, ge=1, description="Weights are gathered and handed to the engines in parts of about this size."
    )
    weights_folder: str | None = Field(
        None,
        description="Folder for weights on their way to the engines, such as /dev/shm; default: in the run's folder. "
        "Engines of this machine and servers at engine.urls have to see it. It is emptied when the run ends.",
    )
    lr: float = Field(1e-6, gt=0, description="Peak learning rate of AdamW.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="After the warm-up.")
    weight_decay: float = Field(0.0, ge=0, description="Of AdamW; decoupled from the gradient.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of AdamW's mean of gradients.")
    beta2: float = Field(0.95, ge=0, lt=1, description="Decay of AdamW's mean of squared gradients.")
    grad_clip: float = Field(1.0, gt=0, description="Maximum norm of the gradient.")
    micro_batch_tokens: int = Field(16384, ge=1, description="Padded tokens of one forward pass at most.")
    threads: int = Field(1, ge=1, description="CPU threads of the learner process.")
    device: str = Field("auto", description="'auto', 'cpu', 'cuda', 'cuda:1', ...")


class EngineSection(Section):
    """The inference engines."""

    kind: Literal["torch", "vllm", "vllm_server"] = Field(
        "torch",
        description="'torch': PyTorch, for small models. 'vllm': vLLM in processes that belong to this run. "
        "'vllm_server': vLLM behind its HTTP server, at engine.urls or started by this run.",
    )
    count: int = Field(1, ge=1, description="Engines, each in a process of its own.")
    urls: Several[Annotated[str, Field(pattern=_URL, examples=["http://10.0.0.7:8000"])]] = Field(
        (),
        description="vLLM servers that run already, one engine each, for 'vllm_server'; default: engine.count servers "
        "are started.",
    )
    python: str | None = Field(
        None,
        description="Python interpreter of the environment in which vLLM is installed, with eventrain beside it; a "
        "relative path starts where the command is run; default: the one that runs this.",
    )
    tensor_parallel: int = Field(1, ge=1, description="GPUs that one vLLM engine is spread over.")
    memory_share: float = Field(0.85, gt=0, lt=1, description="Of each GPU that vLLM may use.")
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Handed to vLLM: engine arguments by their names, such as { max_num_batched_tokens = 8192 }.",
    )
    api_key_env: str | None = Field(
        None, description="Environment variable that holds the key of the servers at engine.urls."
    )
    tls_ca: str | None = Field(
        None,
        description="PEM file of the authority that signed the certificates of engine.urls; a relative path starts "
        "where the command is run.",
    )
    slots: int = Field(32, ge=1, description="Requests that one engine decodes at the same time.")
    threads: int = Field(1, ge=1, description="CPU threads of each engine process.")
    device: str = Field("auto", description="'auto', 'cpu', 'cuda', 'cuda:1', ...")
    sync_mode: SyncModeName = Field(
        "in_flight",
        description="How engines take new weights: after what is in flight ('drain'), around it ('pause'), in its "
        "place, to be taken up again ('abort'), or through it ('in_flight').",
    )
    sync_attempts: int = Field(
        2, ge=1, description="Times that an engine is given the same weights before it counts as lost."
    )
    kv_after_sync: Literal["recompute", "keep"] = Field(
        "recompute", description="What happens to the KV cache of requests in flight when weights change."
    )
    restarts_max: int = Field(2, ge=0, description="Restarts of each engine in a run.")

    @property
    def engines(self) -> int:
        """How many engines there are: the servers that run already, or those that are to be started."""
        return len(self.urls) or self.count


class NodesSection(Section):
    """Machines of one kind, for `eventrain plan` where they are not at hand."""

    count: int = Field(1, ge=1, description="How many there are.")
    cpus: float = Field(gt=0, description="CPU cores of each.")
    gpus: int = Field(0, ge=0, description="GPUs of each.")
    memory_gib: float = Field(gt=0, description="Memory of each, in GiB.")
    gpu_memory_gib: float = Field(0, ge=0, description="Memory of each GPU, in GiB.")


class ClusterSection(Section):
    """Where engines, learner ranks and environment workers run."""

    kind: Literal["local", "ray"] = Field(
        "local", description="'local': processes of this machine. 'ray': actors of a Ray cluster."
    )
    address: str = Field(
        "",
        description="Of the Ray cluster, such as '10.0.0.1:6379', or 'auto'; default: a Ray of its own, on this "
        "machine.",
    )
    placement: Literal["auto", "split", "colocated"] = Field(
        "auto",
        description="'split': engines and learner ranks have GPUs of their own. 'colocated': a learner rank shares a "
        "GPU with an engine. 'auto': 'split' if there are GPUs enough, else 'colocated'.",
    )
    spread: Literal["pack", "spread"] = Field(
        "pack", description="'pack' uses as few machines as can be, 'spread' as many."
    )
    engine_cpus: float = Field(1, ge=0, description="CPU cores that each engine is given.")
    engine_gpus: int | None = Field(
        None, ge=0, description="GPUs that each engine is given; default: engine.tensor_parallel, none on CPUs."
    )
    learner_cpus: float = Field(1, ge=0, description="CPU cores that each learner rank is given.")
    learner_gpus: int | None = Field(
        None, ge=0, le=1, description="GPUs that each learner rank is given; default: 1, none on CPUs."
    )
    environment_cpus: float = Field(1, ge=0, description="CPU cores that each environment worker is given.")
    connect_s: float = Field(60, gt=0, description="The Ray cluster's first answer, and the placement.")
    nodes: Several[NodesSection] = Field(
        (), description="Machines that `eventrain plan` reckons with; default: those that are there."
    )


class EvalSection(Section):
    """Evaluation on held-out items."""

    every_steps: int = Field(0, ge=0, description="0: never.")
    prompts: int = Field(32, ge=1, description="Items per evaluation, one trajectory each.")
    temperature: float = Field(1.0, gt=0, description="Of evaluation rollouts.")
    at_end: bool = Field(True, description="Also after the last step, if evaluations are on.")
    seed_offset: int = Field(1_000_003, ge=1, description="Added to run.seed for generated evaluation items.")


class CheckpointSection(Section):
    """When weights and optimizer are saved."""

    every_steps: int = Field(0, ge=0, description="0: only at the end.")
    at_end: bool = Field(True, description="After the last step, and when the run is interrupted.")
    keep: int = Field(2, ge=1, description="Committed checkpoints kept.")


class DeadlineSection(Section):
    """How long each outside effect may take, in seconds. Its expiry is an event."""

    start_s: float = Field(300, gt=0, description="An engine or the learner until it is up.")
    llm_call_s: float = Field(600, gt=0, description="One completion, queue included.")
    env_reset_s: float = Field(60, gt=0, description="An environment's opening messages.")
    env_step_s: float = Field(60, gt=0, description="An environment's answer to one turn.")
    reward_s: float = Field(60, gt=0, description="The reward of one trajectory.")
    train_step_s: float = Field(3600, gt=0, description="One optimizer step.")
    publish_s: float = Field(600, gt=0, description="Writing weights for the engines.")
    weight_sync_s: float = Field(600, gt=0, description="One engine taking new weights, pause included.")
    eval_s: float = Field(3600, gt=0, description="One whole evaluation.")
    checkpoint_s: float = Field(1800, gt=0, description="Writing one checkpoint.")
    buffer_wait_s: float = Field(
        7200, gt=0, description="The trainer's wait for a batch; its expiry ends the run."
    )
    durable_s: float = Field(60, gt=0, description="The log's way to the disk.")
    rank_silence_s: float = Field(
        600, gt=0, description="A learner rank between two signs of progress within a step, where there are several."
    )
    close_s: float = Field(20, gt=0, description="An engine or the learner until it has ended.")


class FailureSection(Section):
    """What happens when something fails."""

    attempts_max: int = Field(
        3, ge=1, description="Attempts at one trajectory, failures of the prompt's own making."
    )
    engine_attempts_max: int = Field(8, ge=1, description="Attempts, failures of engines and infrastructure.")
    backoff_s: float = Field(0.5, ge=0, description="Wait before the first retry; doubles with each.")
    backoff_max_s: float = Field(30, ge=0, description="Longest wait before a retry.")
    strikes_max: int = Field(
        2,
        ge=1,
        description="Groups of one item that fail, or lose trajectories, by its own making before it is quarantined.",
    )
    engine_strikes_max: int = Field(
        3,
        ge=1,
        description="The same where engines failed or calls expired; the death of an engine does not count.",
    )
    share_max: float = Field(
        0.5, gt=0, le=1, description="Share of failed trajectories that ends the run ..."
    )
    window: int = Field(64, ge=1, description="... within this many ended attempts.")


class LogSection(Section):
    """The event log."""

    segment_bytes: int = Field(
        64 * 2**20, ge=4096, description="Compressed size at which a new segment begins."
    )
    unsaved_max: int = Field(8192, ge=1, description="Events not yet on disk before dispatching waits.")


class WatchdogSection(Section):
    """When a run that does not move is reported, and what follows.

    A deadlock is proven from the events, at the event after which nothing can move, and has no setting. Reports are
    the events `stall_detected` and `stall_cleared`; `eventrain stalls RUN` lists them.
    """

    on_stall: Literal["warn", "abort"] = Field(
        "warn",
        description="'abort' ends the run with the cause of a deadlock, a livelock or a silent loss. Overdue effects "
        "have their deadlines, and a degraded run goes on.",
    )
    overdue_factor: float = Field(
        20,
        gt=1,
        description="An effect is overdue when it is this many times older than 99 % of the finished ones of its kind "
        "became; later where a few of them took much longer than the rest.",
    )
    overdue_floor_s: float = Field(
        60,
        gt=0,
        description="No effect is overdue before this many seconds, or a quarter of its deadline if that is less.",
    )
    livelock_s: float = Field(
        600,
        gt=0,
        description="Seconds without a step or a new usable group, while attempts keep ending, that are a livelock.",
    )
    degraded_s: float = Field(
        120, gt=0, description="Seconds of low use of the engines, with work at hand, before it is reported."
    )
    degraded_share: float = Field(
        0.25,
        gt=0,
        lt=1,
        description="Share of the engines' slots below which their use is low; it is low also while calls for such a "
        "share queue at an engine and others have the slots for them.",
    )


class TelemetrySection(Section):
    """What others may see of the run while it goes on. None of it can slow the run down or end it.

    The log has everything that is needed to make the same metrics, traces and reports afterwards.
    """

    prometheus_port: int | None = Field(
        None, ge=0, le=65535, description="Port of a /metrics page for Prometheus; 0: any free one; default: no page."
    )
    prometheus_host: str = Field("127.0.0.1", description="Address of it; '0.0.0.0' lets other hosts read it.")
    otlp_endpoint: str | None = Field(
        None,
        pattern=_URL,
        examples=["http://localhost:4318"],
        description="Base URL of an OpenTelemetry receiver that takes OTLP over HTTP: metrics and traces go to it. "
        "Default: nothing is sent.",
    )
    otlp_interval_s: float = Field(15, gt=0, description="Seconds between two pushes of metrics.")
    otlp_timeout_s: float = Field(5, gt=0, description="How long the receiver may take for one request.")
    trace_share: float = Field(
        1.0, ge=0, le=1, description="Share of the prompt groups whose trajectories are traced, all of a group or none."
    )
    trace_slowest: int = Field(
        2,
        ge=0,
        description="Slowest trajectories of each step that are traced in any case, with all that failed and the group "
        "that the step waited for last.",
    )
    devices: Literal["auto", "off"] = Field(
        "auto", description="'auto' samples the use of whatever this machine can measure: GPUs, and CPU processes."
    )
    device_interval_s: float = Field(
        1.0, gt=0, description="Seconds between two samples; one is also taken where the trainer's phase changes."
    )
    engine_interval_s: float = Field(
        2.0, gt=0, description="Seconds between two questions to engines that count their own load, such as vLLM."
    )
    ray_metrics: Several[Annotated[str, Field(pattern=_URL, examples=["http://10.0.0.7:8080"])]] = Field(
        (), description="URLs of the /metrics pages of Ray nodes whose devices are sampled too."
    )
    trackers: Several[Literal["tensorboard", "wandb", "trackio"]] = Field(
        (), description="Where the figures of each step go besides metrics.jsonl in the run folder."
    )
    tracker_project: str = Field("eventrain", min_length=1, description="Project name for 'wandb' and 'trackio'.")
