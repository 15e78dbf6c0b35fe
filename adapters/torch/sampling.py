"""Drawing tokens for a whole batch at once, each row with a sampler of its own.

A row's random numbers come from a counter-based generator (Philox) keyed by its request's seed: number i belongs to
its i-th token, whatever else is in the batch. One uniform number per token, turned into a token by the inverse of
the distribution function; Gumbel noise would need one per token and vocabulary entry.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

SEED_MASK = 2**128 - 1
"""Philox takes a key of 128 bits."""


def uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """Return the first `count` numbers in [0, 1) of the sampler with this seed."""
    return np.random.Generator(np.random.Philox(key=seed & SEED_MASK)).random(count)


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor | None,
    uniform: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row.

    logits: float32 [n, vocabulary]; temperature, top_p: float32 [n], top_p None when every row samples from the
    whole distribution; uniform: float64 [n] in [0, 1).

    Returns int64 [n] tokens and float32 [n] log-probs, under the very distribution that was sampled: after
    temperature and top_p, renormalised. A row of NaN logits gives a NaN log-prob.
    """
    scores = logits / temperature[:, None]
    if top_p is not None:
        scores = _keep_nucleus(scores, top_p)
    logprobs = torch.log_softmax(scores, dim=-1)
    cumulative = logprobs.double().exp_().cumsum(dim=-1)
    target = uniform[:, None] * cumulative[:, -1:]
    # right=True: the first entry *above* the target, which a token of probability 0 can never be.
    tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def _keep_nucleus(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep, per row, the fewest most likely tokens whose probabilities reach top_p (arXiv 1904.09751)."""
    ordered, order = scores.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    drop = (before >= top_p[:, None]) & (top_p < 1)[:, None]
    return scores.masked_fill(torch.zeros_like(drop).scatter_(1, order, drop), -torch.inf)
