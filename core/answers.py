"""What an environment may answer. It is a user's code: what it gets wrong fails one trajectory, not the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

from .ports import Message, StepOutcome


def messages(answer: object) -> Sequence[Message]:
    """Return `answer` if it is a sequence of messages. Raises TypeError."""
    if isinstance(answer, Sequence) and all(isinstance(message, Message) for message in answer):
        return answer
    raise TypeError(f"an environment writes a sequence of Message, not {described(answer)}")


def outcome(answer: object) -> StepOutcome:
    """Return `answer` if it is the outcome of a step. Raises TypeError."""
    if not isinstance(answer, StepOutcome):
        raise TypeError(f"step must return a StepOutcome, not {described(answer)}")
    messages(answer.messages)
    return answer


def reward(answer: object) -> float:
    """Return `answer` as a float if it is a finite number: NaN must not poison a group's baseline.

    Raises TypeError or ValueError.
    """
    if not isinstance(answer, Real):
        raise TypeError(f"the reward must be a finite number, not {described(answer)}")
    try:
        value = float(answer)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"the reward must be a finite number, not {described(answer)}")
    return value


def described(answer: object) -> str:
    """Return what was found instead, in at most 80 characters."""
    text = repr(answer) if answer is None or isinstance(answer, Real) else f"a {type(answer).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
