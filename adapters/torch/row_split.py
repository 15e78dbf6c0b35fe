"""Which rank trains which rows of a batch."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def split_rows(tokens: Sequence[int], ranks: int) -> list[list[int]]:
    """Return, for each of `ranks`, the indices of its rows, so that all have about as many tokens.

    `tokens` is the length of each row. Longest first, each row goes to the rank that has the fewest tokens so far: the
    fullest rank then has at most 4/3 of what the best split gives it (R. L. Graham, 1969, "Bounds on multiprocessing
    timing anomalies"). Each rank's rows keep the order of the batch; a rank may have none.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for index in sorted(range(len(tokens)), key=lambda index: -tokens[index]):
        load, rank = loads[0]
        shares[rank].append(index)
        heapq.heapreplace(loads, (load + tokens[index], rank))
    return [sorted(share) for share in shares]
