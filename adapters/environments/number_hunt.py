"""A guessing game over several turns: find a hidden number from "higher" and "lower".

The best possible mean reward is known exactly, so a score says how much of the game has been learned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ...core.ports import Action, EnvironmentFailed, Message, StepOutcome

PARTIAL = 0.3
"""Reward for narrowing the range to a single number without naming it; naming it gives 1."""

_NUMBER = re.compile(r"-?\d+")


class NumberHunt:
    """Hides a number from 1 to `n` and answers `guesses` guesses with ``higher``, ``lower`` or ``found``.

    The hidden number follows from the item's ``number`` alone, ``number % n + 1``: every trajectory of a group hunts
    the same one, and an epoch of a multiple of n items hides each equally often. The first number in an answer is the
    guess. An answer without a number is ``invalid`` and uses up a guess.

    The reward is 1 for the number found; otherwise `PARTIAL` times the share of information gained,
    ``1 - log(numbers still possible) / log(n)``. So a policy that never wins yet still sees which of its games
    went better.
    """

    def __init__(self, n: int = 12, guesses: int = 5) -> None:
        _require_playable(n, guesses)
        self._n, self._guesses = n, guesses
        self._begin(1)

    def _begin(self, hidden: int) -> None:
        self._hidden = hidden
        self._low, self._high = 1, self._n
        self._left = self._guesses
        self._found = False

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Hide the number of `item`. Raises `EnvironmentFailed` when the item has none."""
        del seed  # the item decides: trajectories of a group must be comparable
        number = item.get("number")
        if not isinstance(number, int):
            raise EnvironmentFailed(
                f"number_hunt needs items with an integer 'number', this one is {dict(item)!r:.80}"
            )
        self._begin(number % self._n + 1)
        return [Message("user", f"guess 1 to {self._n}")]

    async def step(self, action: Action) -> StepOutcome:
        """Answer one guess; the game ends with the number found or the last guess used."""
        match = _NUMBER.search(action.text)
        self._left -= 1
        answer = "invalid" if match is None else self._compare(int(match[0]))
        return StepOutcome([Message("user", answer)], done=self._found or self._left <= 0)

    async def reward(self) -> float:
        """Return the reward of the game as it stands, from 0 to 1."""
        return 1.0 if self._found else _partial(self._high - self._low + 1, self._n)

    def _compare(self, guess: int) -> str:
        if guess < self._hidden:
            self._low = max(self._low, guess + 1)
            return "higher"
        if guess > self._hidden:
            self._high = min(self._high, guess - 1)
            return "lower"
        self._found = True
        return "found"


def optimal_score(n: int = 12, guesses: int = 5) -> float:
    """Return the mean reward of the best possible policy, every hidden number being equally likely.

    Exact, by dynamic programming over the numbers still possible and the guesses left. With ``2**guesses > n``,
    halving always finds the number and the score is 1.
    """
    _require_playable(n, guesses)

    @cache
    def total(possible: int, left: int) -> float:
        """Best sum of rewards over `possible` hidden numbers. A guess outside of them would tell nothing."""
        if possible == 0 or left == 0:
            return possible * _partial(possible, n) if possible else 0.0
        return 1.0 + max(
            total(below, left - 1) + total(possible - 1 - below, left - 1) for below in range(possible)
        )

    return total(n, guesses) / n


def random_score(n: int = 12, guesses: int = 5, others: int = 0) -> float:
    """Return the mean reward of a policy that draws every guess anew from n numbers and `others` invalid answers.

    Exact. With `others` the number of a vocabulary's tokens that are no number of the game, this is where a policy
    of random weights starts.
    """
    _require_playable(n, guesses)

    @cache
    def mean(low: int, high: int, hidden: int, left: int) -> float:
        if left == 0:
            return _partial(high - low + 1, n)
        told_nothing = others + (low - 1) + (n - high)
        reward = 1.0 + told_nothing * mean(low, high, hidden, left - 1)
        reward += sum(mean(guess + 1, high, hidden, left - 1) for guess in range(low, hidden))
        reward += sum(mean(low, guess - 1, hidden, left - 1) for guess in range(hidden + 1, high + 1))
        return reward / (n + others)

    return math.fsum(mean(1, n, hidden, guesses) for hidden in range(1, n + 1)) / n


def _partial(possible: int, n: int) -> float:
    return PARTIAL * (1.0 - math.log(possible) / math.log(n))


def _require_playable(n: int, guesses: int) -> None:
    if n < 2:
        raise ValueError(f"n is {n}, but it takes 2 numbers to hide one")
    if guesses < 1:
        raise ValueError(f"guesses is {guesses}, but it takes at least 1")
