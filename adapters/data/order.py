"""The order in which the items of an epoch are drawn."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from random import Random

_EPOCHS_KEPT = 2
"""A run walks through one epoch and, at its end, looks into the next."""


class EpochOrder:
    """Maps a position in an epoch to a dataset index.

    Each epoch has a permutation of its own, drawn from ``(seed, epoch)`` alone: any process that asks gets the
    same one, whatever it asked before. It holds two permutations at most, 4 bytes per item.
    """

    def __init__(self, length: int, seed: int, shuffle: bool) -> None:
        self._length, self._seed, self._shuffle = length, seed, shuffle
        self._permutations: OrderedDict[int, array[int]] = OrderedDict()

    def index(self, epoch: int, position: int) -> int:
        """Return the dataset index at `position` of `epoch`. Raises IndexError outside ``0 <= position < length``."""
        if not 0 <= position < self._length:
            raise IndexError(f"position {position} is outside an epoch of {self._length} items")
        if epoch < 0:
            raise IndexError(f"epoch {epoch} is negative")
        if not self._shuffle:
            return position
        return self._permutation(epoch)[position]

    def _permutation(self, epoch: int) -> array[int]:
        found = self._permutations.get(epoch)
        if found is None:
            found = array("I", range(self._length))
            # A string seed is hashed with SHA-512, so it does not depend on PYTHONHASHSEED.
            Random(f"order:{self._seed}:{epoch}").shuffle(found)
            self._permutations[epoch] = found
            if len(self._permutations) > _EPOCHS_KEPT:
                self._permutations.popitem(last=False)
        self._permutations.move_to_end(epoch)
        return found
