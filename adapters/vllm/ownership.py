"""Whose weights a vLLM samples with: the version that it puts on each token says the owner too.

Two runs at one server take its weights from each other. Without the owner, an answer of the other's weights would look
like one of ours as long as the numbers are alike.
"""

from __future__ import annotations

from ...core.ports import EngineGone


def named(owner: str, version: int) -> str:
    """Return the name by which a vLLM knows weights `version` of `owner`."""
    return f"{version}@{owner}"


def version_named(name: str, owner: str) -> int:
    """Return the version in `name`. Raises `EngineGone` for weights of another owner, and for what is no such name."""
    number, _, whose = name.partition("@")
    if whose != owner or not number.isdecimal():
        raise EngineGone(f"it sampled with weights '{name}', which are not this run's: another one has taken it over")
    return int(number)
