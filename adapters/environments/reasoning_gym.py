"""Tasks of the reasoning-gym library as environments: the task itself scores the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...core.ports import Action, EnvironmentFailed, Message, StepOutcome
from ..data.gym import options_key, scorer
from .gym_answers import is_harmless
from .threads import in_daemon_thread
from .verifier import field

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGymEnvironment:
    """Asks a task's question; the reward is the task's own ``score_answer`` of the answer.

    `instruction` is a line behind the question, `system` a system message before it. With `answer` set to
    ``"tags"`` the answer is the last ``<answer>...</answer>`` and what has no tags counts as no answer; with
    ``"last_line"`` it is the last line that is not blank; with ``"text"`` it is all of the text. Surrounding
    blanks are taken off.
    """

    def __init__(
        self,
        answer: Literal["text", "tags", "last_line"] = "text",
        instruction: str | None = None,
        system: str | None = None,
    ) -> None:
        self._answer, self._instruction, self._system = answer, instruction, system
        self._item: Mapping[str, Any] = {}
        self._completion: str | None = None

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Return the question as messages. Raises `EnvironmentFailed` for an item that is not of the library."""
        del seed
        self._item = item
        question = field(item, "question")
        text = question if self._instruction is None else f"{question}\n{self._instruction}"
        opening = [Message("user", text)]
        return opening if self._system is None else [Message("system", self._system), *opening]

    async def step(self, action: Action) -> StepOutcome:
        """Take the answer; there is no second turn."""
        self._completion = action.text
        return StepOutcome(done=True)

    async def reward(self) -> float:
        """Return the task's score of the answer, from 0 to 1. Cancelling abandons a running scorer."""
        if self._completion is None:
            return 0.0
        answer = extracted(self._completion, self._answer)
        return await in_daemon_thread(lambda: score(answer, self._item), "reasoning-gym score")


def extracted(completion: str, how: Literal["text", "tags", "last_line"]) -> str | None:
    """Return the answer that a completion gives, or None when it gives none."""
    if how == "tags":
        tagged = _TAGGED.findall(completion)
        return tagged[-1].strip() if tagged else None
    if how == "last_line":
        lines = completion.split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), None)
    return completion.strip() or None


def score(answer: str | None, item: Mapping[str, Any]) -> float:
    """Score `answer` to `item` with the task that made it; blocks while the task computes.

    An answer that the task's scorer would run as code is scored like no answer at all.
    """
    task, options = _origin(item)
    safe = answer if answer is None or is_harmless(answer, task) else None
    return float(scorer(task, options_key(options)).score_answer(safe, item))


def _origin(item: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    made_by = item.get("gym")
    if isinstance(made_by, Mapping):
        return made_by["task"], made_by["options"]
    metadata = item.get("metadata")
    if isinstance(metadata, Mapping) and "source_dataset" in metadata:
        return metadata["source_dataset"], {}
    raise EnvironmentFailed(
        "the item does not say which reasoning-gym task made it: data.kind = 'reasoning_gym' does"
    )
