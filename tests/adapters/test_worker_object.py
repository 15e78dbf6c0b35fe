"""The object that a worker holds, without a worker around it."""

from __future__ import annotations

import asyncio

import pytest

from eventrain.adapters.worker_object import HeldObject


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def count(self) -> int:
        self.calls += 1
        return self.calls


def make(_: dict[str, object]) -> Counter:
    return Counter()


def test_a_call_that_is_cancelled_before_it_begins_never_does() -> None:
    """A cancel may overtake its call on the way: the call is not made, and others are."""

    async def main() -> None:
        held = HeldObject()
        assert await held.make(f"{__name__}:make", {}) == ["up"]
        held.cancel(0)
        with pytest.raises(asyncio.CancelledError):
            await held.answer(0, "count", {})
        assert await held.answer(1, "count", {}) == ["ok", 1, 1]
        held.cancel(1)  # too late
        assert await held.answer(2, "count", {}) == ["ok", 2, 2]
        assert await held.close()

    asyncio.run(main())


def test_cancels_that_come_too_late_are_not_kept_for_ever() -> None:
    """Of those that found no call the newest are remembered, so that memory stays bounded."""

    async def main() -> None:
        held = HeldObject()
        await held.make(f"{__name__}:make", {})
        for number in range(5000):
            held.cancel(number)
        assert await held.answer(0, "count", {}) == ["ok", 0, 1]
        with pytest.raises(asyncio.CancelledError):
            await held.answer(4999, "count", {})

    asyncio.run(main())
