"""Memory estimates against what is really allocated, on a CPU, with a tiny model."""

from __future__ import annotations

import pytest
from worlds import config

from eventrain.adapters.planning.memory import (
    LOGITS_COPIES,
    activation_token_bytes,
    checkpoint_bytes,
    engine_estimate,
    kv_token_bytes,
    learner_estimate,
    micro_batch_that_fits,
    version_bytes,
)
from eventrain.adapters.planning.shape import ModelShape, read_shape
from eventrain.core.config import LearnerSection
from eventrain.core.placement import GIB

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS, ROWS = 64, 4


@pytest.fixture(scope="module")
def model():
    """Return a tiny decoder in float32."""
    torch.manual_seed(0)
    sizes = transformers.Qwen2Config(
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=1000,
    )
    return transformers.AutoModelForCausalLM.from_config(sizes).float().train(False)


@pytest.fixture(scope="module")
def shape(model, tmp_path_factory) -> ModelShape:
    """Return the sizes of the tiny model."""
    folder = tmp_path_factory.mktemp("model")
    model.config.save_pretrained(folder)
    return read_shape(folder)


def allocated(tensors) -> int:
    """Return the bytes behind `tensors`, each storage once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def batch():
    """Return token ids [ROWS, TOKENS]."""
    return torch.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) % 997


def test_weights_gradients_and_moments_are_what_adamw_allocates(model, shape):
    """After one step of the learner's own optimizer, each of the three is within 15 % of the estimate."""
    from eventrain.adapters.torch.optimizer import NamedAdamW

    optimizer = NamedAdamW(model, LearnerSection())
    model(input_ids=batch()).logits.sum().backward()
    estimate = learner_estimate(config(), shape, on_gpu=False)
    assert allocated(model.parameters()) == pytest.approx(estimate.of("weights"), rel=0.15)
    gradients = allocated(parameter.grad for parameter in model.parameters())
    assert gradients == pytest.approx(estimate.of("gradients"), rel=0.15)
    optimizer.step(1e-6)
    inner = next(value for value in vars(optimizer).values() if isinstance(value, torch.optim.Optimizer))
    moments = allocated(value for state in inner.state.values() for value in state.values() if value.ndim)
    assert moments == pytest.approx(estimate.of("moments"), rel=0.15)


def test_the_files_of_a_run_are_as_large_as_said(model, shape, tmp_path):
    """Published weights and a checkpoint are within 15 % of the estimate on disk."""
    from eventrain.adapters.torch.checkpoint import write_checkpoint
    from eventrain.adapters.torch.optimizer import NamedAdamW
    from eventrain.adapters.torch.weights import write_weights

    assert write_weights(model, tmp_path / "w", durable=False) == pytest.approx(version_bytes(shape), rel=0.15)
    optimizer = NamedAdamW(model, LearnerSection())
    model(input_ids=batch()).logits.sum().backward()
    optimizer.step(1e-6)
    model.config.save_pretrained(tmp_path / "model")
    size = write_checkpoint(tmp_path / "checkpoint", model, optimizer, 1, tmp_path / "model")
    assert size == pytest.approx(checkpoint_bytes(shape), rel=0.15)


def test_ranks_divide_what_they_hold_and_gather_the_rest(shape):
    """Four ranks hold a quarter each; what FSDP2 gathers is said beside it, and the host has the whole for a while."""
    alone = learner_estimate(config(), shape, on_gpu=True)
    ranks = learner_estimate(config(learner={"ranks": 4}), shape, on_gpu=True)
    for part in ("weights", "gradients", "moments"):
        assert ranks.of(part) == pytest.approx(alone.of(part) / 4, rel=0.01)
    assert alone.of("gathered") == 0
    largest = max(shape.root_parameters, shape.layer_parameters)
    assert ranks.of("gathered") == 4 * (shape.root_parameters + 2 * shape.layer_parameters + largest)
    assert (alone.host_bytes, ranks.host_bytes) == (0, 4 * shape.parameters)


