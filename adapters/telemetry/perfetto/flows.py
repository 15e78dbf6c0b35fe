"""Arrows: from each trajectory to the step that trains it, and from a step to the engines that take its weights."""

from __future__ import annotations

from collections.abc import Iterable


class Flows:
    """Ids of arrows that have begun and not yet arrived."""

    def __init__(self) -> None:
        self._last = 0
        self._of_group: dict[int, list[int]] = {}
        self._to_engine: dict[str, int] = {}
        self._version = -1

    def from_trajectory(self, group: int) -> int:
        """Return the arrow that leaves a trajectory of `group`, or the whole group where it is restored."""
        flow = self._next()
        self._of_group.setdefault(group, []).append(flow)
        return flow

    def has(self, group: int) -> bool:
        """Return whether arrows of `group` are on their way."""
        return group in self._of_group

    def arrive(self, groups: Iterable[int]) -> list[int]:
        """Return the arrows of `groups`, which end here."""
        return [flow for group in groups for flow in self._of_group.pop(group, ())]

    def forget(self, group: int) -> None:
        """Let the arrows of a group that is not trained lead nowhere."""
        self._of_group.pop(group, None)

    def from_step(self, version: int, engines: Iterable[str]) -> list[int]:
        """Return the arrows that leave the step that made weights `version`, one for each of `engines`."""
        self._version = version
        self._to_engine = {engine: self._next() for engine in engines}
        return list(self._to_engine.values())

    def at_engine(self, version: int, engine: str) -> list[int]:
        """Return the arrow that arrives where `engine` takes weights `version`, if there is one."""
        if version != self._version or engine not in self._to_engine:
            return []
        return [self._to_engine.pop(engine)]

    def _next(self) -> int:
        self._last += 1
        return self._last
