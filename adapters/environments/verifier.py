"""One question, one answer, one verdict: the single-turn environment."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ...core.ports import Action, EnvironmentFailed, Message, StepOutcome
from .threads import in_daemon_thread

VerifierFunction = Callable[[str, Mapping[str, Any]], float | Awaitable[float]]
"""``function(completion, item) -> reward``, plain or async. A plain one runs in a thread of its own."""

BUILTIN_FUNCTIONS = ("exact", "contains", "number")

_ROLES = ("system", "user", "assistant", "tool")
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")


class Verifier:
    """Asks the item's prompt and rewards the one answer with what a verifier function returns.

    An item has a prompt (a string, or a list of messages ``{role, content}``) under `prompt_key` and, for the
    built-in functions, the right answer under `answer_key`.

    - ``exact``: the whole answer, without surrounding blanks, is the right one;
    - ``contains``: the right answer stands somewhere in it, not inside a longer word or number;
    - ``number``: the last number in it equals the last number of the right answer.

    `system` is put before a prompt that has no system message of its own.
    """

    def __init__(
        self,
        function: str | VerifierFunction,
        system: str | None = None,
        prompt_key: str = "prompt",
        answer_key: str = "answer",
    ) -> None:
        self._function = builtin_function(function, answer_key) if isinstance(function, str) else function
        self._system, self._prompt_key = system, prompt_key
        self._item: Mapping[str, Any] = {}
        self._completion: str | None = None

    async def reset(self, item: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Return the prompt as messages. Raises `EnvironmentFailed` when the item has none."""
        del seed
        self._item = item
        return opening_messages(field(item, self._prompt_key), self._system)

    async def step(self, action: Action) -> StepOutcome:
        """Take the answer; there is no second turn."""
        self._completion = action.text
        return StepOutcome(done=True)

    async def reward(self) -> float:
        """Return the verdict; 0 when the policy never answered. Cancelling abandons a running function."""
        if self._completion is None:
            return 0.0
        return await call_verifier(self._function, self._completion, self._item)


async def call_verifier(function: VerifierFunction, completion: str, item: Mapping[str, Any]) -> float:
    """Return ``function(completion, item)`` as a float; a plain function runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return float(await function(completion, item))
    verdict = await in_daemon_thread(lambda: function(completion, item), "verifier")
    if inspect.isawaitable(verdict):
        verdict = await verdict
    return float(verdict)


def builtin_function(name: str, answer_key: str) -> VerifierFunction:
    """Return the built-in verifier `name`. Raises ValueError for an unknown one."""
    judges: dict[str, Callable[[str, str], bool]] = {
        "exact": lambda completion, answer: completion.strip() == answer.strip(),
        "contains": _contains,
        "number": _same_number,
    }
    if name not in judges:
        raise ValueError(
            f"function is '{name}', expected 'exact', 'contains', 'number' or 'package.module:function'"
        )
    judge = judges[name]

    async def verify(completion: str, item: Mapping[str, Any]) -> float:
        return float(judge(completion, str(field(item, answer_key))))

    return verify


def field(item: Mapping[str, Any], key: str) -> Any:
    """Return ``item[key]``. Raises `EnvironmentFailed` that names the key and what there is."""
    if key not in item:
        raise EnvironmentFailed(
            f"the item has no '{key}', only {', '.join(sorted(map(str, item))) or 'nothing'}"
        )
    return item[key]


def opening_messages(prompt: Any, system: str | None) -> list[Message]:
    """Return a prompt (a string, or a list of ``{role, content}``) as messages, `system` first."""
    if isinstance(prompt, str):
        messages = [Message("user", prompt)]
    elif isinstance(prompt, Sequence) and prompt:
        messages = [_message(entry) for entry in prompt]
    else:
        raise EnvironmentFailed(f"a prompt is a string or a list of messages, found {type(prompt).__name__}")
    if system is not None and messages[0].role != "system":
        messages.insert(0, Message("system", system))
    return messages


def _message(entry: Any) -> Message:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("content"), str):
        raise EnvironmentFailed(f"a message is an object with 'role' and 'content', found {entry!r:.80}")
    role = entry.get("role")
    if role not in _ROLES:
        raise EnvironmentFailed(f"a message has the role {role!r}, expected one of {', '.join(_ROLES)}")
    return Message(role, entry["content"])


def _contains(completion: str, answer: str) -> bool:
    wanted = answer.strip()
    return bool(wanted) and re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", completion) is not None


def _same_number(completion: str, answer: str) -> bool:
    wanted, found = last_number(answer), last_number(completion)
    if wanted is None:
        raise EnvironmentFailed(f"the right answer {answer!r:.80} has no number in it")
    return found == wanted


def last_number(text: str) -> Decimal | None:
    """Return the last number written in `text`: ``-3``, ``1,234.5``; a minus behind a digit is a subtraction."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None