def test_the_cache_of_a_token_is_what_transformers_stores(model, shape):
    """Keys and values of a forward pass are within 15 % of tokens times the estimate of one."""
    with torch.no_grad():
        cache = model(input_ids=batch(), use_cache=True).past_key_values
    stored = allocated(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert stored == pytest.approx(ROWS * TOKENS * shape.kv_bytes(4), rel=0.15)


def test_the_cache_of_the_engine_is_what_the_slots_allocate(model, shape):
    """The PyTorch engine's cache, full, is within 15 % of the estimate."""
    import numpy as np

    from eventrain.adapters.torch.slot_cache import SlotCache

    settings = config(engine={"slots": ROWS}, rollout={"context_tokens": TOKENS, "max_tokens": 8})
    cache = SlotCache(model.config, ROWS, TOKENS)
    cache.aim(0, np.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) % TOKENS, TOKENS, torch.device("cpu"))
    states = torch.zeros(ROWS, shape.kv_heads, TOKENS, shape.head_size)
    for layer in range(shape.layers):
        cache.update(states, states, layer)
    estimate = engine_estimate(settings, shape, gpu_memory_bytes=None)
    assert allocated([cache._keys, cache._values]) == pytest.approx(estimate.of("KV cache"), rel=0.15)
    assert estimate.of("weights") == pytest.approx(allocated(model.parameters()), rel=0.15)


def test_activations_are_what_autograd_keeps(model, shape):
    """What a forward pass saves for the backward pass, weights aside, is within 15 % of the estimate."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = []

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.model(input_ids=batch(), use_cache=False)
    assert allocated(saved) == pytest.approx(ROWS * TOKENS * activation_token_bytes(shape), rel=0.15)


def test_logits_are_the_peak_of_the_loss(shape):
    """From logits to gradient, the learner's loss holds about `LOGITS_COPIES` times [tokens, vocabulary] at once."""
    from torch.profiler import ProfilerActivity, profile

    from eventrain.adapters.torch.grpo import sampled_logprobs

    tokens, words = 256, 4000
    logits = torch.randn(1, tokens + 1, words, requires_grad=True)
    kept = torch.ones(1, tokens, dtype=torch.bool)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        made = logits * 1.0  # the model's own output, which the loss keeps alive
        chosen, entropy = sampled_logprobs(made[:, :-1][kept], torch.arange(tokens), 1.0)
        loss, entropy = -chosen.sum(), entropy.detach()
        loss.backward()
    steps = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(steps, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    assert peak / (4 * tokens * words) == pytest.approx(LOGITS_COPIES, rel=0.25)


def test_vllm_fills_its_share_with_the_cache(shape):
    """Weights in 16 bits over the GPUs of the engine; the rest of the share is room for tokens."""
    settings = config(engine={"kind": "vllm", "tensor_parallel": 2, "memory_share": 0.5})
    estimate = engine_estimate(settings, shape, gpu_memory_bytes=GIB)
    assert estimate.of("weights") == shape.parameters
    assert estimate.total_bytes == GIB // 2
    assert kv_token_bytes(settings, shape) == shape.kv_bytes(2) // 2
    assert estimate.kv_tokens == (GIB // 2 - shape.parameters) // kv_token_bytes(settings, shape)


@pytest.mark.parametrize(
    ("engine", "bytes_per_token"),
    [
        ({"options": {"dtype": "float32"}}, lambda shape: shape.kv_bytes(4)),
        ({"options": {"kv_cache_dtype": "fp8"}}, lambda shape: shape.kv_bytes(1)),
        ({"tensor_parallel": 4}, lambda shape: shape.kv_bytes(2) // 2),
    ],
)
def test_options_and_heads_decide_the_cache_of_a_token(shape, engine, bytes_per_token):
    """What dtype and kv_cache_dtype say counts, and a GPU has one key-value head at least."""
    settings = config(engine={"kind": "vllm", **engine})
    assert kv_token_bytes(settings, shape) == bytes_per_token(shape)


def test_a_trajectory_is_not_cut(shape):
    """Where a context is longer than a micro-batch, the context counts."""
    rollout = {"context_tokens": 4096}
    short = learner_estimate(config(rollout=rollout, learner={"micro_batch_tokens": 64}), shape, on_gpu=True)
    whole = learner_estimate(config(rollout=rollout, learner={"micro_batch_tokens": 4096}), shape, on_gpu=True)
    assert short == whole


def test_the_micro_batch_that_fits_fits(shape):
    """The advised size fills the room, and one token more would not fit."""
    rollout = {"context_tokens": 300}
    room = learner_estimate(config(rollout=rollout), shape, on_gpu=True).total_bytes // 2
    tokens = micro_batch_that_fits(config(rollout=rollout), shape, room)
    for size, fits in (tokens, True), (tokens + 1, False):
        settings = config(rollout=rollout, learner={"micro_batch_tokens": size})
        assert (learner_estimate(settings, shape, on_gpu=True).total_bytes <= room) == fits
