"""How weights are exchanged in a running vLLM without a way to get it wrong.

Two things kill a vLLM, or worse, leave it sampling from garbage: weights that change while it computes, and decoding
with weights of which half are new. Neither can be written here. `Serving` can have a file read, and has no method that
touches the model's weights; those are on `Paused`, which exists only within ``async with serving.paused(mode)``, and
that block does not resume an engine whose update is not whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ...core.ports import EngineError, EngineGone, Receipt, SyncMode, Weights
from .link import CallRefused, Link, PauseMode, ask_each, ask_workers
from .ownership import named

FETCH_LOOK_S = 0.01
"""Before the first look whether weights have been fetched; each waits twice as long as the one before, until:"""
FETCH_LOOK_MAX_S = 0.2

_MODES: dict[SyncMode, PauseMode] = {"drain": "wait", "pause": "keep", "abort": "abort", "in_flight": "keep"}


class Serving:
    """A vLLM that decodes. `owner` names whose leases count; unique to each start of an engine."""

    def __init__(self, link: Link, owner: str, *, keep_cache: bool) -> None:
        self._link = link
        self._owner = owner
        self._keep_cache = keep_cache

    async def fetch(self, path: str) -> None:
        """Have all workers read and verify a file of weights, beside the decoding. Raises `EngineError`."""
        await ask_workers(self._link, "eventrain_fetch", {"owner": self._owner, "path": path})
        look_s = FETCH_LOOK_S
        while not all(await ask_each(self._link, "eventrain_fetched", {"owner": self._owner})):
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, FETCH_LOOK_MAX_S)

    @asynccontextmanager
    async def paused(self, mode: SyncMode) -> AsyncIterator[Paused]:
        """Stop decoding, as `mode` says, for the length of the block; see `Engine.pause`.

        The engine decodes again after a block that ends well, and stays paused after one that raises. Raises
        `EngineGone` instead of resuming an engine that is half updated.
        """
        await self._link.pause(_MODES[mode], clear_cache=not self._keep_cache)
        paused = Paused(self._link, self._owner, keep_cache=self._keep_cache)
        try:
            yield paused
        finally:
            paused.over = True
        if not paused.whole:
            raise EngineGone("the update of its weights was left half done")
        await self._link.resume()


class Paused:
    """A vLLM that computes nothing, and so may take weights. Made by `Serving.paused` alone."""

    def __init__(self, link: Link, owner: str, *, keep_cache: bool) -> None:
        self._link = link
        self._owner = owner
        self._keep_cache = keep_cache
        self._version = -1
        self.whole = True
        """Whether the weights are all of one version."""
        self.over = False
        """Whether the pause has ended, and with it the use of this object."""

    async def begin(self, weights: Weights, lease: int) -> None:
        """Begin an update, or begin it again; see `Engine.begin_update`. From here on the engine is not whole."""
        was_whole, self.whole = self.whole, False
        try:
            await self._ask("begin", lease, version=weights.version, path=weights.path)
        except CallRefused:
            self.whole = was_whole
            raise
        self._version = weights.version

    async def transfer(self, bucket: int, lease: int) -> None:
        """Take one bucket; see `Engine.transfer`."""
        await self._ask("transfer", lease, bucket=bucket)

    async def finish(self, lease: int) -> Receipt:
        """Finish the update; see `Engine.finish_update`. The engine is whole again only once all of this is done.

        Keys and values of the old weights are forgotten, and what is in flight is computed anew, unless they are to
        be kept.
        """
        receipt = Receipt(**await self._ask("finish", lease))
        await self._link.set_version(named(self._owner, receipt.version))
        if not self._keep_cache and not await self._link.drop_cache():
            raise EngineError("vLLM did not drop its KV cache, which the old weights have filled")
        self.whole = True
        return receipt

    async def _ask(self, what: str, lease: int, **request: Any) -> Any:
        if self.over:
            raise EngineError("the engine is not paused any more: no weights can be exchanged")
        return await ask_workers(
            self._link, f"eventrain_{what}", {"owner": self._owner, "lease": lease, **request}
        )
