"""How much memory each worker of a run will take: estimates, from the model's sizes and the configuration.

What is counted is what grows with the model and the settings. What is not: CUDA's own context, fragmentation, what a
library allocates for a moment, Python itself. Leave a tenth free.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.config import RunConfig
from .shape import BYTES, ModelShape

FLOAT32 = 4
LOGITS_COPIES = 5.3
"""Times [tokens, vocabulary] in float32 that the loss holds at its peak; measured with torch 2.13 for `grpo`."""
LOGITS_COPIES_ENTROPY = 6.1
"""The same where `algorithm.entropy_weight` is set: the entropy has a gradient too."""


@dataclass(frozen=True, slots=True)
class Part:
    """One line of an estimate."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one worker takes of the memory of the device that it computes on: of each of its GPUs, or of the machine."""

    parts: tuple[Part, ...]
    host_bytes: int = 0
    """Of the machine's memory, where it computes on GPUs."""
    kv_tokens: int | None = None
    """Tokens whose keys and values an engine can hold; None for what is no engine, and where it is not known."""
    note: str = ""
    """What is not known."""

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(part.size_bytes for part in self.parts)

    def of(self, name: str) -> int:
        """Return the bytes of the part `name`, 0 if there is none."""
        return sum(part.size_bytes for part in self.parts if part.name == name)


def engine_estimate(config: RunConfig, shape: ModelShape, *, gpu_memory_bytes: int | None) -> Estimate:
    """Return what an engine takes.

    `gpu_memory_bytes` is what each of its GPUs has, 0 if that is not known, None on CPUs.

    Weights: parameters x bytes of the dtype / GPUs of the engine. Keys and values of one token: 2 x layers x key-value
    heads x head size x bytes, and a GPU has its part of the heads, but at least one. vLLM gives them all that its share
    of the GPU leaves, here without what it needs for activations and CUDA graphs; the PyTorch engine makes room for
    `engine.slots` contexts of `rollout.context_tokens`, as they come.
    """
    if config.engine.kind == "torch":
        return _torch_engine(config, shape, on_gpu=gpu_memory_bytes is not None)
    dtype_bytes = vllm_dtype_bytes(config, shape)
    weights = shape.parameters * dtype_bytes // config.engine.tensor_parallel
    if gpu_memory_bytes is None:
        return Estimate(
            (Part("weights", weights),), note="KV cache as VLLM_CPU_KVCACHE_SPACE says, in the machine's memory"
        )
    if not gpu_memory_bytes:
        return Estimate((Part("weights", weights),), note="KV cache unknown: nothing says what memory the GPU has")
    share = int(config.engine.memory_share * gpu_memory_bytes)
    cache = max(0, share - weights)
    return Estimate(
        (Part("weights", weights), Part("KV cache", cache)), kv_tokens=cache // kv_token_bytes(config, shape)
    )


def vllm_dtype_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Return the bytes of a weight in vLLM, which loads what is float32 in 16 bits unless it is told otherwise."""
    told = str(config.engine.options.get("dtype", "auto"))
    return BYTES.get(told, 2 if shape.weight_bytes == FLOAT32 else shape.weight_bytes)


def kv_token_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Return the bytes of one token's keys and values on each GPU of a vLLM engine."""
    told = str(config.engine.options.get("kv_cache_dtype", "auto"))
    dtype_bytes = 1 if told.startswith("fp8") else BYTES.get(told, vllm_dtype_bytes(config, shape))
    return max(1, shape.kv_bytes(dtype_bytes) // min(config.engine.tensor_parallel, shape.kv_heads))


def _torch_engine(config: RunConfig, shape: ModelShape, *, on_gpu: bool) -> Estimate:
    dtype_bytes = shape.weight_bytes if on_gpu else FLOAT32
    tokens = config.engine.slots * (config.rollout.context_tokens + 1)  # and a column where padding goes
    return Estimate(
        (Part("weights", shape.parameters * dtype_bytes), Part("KV cache", tokens * shape.kv_bytes(dtype_bytes))),
        kv_tokens=tokens,
    )


def learner_estimate(config: RunConfig, shape: ModelShape, *, on_gpu: bool) -> Estimate:
    """Return what a learner rank takes, with P parameters, R ranks and T tokens in a micro-batch.

    T is `learner.micro_batch_tokens`, or `rollout.context_tokens` where that is more: a trajectory is not cut.

    - weights 4 P / R, gradients 4 P / R, AdamW's two moments 8 P / R: float32, in even slices (FSDP2).
    - gathered, with several ranks: the weights outside the layers, which stay, two layers (one computes, the next is
      on its way), and the whole gradient of the larger of both, before it is reduced (arXiv 2304.11277, section 3;
      torch's `fully_shard`).
    - activations: 4 T x layers x (6 hidden + (3 heads + 2 key-value heads) x head size + 4 intermediate), what autograd
      keeps of a layer, counted in the manner of arXiv 2205.05198, section 4.1, for a gated MLP, grouped queries and
      attention that keeps no matrix of scores. Nothing is recomputed.
    - logits: 4 T x vocabulary x `LOGITS_COPIES`: the logits, what is cut out of them, their log-softmax, its
      exponential, and the gradients on their way back.
    """
    ranks, tokens = config.learner.ranks, max(config.learner.micro_batch_tokens, config.rollout.context_tokens)
    share = -(-shape.parameters // ranks)
    gathered = 0
    if ranks > 1:
        largest = max(shape.root_parameters, shape.layer_parameters)
        gathered = FLOAT32 * (shape.root_parameters + 2 * shape.layer_parameters + largest)
    parts = (
        Part("weights", FLOAT32 * share),
        Part("gradients", FLOAT32 * share),
        Part("moments", 2 * FLOAT32 * share),
        Part("gathered", gathered),
        Part("activations", tokens * activation_token_bytes(shape)),
        Part("logits", tokens * logits_token_bytes(config, shape)),
    )
    # Every rank has the whole model in the machine's memory while it loads, before its slice goes to the GPU.
    host = FLOAT32 * shape.parameters if on_gpu and ranks > 1 else 0
    return Estimate(tuple(part for part in parts if part.size_bytes), host_bytes=host)


def activation_token_bytes(shape: ModelShape) -> int:
    """Return the bytes that a token's activations take in all layers until the backward pass."""
    attention = (3 * shape.heads + 2 * shape.kv_heads) * shape.head_size
    return FLOAT32 * shape.layers * (6 * shape.hidden + attention + 4 * shape.intermediate)


def logits_token_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Return the bytes that a token's logits take at the peak of the loss."""
    copies = LOGITS_COPIES_ENTROPY if config.algorithm.entropy_weight else LOGITS_COPIES
    return int(FLOAT32 * shape.vocabulary * copies)


def micro_batch_that_fits(config: RunConfig, shape: ModelShape, room_bytes: int) -> int:
    """Return how many tokens a micro-batch may have for a learner rank to fit `room_bytes`; 0 if none do."""
    estimate = learner_estimate(config, shape, on_gpu=True)
    fixed = estimate.total_bytes - estimate.of("activations") - estimate.of("logits")
    return max(0, (room_bytes - fixed) // (activation_token_bytes(shape) + logits_token_bytes(config, shape)))


def version_bytes(shape: ModelShape) -> int:
    """Return the bytes of one published version of the weights on disk: they are written as the learner has them."""
    return FLOAT32 * shape.parameters


def checkpoint_bytes(shape: ModelShape) -> int:
    """Return the bytes of one checkpoint on disk: weights and the optimizer's two moments."""
    return 3 * FLOAT32 * shape.parameters
