"""Data: where prompts come from, and how messages become tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .environment import Message


class PromptSource(Protocol):
    """A dataset of finite length, in a seeded order of its own for every epoch."""

    def __len__(self) -> int:
        """Return the number of items in one epoch."""
        ...

    def item(self, epoch: int, position: int) -> tuple[int, Mapping[str, Any]]:
        """Return ``(index, item)``: the dataset index at `position` of `epoch`'s order, and the item.

        The same arguments always give the same answer, in any process.
        """
        ...


class Renderer(Protocol):
    """Turns messages into tokens and back, with the model's own chat template."""

    stop_token_ids: Sequence[int]

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of the opening messages, ready for the policy to write its first answer."""
        ...

    def reply(self, messages: Sequence[Message], *, after_stop: bool) -> list[int]:
        """Return the ids to append behind a sampled answer: its closing, `messages`, and the start of the next answer.

        `after_stop` says that the answer already ended with its stop token. Sampled ids are never touched.
        """
        ...

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of sampled tokens, without special tokens."""
        ...
