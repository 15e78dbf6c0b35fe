"""A request in vLLM's words, and the refusals that can be told without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.ports import GenerateRequest, PortError, PromptRefused, PromptTooLong


def sampling(request: GenerateRequest) -> dict[str, Any]:
    """Return the sampling parameters of `request` for vLLM, each said: a server's defaults must not come in.

    ``logprobs = 0`` asks for the sampled token's alone. With vLLM's ``logprobs_mode = "processed_logprobs"`` they are
    those of the distribution that it was sampled from, after temperature and top_p.
    """
    return {
        "n": 1,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": request.seed,
        "max_tokens": request.max_tokens,
        "min_tokens": 0,
        "stop": [],
        "stop_token_ids": list(request.stop_token_ids),
        "ignore_eos": True,  # what ends an answer is said by stop_token_ids
        "logprobs": 0,
        "detokenize": False,
    }


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an engine's model takes, as the engine says it; nothing, before it has."""

    vocabulary: int = 0
    context_tokens: int = 0

    def check(self, request: GenerateRequest) -> None:
        """Raise `PromptRefused` for a token id outside the vocabulary.

        vLLM without a tokenizer does not look at ids, and an id that the model has no row for kills it.
        """
        ids = request.prompt_ids
        if ids and (min(ids) < 0 or max(ids) >= self.vocabulary):
            raise PromptRefused(f"prompt has a token id outside 0 to {self.vocabulary - 1}")

    def refusal(self, message: str, request: GenerateRequest) -> PortError:
        """Return the error for a request that vLLM does not take. Its words differ by path; lengths do not."""
        length = len(request.prompt_ids)
        if length >= self.context_tokens:
            return PromptTooLong(f"prompt has {length} tokens, the engine's context {self.context_tokens}")
        return PromptRefused(" ".join(message.split()))
