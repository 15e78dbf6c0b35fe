"""The `Engine` port over a `Link`: what both kinds of vLLM engines have in common."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from typing import Any

from ...core.ports import (
    EngineError,
    EngineGone,
    EngineInfo,
    GenerateRequest,
    Generation,
    Receipt,
    SyncMode,
    Weights,
)
from ...events.types import EngineSampled
from ..engine_setup import EngineSetup, starting
from ..gpus import known_device
from .arguments import engine_arguments
from .guard import GuardedLink
from .link import Link, ask_workers
from .load import engine_load
from .requests import Bounds
from .updating import Paused, Serving

CALL_SHARE = 0.5
"""Of a sync's deadline, for one call to the engine: that it hangs is found before the sync expires."""
STALLED_SHARE = 0.2
"""Of a call's deadline, for an engine that does not process a token."""
FIRST_LEASE = 0
"""Of the weights that an engine starts with; the leases of a run's updates are larger."""


class LinkedEngine:
    """An engine that a link leads to; how that comes about is the subclass's to say (`prepare`, `start`)."""

    def __init__(self, setup: EngineSetup) -> None:
        self.name = setup.name
        self._setup = setup
        self._arguments = engine_arguments(setup.model_path, setup.section, setup.rollout)
        self._gpus: Sequence[int] | None = None
        """Those that the run gave it, by the numbers that the run knows them by; None: whatever it sees."""
        self._link: GuardedLink | None = None
        self._owners: list[str] = []
        """Names under which it has taken a vLLM, one for each start."""
        self._forget()

    def _forget(self) -> None:
        self._serving: Serving | None = None
        self._pause = AsyncExitStack()
        self._paused: Paused | None = None
        self._resume_when_updated = False
        self._lease = FIRST_LEASE
        self._finished: tuple[int, Receipt] | None = None

    def _guarded(self, link: Link) -> GuardedLink:
        limits = self._setup.deadlines
        return GuardedLink(
            link,
            self.name,
            pause_s=limits.weight_sync_s,
            call_s=limits.weight_sync_s * CALL_SHARE,
            stalled_s=limits.llm_call_s * STALLED_SHARE,
        )

    async def _taken_up(self, link: Link, weights: Weights) -> EngineInfo:
        """Serve `weights` with the vLLM behind `link`, within the deadline of a start.

        Raises `EngineGone`, and then, as when it is cancelled, leaves nothing of it behind.
        """
        owner = new_owner(self.name, (socket.gethostname(), os.getpid()))
        async with starting(self.name, self._setup.deadlines.start_s, self.close):
            info = await self._serve(link, weights, owner)
        return replace(info, device=known_device(self._gpus, info.device))

    async def _serve(self, link: Link, weights: Weights, owner: str) -> EngineInfo:
        """Bring the vLLM behind `link` to `weights` and let it decode. Raises `EngineError` or `EngineGone`."""
        self._forget()
        guarded = self._link = self._guarded(link)
        former = list(self._owners)
        self._owners.append(owner)  # an answer that is lost may have been a yes
        said = await ask_workers(guarded, "eventrain_attach", {"owner": owner, "former": former})
        link.bounds = Bounds(said["vocabulary"], said["context_tokens"])
        link.owner = owner
        self._serving = Serving(guarded, owner, keep_cache=self._setup.section.kv_after_sync == "keep")
        await self.pause("abort")
        await self.begin_update(weights, FIRST_LEASE)
        for bucket in range(weights.buckets):
            await self.transfer(bucket, FIRST_LEASE)
        receipt = await self.finish_update(FIRST_LEASE)
        wanted = Receipt(weights.version, weights.tensors, weights.digest)
        if receipt != wanted:
            raise EngineGone(f"{self.name} was to load {wanted} and has loaded {receipt}")
        await self.resume()
        node = "" if said["node"] == socket.gethostname() else said["node"]
        return EngineInfo(said["context_tokens"], said["slots"], said["device"], node)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion; see `Engine.generate`. Cancelling aborts it in vLLM."""
        return await self._connected().generate(request)

    async def pause(self, mode: SyncMode) -> None:
        """Stop decoding; see `Engine.pause`. ``in_flight`` does nothing: there vLLM is paused by `begin_update`.

        Cancelled, vLLM may be paused or not, until `resume`.
        """
        if mode != "in_flight" and self._paused is None:
            self._resume_when_updated = False
            self._paused = await self._pause.enter_async_context(self._started().paused(mode))

    async def fetch(self, weights: Weights) -> None:
        """Have the file of `weights` read and verified by vLLM's workers; see `Engine.fetch`."""
        serving = self._started()
        await serving.fetch(await self._connected().reach(weights.path))

    async def begin_update(self, weights: Weights, lease: int) -> None:
        """Make ready for new weights, pausing vLLM if it is not paused yet; see `Engine.begin_update`."""
        self._check(lease)
        weights = replace(weights, path=await self._connected().reach(weights.path))
        self._check(lease)
        self._lease = lease
        self._finished = None
        if self._paused is None:
            await self.pause("pause")
            self._resume_when_updated = True
        try:
            await self._update().begin(weights, lease)
        except EngineError:
            if self._resume_when_updated and self._update().whole:
                await self.resume()  # nothing was touched: what is in flight goes on
            raise

    async def transfer(self, bucket: int, lease: int) -> None:
        """Take one bucket; see `Engine.transfer`."""
        self._check(lease)
        if self._finished is None or self._finished[0] != lease:
            await self._update().transfer(bucket, lease)

    async def finish_update(self, lease: int) -> Receipt:
        """Serve what was transferred; see `Engine.finish_update`. Decodes again if `begin_update` has paused it."""
        self._check(lease)
        if self._finished is None or self._finished[0] != lease:
            self._finished = (lease, await self._update().finish(lease))
        if self._resume_when_updated:
            await self.resume()
        return self._finished[1]

    async def resume(self) -> None:
        """Decode again. Raises `EngineError`, and stays paused, while an update is not whole."""
        if self._paused is not None and not self._paused.whole:
            raise EngineError(
                f"{self.name} is half updated: the update has to be made again before it may decode"
            )
        self._resume_when_updated = False
        if self._paused is None:
            await self._connected().resume()  # a pause may have been cancelled
            return
        self._paused = None
        await self._pause.aclose()

    async def sampled(self) -> EngineSampled | None:
        """Return vLLM's load as it counts it, or None while it cannot be asked."""
        if self._link is None or self._serving is None:
            return None
        try:
            return engine_load(await self._link.looked_at(), self.name)
        except (EngineError, EngineGone, ValueError):
            return None

    async def close(self) -> None:
        """End the engine and what it started. Requests in flight end in `EngineGone`. Idempotent."""
        link, self._link = self._link, None
        self._forget()
        if link is not None:
            await link.close()

    def _check(self, lease: int) -> None:
        if lease < self._lease:
            raise EngineError(f"lease {lease} has ended: the update under lease {self._lease} replaced it")

    def _update(self) -> Paused:
        self._started()
        if self._paused is None:
            raise EngineError("no update has begun")
        return self._paused

    def _started(self) -> Serving:
        if self._serving is None:
            raise EngineGone(f"{self.name} is not started")
        return self._serving

    def _connected(self) -> GuardedLink:
        if self._link is None:
            raise EngineGone(f"{self.name} is not started")
        return self._link


_starts = count()


def new_owner(name: str, facts: tuple[Any, ...]) -> str:
    """Return a name for this start of an engine that no other start has, in this process or another.

    Chance is part of it: a controller that is started anew in its container has the same host name and process id.
    """
    return ":".join(str(part) for part in (name, *facts, next(_starts), secrets.token_hex(4)))
