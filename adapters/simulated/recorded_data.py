"""The data order of a log, and payloads in the place of those that it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...events.trajectory import TrajectoryPayload, float32_bytes, int32_bytes
from ...events.types import PayloadRef, TrajectoryCompleted
from .recording import Recording


class RecordedPrompts:
    """The data order as far as the log knows it; what it does not know are the other items, in their order."""

    def __init__(self, recording: Recording) -> None:
        assert recording.started is not None
        self._count = recording.started.prompts
        self._drawn = recording.drawn
        self._last = max(recording.drawn, default=-1)
        self._quarantined = recording.quarantined
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return self._count

    def item(self, epoch: int, position: int) -> tuple[int, Mapping[str, Any]]:
        """Return the item at `position` of `epoch`."""
        if epoch not in self._orders:
            self._orders[epoch] = self._order(epoch)
        index = self._orders[epoch][position]
        return index, {"number": index}

    def _order(self, epoch: int) -> list[int]:
        """Return a permutation; what was passed over in the log are items in quarantine."""
        first = epoch * self._count
        known = [self._drawn.get(first + position) for position in range(self._count)]
        left = dict.fromkeys(range(self._count))
        for index in known:
            if index is not None:
                left.pop(index, None)
        passed_over = [index for index in dict.fromkeys(self._quarantined) if index in left]
        order: list[int] = []
        for position, index in enumerate(known):
            if index is not None:
                order.append(index)
                continue
            passed = first + position < self._last and passed_over
            order.append(passed_over.pop(0) if passed else next(iter(left)))
            left.pop(order[-1])
        return order


@dataclass
class RecordedPayloads:
    """Payloads in memory; those of lives before this one are made up, of the recorded lengths."""

    before: dict[PayloadRef, TrajectoryCompleted] = field(default_factory=dict)
    _stored: list[bytes] = field(default_factory=list)

    PACK = 2**31
    """Of the payloads of this run."""

    def put(self, data: bytes) -> PayloadRef:
        """Keep `data`."""
        self._stored.append(data)
        return PayloadRef(digest="", length=len(data), pack=self.PACK, offset=len(self._stored) - 1)

    def get(self, ref: PayloadRef) -> bytes:
        """Return it."""
        if ref.pack == self.PACK:
            return self._stored[ref.offset]
        return made_up(self.before[ref])


def made_up(event: TrajectoryCompleted) -> bytes:
    """Return a payload with as many tokens of each version as `event` says."""
    read, wrote = event.prompt_tokens, event.completion_tokens
    versions = [-1] * read + [version for version, count in event.version_spans for _ in range(count)]
    return TrajectoryPayload(
        tokens=int32_bytes([0] * (read + wrote)),
        sampled=bytes(read) + b"\x01" * wrote,
        logprobs=float32_bytes([0.0] * (read + wrote)),
        versions=int32_bytes(versions),
        opening=[],
        turns=[],
        reward=event.reward,
    ).encode()
