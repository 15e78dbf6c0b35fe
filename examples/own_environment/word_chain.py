"""A word chain: every word begins with the last letter of the one before.

The whole of an environment is three async methods. One object plays one trajectory, so it may keep its state in
plain attributes, and nothing needs a lock.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from eventrain.core.ports import Action, Message, StepOutcome

FIRST_WORDS = ("river", "garden", "bread", "window", "summer", "letter", "stone", "music")


class WordChain:
    """Plays `turns` rounds; the reward is the share of rounds in which the policy gave a word that fits."""

    def __init__(self, turns: int = 3, longest_answer: int = 3) -> None:
        if turns < 1:
            raise ValueError("turns must be at least 1")
        self.turns, self.longest_answer = turns, longest_answer
        self.played, self.right = 0, 0
        self.said: list[str] = []

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Open the game. `item` is the same for all trajectories of a group; `seed` differs between them."""
        self.said = [random.Random(item["number"]).choice(FIRST_WORDS)]
        rules = "We play word chain. Answer with one word that begins with the last letter of mine, and no other text."
        return [Message("system", rules), Message("user", self.said[-1])]

    async def step(self, action: Action) -> StepOutcome:
        """Judge the policy's word, and say the next."""
        self.played += 1
        words = re.findall(r"[a-z]+", action.text.lower())
        fits = (
            0 < len(words) <= self.longest_answer
            and words[0].startswith(self.said[-1][-1])
            and words[0] not in self.said
        )
        if fits:
            self.right += 1
            self.said.append(words[0])
        if self.played == self.turns:
            return StepOutcome(done=True)
        wanted = self.said[-1][-1]
        verdict = "Right." if fits else "That does not fit."
        return StepOutcome([Message("user", f"{verdict} Now one word that begins with '{wanted}'.")])

    async def reward(self) -> float:
        """Return the share of rounds won. Called once, at the end, also when the context was full before."""
        return self.right / self.turns
