r"""The objective: group-relative policy optimisation, token by token, for data that may be stale.

Three policies meet in every sampled token :math:`o_t`:

- :math:`\mu`, the behaviour policy: the weights that sampled it. Its log-prob came with the rollout;
- :math:`\pi_{prox}`, the learner as it stands when the step begins;
- :math:`\pi_\theta`, what is differentiated.

PPO (arXiv 1707.06347, equation 7) bounds :math:`r = \pi_\theta / \mu`. For stale data that ratio has two sources,
which the decoupled objective of AReaL (arXiv 2505.24298) tells apart::

    r_t = pi_theta / mu  =  u_t * w_t,     u_t = pi_theta / pi_prox,     w_t = pi_prox / mu

where `w` (how stale the token is) is a constant of the step and only `u` (how far this step has moved) has a
gradient. Decoupled PPO clips `u` alone. Here a batch is used for exactly one optimizer step, so the gradient is taken
where pi_theta = pi_prox, `u` is 1, and such a clip could never act. What moves the ratio in an asynchronous run is
`w`. So both remedies are put where they act:

- *truncation*: `w` becomes ``rho_t = min(w_t, C)``, truncated importance sampling. It bounds the variance: no token
  is weighted more than C times;
- *clipping* is PPO's, on the product::

    J = 1/N sum_t min( rho_t u_t A,  clip(rho_t u_t, 1 - eps_low, 1 + eps_high) A )                            (*)

Its gradient at u = 1 is ``rho_t A grad log pi_theta(o_t)``, except where the token has already been moved out of the
trust region around `mu` in the direction that A asks for, where it is zero: A > 0 and rho > 1 + eps_high, or A < 0
and rho < 1 - eps_low. A token that moved the wrong way keeps its gradient, whatever its ratio. For A < 0 that
gradient would grow with the ratio; C bounds it there (plain PPO leaves it open). With C below 1 + eps_high the upper
clip is never reached. On-policy, w = 1 and (*) is REINFORCE with the group's mean reward as baseline.

A is the group-relative advantage of GRPO (arXiv 2402.03300, equation 3 and section 4.1.2) and comes with the batch;
there is no KL term to a reference policy (beta = 0). The sum runs over the sampled tokens of the *whole* batch and N
is their number: dividing by each answer's own length, as GRPO does, would favour long wrong answers
(Dr. GRPO, arXiv 2503.20783).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_MAX = 20.0
"""Log-ratios are cut here: exp of it is finite in float32, and far above any sensible truncation."""


@dataclass(frozen=True, slots=True)
class Clip:
    """The bounds of the objective: eps_low and eps_high of the trust region, C of the importance weight."""

    low: float
    high: float
    cap: float


@dataclass(slots=True)
class TokenTerms:
    """Per-token parts of the objective, float32 [T] each unless said otherwise."""

    objective: Tensor
    """What is maximised; carries the gradient."""
    importance: Tensor
    """w before truncation."""
    truncated: Tensor
    """bool: w was above the cap."""
    clipped: Tensor
    """bool: the clip took the gradient away."""
    kl: Tensor
    """Estimate of KL(mu || pi_prox) from this token."""


def token_terms(
    logprobs: Tensor, prox_logprobs: Tensor, behaviour_logprobs: Tensor, advantages: Tensor, clip: Clip
) -> TokenTerms:
    """Return equation (*) of the module, before the mean, for T sampled tokens.

    All tensors are float32 [T]. `logprobs` is log pi_theta, with gradient; the other log-probs are constants.
    The KL estimate is GRPO's (arXiv 2402.03300, equation 4): with x = log pi_prox - log mu it is exp(x) - 1 - x,
    never negative and without bias.
    """
    staleness = (prox_logprobs - behaviour_logprobs).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    w = staleness.exp()
    rho = w.clamp(max=clip.cap)
    u = (logprobs - prox_logprobs).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()
    ratio = rho * u
    inside = ratio.clamp(1 - clip.low, 1 + clip.high)
    return TokenTerms(
        objective=torch.minimum(ratio * advantages, inside * advantages),
        importance=w,
        truncated=w > clip.cap,
        clipped=(inside * advantages < ratio * advantages),
        kl=w - 1 - staleness,
    )


def sampled_logprobs(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-prob and entropy (natural logarithm), float32 [T] each, of `tokens` under the sampling policy.

    logits: [T, vocabulary], the model's output *before* each token; tokens: int64 [T]. The policy that acts is the
    model at `temperature`, so that is the policy whose gradient is taken. Where the rollout sampled with
    top_p < 1 its log-probs are of the cut distribution, and the difference shows as staleness.
    """
    distribution = torch.log_softmax(logits.float() / temperature, dim=-1)
    chosen = distribution.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    # xlogy's rule: a token of probability 0 adds 0, not NaN.
    probabilities = distribution.exp()
    entropy = -torch.where(probabilities > 0, probabilities * distribution, 0.0).sum(dim=-1)
    return chosen, entropy
