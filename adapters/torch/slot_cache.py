"""The keys and values of every sequence that is being decoded, one row each, of unequal length.

A transformers `Cache` that writes where it is told instead of at the end, so that rows of any length share one
forward pass. Rows that are in use lie together at the front: attention reads them as a view, without a copy. The last
column is scratch, where padding writes and nothing ever reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache, PreTrainedConfig

COLUMNS_FIRST = 128
ROWS_FIRST = 8


class Stored(NamedTuple):
    """The keys and values of one row, copied out: [layers, tokens, heads, head size] each."""

    keys: torch.Tensor
    values: torch.Tensor


class SlotCache(Cache):
    """Keys and values [layers, rows, columns, heads, head size], grown as they are needed.

    The shapes are taken from the first forward pass, so that every model with ordinary attention fits.
    """

    def __init__(self, config: PreTrainedConfig, rows_max: int, columns_max: int) -> None:
        super().__init__(layers=[])
        self._layers = config.get_text_config().num_hidden_layers
        self._rows_max = rows_max
        self._columns_max = columns_max
        self._rows = 0
        self._columns = 0
        self._keys: torch.Tensor | None = None
        self._values: torch.Tensor | None = None
        self._first = self._count = self._width = 0
        self._where = torch.empty(0, dtype=torch.int64)

    def aim(self, first: int, write: NDArray[np.int64], width: int, device: torch.device) -> None:
        """Direct the next forward pass at the rows from `first` on.

        write: int64 [rows, queries], the column of every new token, negative for padding. The rows are attended
        over their first `width` columns.
        """
        count = len(write)
        self._reserve(first + count, width)
        stride = self._columns + 1
        row_starts = np.arange(first, first + count)[:, None] * stride
        where = row_starts + np.where(write < 0, self._columns, write)
        self._where = torch.from_numpy(where.reshape(-1)).to(device)
        self._first, self._count, self._width = first, count, width

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new tokens' keys and values [rows, heads, queries, size]; return all of the aimed rows'."""
        if self._keys is None or self._values is None:
            self._keys = self._room(key_states)
            self._values = self._room(value_states)
        return (
            self._write(self._keys[layer_idx], key_states),
            self._write(self._values[layer_idx], value_states),
        )

    def _write(self, stored: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        new = states.transpose(1, 2).reshape(-1, states.shape[1], states.shape[3])
        stored.view(-1, stored.shape[2], stored.shape[3]).index_copy_(0, self._where, new)
        return stored[self._first : self._first + self._count, : self._width].transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the width of the aimed rows."""
        return self._width

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` columns of row `source` over row `target`."""
        for stored in (self._keys, self._values):
            if stored is not None:
                stored[:, target, :tokens] = stored[:, source, :tokens]

    def spread(self, sources: list[int], first: int, tokens: int) -> None:
        """Copy the first `tokens` columns of rows `sources` to as many rows from `first` on."""
        self._reserve(first + len(sources), tokens)
        for stored in (self._keys, self._values):
            if stored is not None:
                stored[:, first : first + len(sources), :tokens] = stored[:, sources, :tokens]

    def take_out(self, row: int, tokens: int) -> Stored | None:
        """Return a copy of the first `tokens` columns of `row`, or None before the first forward pass."""
        if self._keys is None or self._values is None:
            return None
        return Stored(self._keys[:, row, :tokens].clone(), self._values[:, row, :tokens].clone())

    def put_back(self, row: int, stored: Stored, tokens: int) -> None:
        """Write the first `tokens` columns of what `take_out` returned into `row`."""
        self._reserve(row + 1, tokens)
        if self._keys is None or self._values is None:
            raise RuntimeError("nothing can have been taken out of an empty cache")
        self._keys[:, row, :tokens] = stored.keys[:, :tokens]
        self._values[:, row, :tokens] = stored.values[:, :tokens]

    def _reserve(self, rows: int, columns: int) -> None:
        """Make room by doubling."""
        if rows <= self._rows and columns <= self._columns:
            return
        new_rows, new_columns = max(self._rows, ROWS_FIRST), max(self._columns, COLUMNS_FIRST)
        while new_rows < rows:
            new_rows *= 2
        while new_columns < columns:
            new_columns *= 2
        old_columns = self._columns
        self._rows, self._columns = min(new_rows, self._rows_max), min(new_columns, self._columns_max)
        if self._keys is not None and self._values is not None:
            self._keys = self._grown(self._keys, old_columns)
            self._values = self._grown(self._values, old_columns)

    def _grown(self, old: torch.Tensor, columns: int) -> torch.Tensor:
        layers, rows, _, heads, size = old.shape
        new = old.new_zeros((layers, self._rows, self._columns + 1, heads, size))
        new[:, :rows, :columns] = old[:, :, :columns]
        return new

    def _room(self, states: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = states.shape
        # Zeros, not leftovers: what is masked has weight 0, but 0 times NaN is NaN.
        return states.new_zeros((self._layers, self._rows, self._columns + 1, heads, size))
