"""A verifier function: what a completion is worth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def right_and_brief(completion: str, item: Mapping[str, Any]) -> float:
    """Return 0 without the right word; with it, 1 for the word alone and less for every further word."""
    words = re.findall(r"\w+", completion.lower())
    if item["answer"].lower() not in words:
        return 0.0
    return 1.0 / len(words) ** 0.5
