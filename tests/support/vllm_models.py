"""A real, tiny model for vLLM, its published weights, and what transformers says of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eventrain.adapters.weights.file import TensorSpec, WeightsWriter
from eventrain.core.ports import GenerateRequest, Weights

VOCABULARY = 64
CONTEXT_TOKENS = 4096
BUCKET_BYTES = 160_000


def tiny_llama(seed: int) -> LlamaForCausalLM:
    """Return a random Llama, slow enough to be interrupted, whose next token is neither certain nor anyone's guess."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        architectures=["LlamaForCausalLM"],
    )
    return LlamaForCausalLM(config).eval()


def published(model: LlamaForCausalLM, path: Path, version: int) -> Weights:
    """Write the weights of `model`, in several buckets, and return what is published of them."""
    tensors = model.state_dict()
    specs = [TensorSpec(name, "F32", tuple(tensor.shape)) for name, tensor in tensors.items()]
    with WeightsWriter(path, specs, BUCKET_BYTES) as writer:
        for bucket in writer.buckets:
            writer.write([tensors[spec.name].numpy().tobytes() for spec in bucket])
        writer.finish()
        return Weights(version, str(path), len(specs), len(writer.buckets), writer.digest)


@torch.inference_mode()
def expected_logprobs(
    model: LlamaForCausalLM,
    prompt: list[int],
    tokens: list[int],
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> list[float]:
    """Return the log-probs of `tokens` after `prompt`, under the distribution that they are sampled from."""
    logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1] / temperature
    logprobs = nucleus(logits, top_p).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


def nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return `logits` with those set to -inf that are not among the likeliest tokens that make up `top_p`."""
    ordered, order = logits.sort(-1, descending=True)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
    return logits.masked_fill((before >= top_p).gather(1, order.argsort(-1)), -torch.inf)


def ask(name: str, prompt: list[int], max_tokens: int = 12, **changes: Any) -> GenerateRequest:
    """Return a request with the given prompt."""
    settings = {"temperature": 1.0, "top_p": 1.0, "stop_token_ids": (), "seed": 7, **changes}
    return GenerateRequest(name, prompt, max_tokens, **settings)
