"""The proof, before an engine serves, that the decoder computes what the model does.

Rows of unequal length share a forward pass through a cache and a mask of ours. A model whose attention is not
ordinary (sliding windows, recurrent layers) may accept both and compute something else, which would not show as an
error but as training that does not learn. So one short batch is compared with the plain model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from .decoding import Decoder
from .rows import Sequence

PROMPTS_TOKENS = (7, 3)
"""Unequal, so that padding is part of the proof."""
NEW_TOKENS = 3
TOLERANCE_FLOAT32 = 1e-3
TOLERANCE_OTHER = 0.1


class ModelNotServed(Exception):
    """The decoder cannot serve this model."""


def prove(model: PreTrainedModel, make_decoder: Callable[..., Decoder], context_tokens: int) -> None:
    """Decode a short batch and compare its log-probs with plain forward passes. Raises `ModelNotServed`."""
    config: Any = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if (
        window
        and "sliding_attention" in (getattr(config, "layer_types", None) or ())
        and window < context_tokens
    ):
        raise ModelNotServed(
            f"attention over a sliding window of {window} tokens in a context of {context_tokens}"
        )
    decoder = make_decoder(version=0, slots=2, context_tokens=16)
    prompts = [np.arange(size, dtype=np.int64) * 5 % config.vocab_size for size in PROMPTS_TOKENS]
    for seed, prompt in enumerate(prompts):
        decoder.add(Sequence(f"proof/{seed}", prompt, NEW_TOKENS, 1.0, 1.0, (), seed, 0.0))
    tolerance = TOLERANCE_FLOAT32 if model.dtype == torch.float32 else TOLERANCE_OTHER
    while decoder.active or decoder.waiting:
        for finished in decoder.step():
            expected = plain_logprobs(model, finished.sequence.prompt, finished.tokens)
            difference = float(np.abs(expected - finished.logprobs).max())
            if finished.error or not difference <= tolerance:
                raise ModelNotServed(
                    f"{type(model).__name__} decodes differently with a cache: log-probs differ by {difference:g}"
                )


@torch.inference_mode()
def plain_logprobs(model: PreTrainedModel, prompt: Any, tokens: Any) -> np.ndarray[Any, Any]:
    """Return the log-probs of `tokens` after `prompt`, float32 [tokens], by one forward pass without a cache."""
    ids = torch.tensor([[*prompt, *tokens]], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0].float()
    of_next = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
    result: np.ndarray[Any, Any] = of_next.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu().numpy()
    return result
