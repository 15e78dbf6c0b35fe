"""A real, tiny model: two layers of 32, 64 tokens, random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eventrain.adapters.torch.weights import publish_weights
from eventrain.core.ports import Weights

VOCABULARY = 64
BUCKET_BYTES = 4096
"""Some tensors of the tiny model share one, and its embeddings are larger."""
torch.set_num_threads(1)  # two would only wait for each other


def tiny_llama(seed: int, *, kv_heads: int = 2, tied: bool = False) -> LlamaForCausalLM:
    """Return a random two-layer Llama whose next token is far from certain and far from uniform."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session", name="tiny")
def _tiny() -> Callable[..., LlamaForCausalLM]:
    """Return the maker of such models: of equal seed, equal weights."""
    return tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with config.json and the weights of seed 0."""
    folder = tmp_path_factory.mktemp("model")
    tiny_llama(0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_weights(tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    """Return two published weights of that model: the folder's own as version 0, and others as version 1."""
    folder = tmp_path_factory.mktemp("weights")
    return [published(tiny_llama(version), folder / f"{version}.safetensors", version) for version in (0, 1)]


def published(model: LlamaForCausalLM, path: Path, version: int) -> Weights:
    """Publish the weights of `model` in several buckets."""
    written = publish_weights(model, path, BUCKET_BYTES)
    assert written["buckets"] > 1
    return Weights(version, str(path), written["tensors"], written["buckets"], written["digest"])


@pytest.fixture(scope="session", name="published")
def _published() -> Callable[..., Weights]:
    """Return what publishes a model."""
    return published
