"""The prompt source, as far as a log tells of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...events.types import DataExhausted, Event, PromptDrawn
from ..projections import Prompts

UNKNOWN = -1
"""Index of a prompt that the log does not tell."""


class LoggedPrompts:
    """Stands in for the data of a run: `item` is what the decisions that are being checked drew.

    The items themselves are not in the log, only their indices, and those only of prompts that were drawn. A
    number below one that was drawn was passed over, which only a quarantined item is: its index is taken to be
    one of those, if there is one that has not had its turn in this epoch. What a prompt that nobody drew would have
    been is not known, and neither is whether an index that was drawn is the one that the data has there; that an
    order holds each item once is asked.
    """

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._drawn: dict[int, int] = {}
        self._all_drawn = False
        self._epoch = -1
        self._seen: set[int] = set()  # indices that were drawn afresh in this epoch

    def __len__(self) -> int:
        return self._prompts.per_epoch

    def tell(self, decisions: Iterable[Event]) -> None:
        """Take `decisions` for what is being checked: they tell what their prompts are."""
        self._drawn.clear()
        self._all_drawn = False
        once: set[tuple[int, int]] = set()
        for event in decisions:
            if type(event) is PromptDrawn:
                place = (event.epoch, event.index)
                self._drawn[event.prompt] = UNKNOWN if place in once else event.index
                once.add(place)
            elif type(event) is DataExhausted:
                self._all_drawn = True

    def item(self, epoch: int, position: int) -> tuple[int, Mapping[str, Any]]:
        """Return the index that the log tells, and no item."""
        prompt = epoch * len(self) + position
        index = self._drawn.get(prompt)
        if index is not None:
            return (UNKNOWN if self._again(epoch, index) else index), {}
        passed_over = self._all_drawn or prompt < max(self._drawn, default=-1)
        return (self._quarantined(epoch) if passed_over else UNKNOWN), {}

    def drawn(self, event: PromptDrawn) -> None:
        """Take note of a prompt that was drawn; asked before it is folded."""
        if event.prompt in self._prompts.index_of_returned:
            return
        if event.epoch != self._epoch:
            self._epoch = event.epoch
            self._seen.clear()
        self._seen.add(event.index)

    def _again(self, epoch: int, index: int) -> bool:
        """Return whether the index has had its turn in this epoch: an order holds each item once."""
        return epoch == self._epoch and index in self._seen

    def _quarantined(self, epoch: int) -> int:
        """Return a quarantined index whose turn in this epoch may have been passed over."""
        seen = self._seen if epoch == self._epoch else ()
        return next((index for index in self._prompts.quarantined if index not in seen), UNKNOWN)
