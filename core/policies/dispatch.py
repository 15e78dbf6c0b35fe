"""What a policy decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One group that is due: for step `target`, generated from `version` on."""

    target: int
    version: int
