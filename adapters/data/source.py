"""A dataset with an order: the one `PromptSource` that all kinds of data share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .order import EpochOrder


class Rows(Protocol):
    """Items by index. The same index always gives an equal item."""

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    def row(self, index: int) -> Mapping[str, Any]:
        """Return the item at ``0 <= index < len(self)``. Raises `DataError` when it can not be read any more."""
        ...


class OrderedSource:
    """A `PromptSource` over `rows`, in a seeded order of its own for every epoch."""

    def __init__(self, rows: Rows, seed: int, shuffle: bool) -> None:
        self._rows = rows
        self._order = EpochOrder(len(rows), seed, shuffle)

    def __len__(self) -> int:
        """Return the number of items in one epoch."""
        return len(self._rows)

    def item(self, epoch: int, position: int) -> tuple[int, Mapping[str, Any]]:
        """Return ``(index, item)`` at `position` of `epoch`. Raises IndexError outside the epoch."""
        index = self._order.index(epoch, position)
        return index, self._rows.row(index)


class GeneratedRows:
    """Items made by number, ``{"number": first + index}``, for environments that need no data file."""

    def __init__(self, size: int, first: int = 0) -> None:
        self._size, self._first = size, first

    def __len__(self) -> int:
        """Return the number of items."""
        return self._size

    def row(self, index: int) -> Mapping[str, Any]:
        """Return the item at `index`."""
        return {"number": self._first + index}
