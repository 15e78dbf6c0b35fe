"""AdamW over named parameters, its learning-rate schedule, and its state as plain named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...core.config import LearnerSection
from .weights import WeightsUnusable

_MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(section: LearnerSection, step: int, steps: int) -> float:
    """Return the rate of step `step` of `steps`: linear warm-up, then the schedule, which would reach 0 at `steps`.

    A pure function of the step, so there is no scheduler whose state could be lost.
    """
    if step < section.warmup_steps:
        return section.lr * (step + 1) / section.warmup_steps
    done = min(1.0, (step - section.warmup_steps) / max(1, steps - section.warmup_steps))
    match section.schedule:
        case "constant":
            return section.lr
        case "linear":
            return section.lr * (1 - done)
        case "cosine":
            return section.lr * (1 + math.cos(math.pi * done)) / 2


class NamedAdamW:
    """AdamW (arXiv 1711.05101) whose decay leaves norms and biases alone, and whose state has the parameters' names.

    A tied parameter is one parameter, under its first name.
    """

    def __init__(self, model: nn.Module, section: LearnerSection) -> None:
        self._named = dict(model.named_parameters())
        matrices = [parameter for parameter in self._named.values() if parameter.ndim >= 2]
        vectors = [parameter for parameter in self._named.values() if parameter.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": section.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=section.lr,
            betas=(section.beta1, section.beta2),
            fused=True,
        )
        self.steps = 0

    def step(self, lr: float) -> None:
        """Make one step at rate `lr` with the gradients that the parameters hold, and clear them."""
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        self.steps += 1
        self.clear()

    def clear(self) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return both moments of every parameter as ``exp_avg/NAME`` and ``exp_avg_sq/NAME``; empty before a step."""
        return {name: moment.cpu().contiguous() for name, moment in self.moments().items()}

    def moments(self) -> dict[str, Tensor]:
        """Return the same as `tensors`, where and as they are: slices, where the model is spread over ranks."""
        return {
            f"{moment}/{name}": self._adamw.state[parameter][moment].detach()
            for name, parameter in self._named.items()
            if parameter in self._adamw.state
            for moment in _MOMENTS
        }

    def empty_moments(self) -> dict[str, Tensor]:
        """Return zeros in the place of every moment, for `restore` once they are filled."""
        return {
            f"{moment}/{name}": torch.zeros_like(parameter, requires_grad=False)
            for name, parameter in self._named.items()
            for moment in _MOMENTS
        }

    def restore(self, steps: int, tensors: Mapping[str, Tensor]) -> None:
        """Go on as after `steps` steps with what `tensors` returned then. Raises `WeightsUnusable`."""
        wanted = {f"{moment}/{name}" for name in self._named for moment in _MOMENTS} if steps else set()
        if set(tensors) != wanted:
            odd = sorted(set(tensors) ^ wanted)
            raise WeightsUnusable(f"not the optimizer state of this model: {odd[:3]} missing or unknown")
        self.steps = steps
        for name, parameter in self._named.items() if steps else ():
            moments = {moment: tensors[f"{moment}/{name}"] for moment in _MOMENTS}
            if any(moment.shape != parameter.shape for moment in moments.values()):
                raise WeightsUnusable(f"the optimizer state of {name} has another shape than the parameter")
            self._adamw.state[parameter] = {
                "step": torch.tensor(float(steps), dtype=torch.float32, device=parameter.device),
                **{moment: tensor.to(parameter.device) for moment, tensor in moments.items()},
            }
