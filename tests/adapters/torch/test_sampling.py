"""Drawing tokens, as laws."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eventrain.adapters.torch.sampling import draw, uniforms

ROWS = st.integers(1, 5)
SEEDS = st.integers(0, 2**31)


def random_logits(seed: int, rows: int, vocabulary: int = 12) -> torch.Tensor:
    """Return logits with a few likely tokens."""
    return torch.randn((rows, vocabulary), generator=torch.Generator().manual_seed(seed)) * 2


@given(SEEDS, ROWS, st.floats(0.1, 3), st.floats(0.05, 1))
@settings(deadline=None)
def test_logprobs_are_of_the_distribution_that_was_sampled(seed, rows, temperature, top_p) -> None:
    """Over a fine grid of random numbers, every token comes as often as its log-prob says."""
    logits = random_logits(seed, rows)
    grid = 400
    repeated = logits.repeat_interleave(grid, dim=0)
    uniform = torch.from_numpy((np.arange(grid) + 0.5) / grid).repeat(rows)
    size = len(repeated)
    tokens, logprobs = draw(repeated, torch.full((size,), temperature), torch.full((size,), top_p), uniform)
    for row in range(rows):
        mine = slice(row * grid, (row + 1) * grid)
        drawn, said = tokens[mine], logprobs[mine].exp()
        for token in drawn.unique():
            share = (drawn == token).double().mean()
            assert abs(share - said[drawn == token][0]) < 1.5 / grid


@given(SEEDS, ROWS, st.floats(0.05, 0.999))
@settings(deadline=None)
def test_the_nucleus_is_the_fewest_likely_tokens_that_reach_top_p(seed, rows, top_p) -> None:
    """No drawn token lies outside the nucleus, and its most and least likely members are drawn."""
    logits = random_logits(seed, rows)
    for uniform in (0.0, 0.5, 1 - 1e-9):
        tokens, _ = draw(
            logits,
            torch.ones(rows),
            torch.full((rows,), top_p),
            torch.full((rows,), uniform, dtype=torch.float64),
        )
        for row, token in enumerate(tokens.tolist()):
            probabilities = logits[row].softmax(0)
            likelier = probabilities[probabilities > probabilities[token]].sum()
            assert likelier < top_p + 1e-6


@given(SEEDS, ROWS)
@settings(deadline=None)
def test_rows_do_not_touch_each_other(seed, rows) -> None:
    """A row draws the same token alone and among others, whatever their temperature and top_p."""
    logits = random_logits(seed, rows)
    temperature = torch.linspace(0.5, 2, rows)
    top_p = torch.linspace(0.3, 1, rows)
    uniform = torch.from_numpy(uniforms(seed, rows))
    tokens, logprobs = draw(logits, temperature, top_p, uniform)
    for row in range(rows):
        one = slice(row, row + 1)
        token, logprob = draw(logits[one], temperature[one], top_p[one], uniform[one])
        assert token.item() == tokens[row]
        assert abs(logprob.item() - logprobs[row]) < 1e-5


def test_a_token_of_no_probability_is_never_drawn() -> None:
    """The ends of the distribution are exact: neither the first nor the last number draws an impossible token."""
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    for uniform, expected in ((0.0, 1), (0.4999, 1), (0.5, 3), (np.nextafter(1, 0), 3)):
        tokens, _ = draw(logits, torch.ones(1), None, torch.tensor([uniform], dtype=torch.float64))
        assert tokens.item() == expected


@given(SEEDS, st.integers(1, 50), st.integers(0, 50))
def test_a_sampler_is_its_seed(seed, count, more) -> None:
    """The first numbers of a seed do not depend on how many are asked for, and other seeds give others."""
    assert np.array_equal(uniforms(seed, count), uniforms(seed, count + more)[:count])
    assert not np.array_equal(uniforms(seed, count), uniforms(seed + 1, count))
