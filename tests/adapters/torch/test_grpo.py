"""The objective, checked against the papers' formulas and by its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eventrain.adapters.torch.grpo import Clip, sampled_logprobs, token_terms

CLIP = Clip(low=0.2, high=0.3, cap=2.0)
LOGPROBS = st.floats(-8.0, -0.0078125, width=32)
ADVANTAGES = st.floats(-4.0, 4.0, width=32)


def token(prox: float, behaviour: float, advantage: float, clip: Clip = CLIP) -> tuple[float, float]:
    """Return weight ``rho`` and the gradient of the objective in log pi_theta, at pi_theta = pi_prox."""
    logprob = torch.tensor([prox], requires_grad=True)
    terms = token_terms(logprob, logprob.detach(), torch.tensor([behaviour]), torch.tensor([advantage]), clip)
    (gradient,) = torch.autograd.grad(terms.objective.sum(), logprob)
    return min(terms.importance.item(), clip.cap), gradient.item()


@given(prox=LOGPROBS, behaviour=LOGPROBS, advantage=ADVANTAGES)
def test_the_clip_takes_gradients_that_lead_further_out_and_no_others(
    prox: float, behaviour: float, advantage: float
) -> None:
    """Outside the trust region the gradient is zero where the advantage points outwards, else rho times A."""
    rho, gradient = token(prox, behaviour, advantage)
    edge = min(abs(rho - (1 - CLIP.low)), abs(rho - (1 + CLIP.high)))
    if edge < 1e-5:
        return  # rounding decides on which side it lies
    outwards = (advantage > 0 and rho > 1 + CLIP.high) or (advantage < 0 and rho < 1 - CLIP.low)
    assert gradient == pytest.approx(0.0 if outwards else rho * advantage, rel=1e-5, abs=1e-30)


@given(prox=LOGPROBS, behaviour=LOGPROBS, advantage=ADVANTAGES, cap=st.floats(1.0, 5.0, width=32))
def test_truncation_bounds_every_gradient(
    prox: float, behaviour: float, advantage: float, cap: float
) -> None:
    """No token weighs more than C times its advantage, however far learner and behaviour policy are apart."""
    _, gradient = token(prox, behaviour, advantage, Clip(0.2, 0.3, cap))
    assert abs(gradient) <= cap * abs(advantage) * (1 + 1e-5) + 1e-30  # below that float32 has no digits left


def test_truncation_is_what_bounds_it() -> None:
    """With a negative advantage and a large ratio the weight is exactly C, where plain PPO would use the ratio."""
    stale = math.log(50.0)
    assert token(-1.0, -1.0 - stale, -1.0)[1] == pytest.approx(-2.0)
    assert token(-1.0, -1.0 - stale, -1.0, Clip(0.2, 0.3, 1e6))[1] == pytest.approx(-50.0, rel=1e-4)


@given(prox=LOGPROBS, behaviour=LOGPROBS)
def test_zero_advantage_gives_no_gradient(prox: float, behaviour: float) -> None:
    """A token of a trajectory as good as its group's mean teaches nothing."""
    assert token(prox, behaviour, 0.0)[1] == 0.0


def test_on_policy_the_gradient_is_reinforce_with_baseline() -> None:
    """With pi_theta = pi_prox = mu the gradient is the mean of A grad log pi, by finite formula for a softmax."""
    torch.manual_seed(0)
    logits = torch.randn(7, 5, requires_grad=True)
    tokens, advantages = torch.randint(5, (7,)), torch.randn(7)
    chosen, _ = sampled_logprobs(logits, tokens, 1.0)
    terms = token_terms(chosen, chosen.detach(), chosen.detach(), advantages, CLIP)
    (gradient,) = torch.autograd.grad(terms.objective.mean(), logits)
    one_hot = torch.nn.functional.one_hot(tokens, 5).float()
    reinforce = advantages[:, None] * (one_hot - logits.detach().softmax(-1)) / 7
    assert torch.allclose(gradient, reinforce, atol=1e-6)
    assert not terms.clipped.any()
    assert not terms.truncated.any()


@given(
    st.lists(st.tuples(LOGPROBS, LOGPROBS, ADVANTAGES), min_size=1, max_size=8),
)
def test_on_fresh_data_it_is_the_clipped_objective_of_ppo(tokens: list[tuple[float, float, float]]) -> None:
    """With pi_prox = mu the value is PPO's equation 7 word for word, also where pi_theta has moved away."""
    logprobs, behaviour, advantages = (torch.tensor(column) for column in zip(*tokens, strict=True))
    ratio = (logprobs - behaviour).exp()
    ppo = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP.low, 1 + CLIP.high) * advantages)
    objective = token_terms(logprobs, behaviour, behaviour, advantages, CLIP).objective
    assert torch.allclose(objective, ppo, rtol=1e-5)


def test_what_was_clipped_and_truncated_is_counted() -> None:
    """The flags name the tokens without gradient and those whose weight was cut."""
    prox = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    behaviour = prox - torch.tensor([0.0, 1.0, 1.0, -1.0])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    terms = token_terms(prox, prox, behaviour, advantages, CLIP)
    assert terms.clipped.tolist() == [False, True, False, True]
    assert terms.truncated.tolist() == [False, True, True, False]


@given(prox=LOGPROBS, behaviour=LOGPROBS)
def test_the_divergence_estimate_is_never_negative(prox: float, behaviour: float) -> None:
    """The estimate of KL(mu || pi_prox) is zero for equal log-probs and positive otherwise."""
    ones = torch.ones(1)
    kl = token_terms(ones * prox, ones * prox, ones * behaviour, ones, CLIP).kl.item()
    assert kl >= -1e-6
    assert token_terms(ones * prox, ones * prox, ones * prox, ones, CLIP).kl.item() == 0.0


def test_impossible_ratios_stay_finite() -> None:
    """Log-probs hundreds apart give large, finite numbers and never NaN."""
    prox, behaviour = torch.tensor([-1.0, -900.0]), torch.tensor([-900.0, -1.0])
    terms = token_terms(prox, prox, behaviour, torch.tensor([1.0, -1.0]), CLIP)
    assert torch.isfinite(torch.stack([terms.objective, terms.importance, terms.kl])).all()


def logits_of(*rows: list[float]) -> Tensor:
    """Return logits [len(rows), vocabulary]."""
    return torch.tensor(rows)


def test_logprobs_are_of_the_distribution_that_is_sampled() -> None:
    """Logits are divided by the sampling temperature before the softmax."""
    logits = logits_of([1.0, 2.0, 4.0])
    chosen, _ = sampled_logprobs(logits, torch.tensor([1]), 0.5)
    expected = math.log(math.exp(4) / (math.exp(2) + math.exp(4) + math.exp(8)))
    assert chosen.item() == pytest.approx(expected, rel=1e-5)


def test_entropy_is_exact_and_survives_masked_tokens() -> None:
    """A uniform distribution over V has log V, one with impossible tokens counts only the possible ones."""
    logits = logits_of([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -math.inf, -math.inf])
    _, entropy = sampled_logprobs(logits, torch.tensor([0, 0]), 1.0)
    assert entropy.tolist() == pytest.approx([math.log(4), math.log(2)], rel=1e-6)
