"""The learner's ranks from the controller's side: started together, called together, and watched.

Ranks meet in collectives, in which one that is gone or stuck holds up all others without a word. So while a call is
under way each rank is asked what it does, about once a second, on its event loop, which answers whatever its thread
waits for. A rank that has ended, or the one that the others wait for, becomes a `LearnerGone` with its number and its
phase, and all other ranks are killed: nothing is left in a collective. Imports neither torch nor numpy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ...core.config import DeadlineSection, LearnerSection
from ...core.ports import CheckpointError, LearnerGone
from ..launching import Launcher, Worker
from ..worker import RemoteError, WorkerFailed, WorkerGone
from .progress import Where

TARGET = "eventrain.adapters.torch.learner_process:make"
LOOK_S = 1.0
"""Between two questions to a rank, and how long it may take to answer one."""
LOOKS = 4
"""In the time in which a rank has to make progress, at least."""
STARTING = ("join", "start")
PEER_FAILED = "PeerFailed"
"""What a rank raises when it went back because of another one."""

Failure: TypeAlias = WorkerGone | RemoteError | TimeoutError


class LearnerRanks:
    """The workers of all ranks, in their order. Made by `start`, ended by `close`."""

    def __init__(self, workers: Sequence[Worker], deadlines: DeadlineSection) -> None:
        self._workers = workers
        self._deadlines = deadlines
        self._seen = [Where(phase="", progress=0) for _ in workers]
        self._mute: set[int] = set()
        """Ranks that did not answer the newest question."""

    @classmethod
    async def start(
        cls,
        launcher: Launcher,
        settings: Mapping[str, Any],
        section: LearnerSection,
        log_path: Path,
        deadlines: DeadlineSection,
    ) -> LearnerRanks:
        """Start the workers, and have them meet. Raises `LearnerGone`; failed or cancelled, it leaves none behind."""
        workers: dict[int, Worker] = {}
        threads = str(section.threads)

        async def start_one(rank: int) -> None:
            alone = section.ranks == 1
            log = log_path if alone else log_path.with_stem(f"{log_path.stem}-{rank}")
            try:
                workers[rank] = await launcher.start(
                    TARGET,
                    {**settings, "rank": rank},
                    name="learner" if alone else f"learner-{rank}",
                    log_path=log,
                    deadline_s=deadlines.start_s,
                    env={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"},
                )
            except WorkerFailed as error:
                raise LearnerGone(str(error), rank=None if alone else rank, phase="start") from error

        try:
            async with asyncio.TaskGroup() as group:
                for rank in range(section.ranks):
                    group.create_task(start_one(rank))
            ranks = cls([workers[rank] for rank in range(section.ranks)], deadlines)
            await ranks._meet()
        except BaseException as error:
            await _close(list(workers.values()), 0)
            if isinstance(error, BaseExceptionGroup):
                raise _first(error)  # noqa: B904 - it has a cause of its own
            raise
        return ranks

    @property
    def pids(self) -> list[int | None]:
        """Their processes, where these are of this machine."""
        return [worker.pid for worker in self._workers]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of their machines; empty where it is the controller's own."""
        names = tuple(worker.node for worker in self._workers)
        return names if any(names) else ()

    def __len__(self) -> int:
        return len(self._workers)

    async def call(self, method: str, deadline_s: float, each: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Call `method` of all ranks, with what `each` has for them; return their answers.

        Raises `CheckpointError` where all have gone back from one, else `LearnerGone`. The silence of ranks counts
        while they train, publish and write checkpoints; not while they start, which has one deadline for all of it.
        Cancelled, what they do goes on.
        """
        failures: list[tuple[int, Failure]] = []
        async with asyncio.TaskGroup() as group:
            calls: dict[asyncio.Task[Any], int] = {
                group.create_task(self._answer(rank, method, deadline_s, params, failures)): rank
                for rank, params in enumerate(each)
            }
            silent = group.create_task(self._watch(calls, silence_s=deadline_s if method in STARTING else None))
            try:
                gone = await self._answered(calls, failures, silent)
            finally:
                for task in (*calls, silent):
                    task.cancel()
        if gone is not None:
            await self.close(0)
            raise gone
        if failures:
            raise self._error(method, deadline_s, failures)
        return [call.result() for call in calls]

    async def close(self, deadline_s: float) -> None:
        """End all ranks, at once where `deadline_s` is 0. Idempotent."""
        await _close(self._workers, deadline_s)

    async def _meet(self) -> None:
        if len(self) == 1:
            return
        try:
            local = not self.nodes
            address = await self._workers[0].call("offer", deadline_s=self._deadlines.start_s, local=local)
        except (WorkerGone, RemoteError, TimeoutError) as error:
            raise LearnerGone(f"the ranks have no place to meet: {error}", rank=0, phase="offer") from error
        await self.call("join", self._deadlines.start_s, [{"address": address}] * len(self))

    async def _answer(
        self,
        rank: int,
        method: str,
        deadline_s: float,
        params: Mapping[str, Any],
        failures: list[tuple[int, Failure]],
    ) -> Any:
        try:
            limit_s = deadline_s + self._deadlines.close_s
            return await self._workers[rank].call(method, deadline_s=limit_s, **params)
        except (WorkerGone, RemoteError, TimeoutError) as error:
            failures.append((rank, error))

    async def _answered(
        self,
        calls: Mapping[asyncio.Task[Any], int],
        failures: list[tuple[int, Failure]],
        silent: asyncio.Task[LearnerGone],
    ) -> LearnerGone | None:
        """Wait until all ranks have answered, be it with an error; return why they will not."""
        loop = asyncio.get_running_loop()
        waiting: set[asyncio.Task[Any]] = set(calls)
        until: float | None = None
        while waiting:
            left = None if until is None else max(0.0, until - loop.time())
            await asyncio.wait({*waiting, silent}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            waiting = {call for call in waiting if not call.done()}
            for rank, error in failures:
                if isinstance(error, WorkerGone):
                    return self._lost(rank, str(error))
            if silent.done() and not failures:
                return silent.result()
            if failures and until is None:
                # What one rank raises of what all can raise, all do. Else the others wait for it for ever, or for
                # one of which it is not known yet that it has ended.
                until = loop.time() + self._deadlines.close_s
            if until is not None and (silent.done() or loop.time() >= until) and waiting:
                rank, error = failures[0]
                return self._lost(rank, str(error))
        return None

    def _error(
        self, method: str, deadline_s: float, failures: list[tuple[int, Failure]]
    ) -> CheckpointError | LearnerGone:
        """Return what the answers come to when every rank has given one."""
        own = [(rank, error) for rank, error in failures if getattr(error, "kind", "") != PEER_FAILED]
        rank, error = (own or failures)[0]
        if not isinstance(error, RemoteError):
            return self._lost(rank, f"the learner did not answer '{method}' within {deadline_s:g} s")
        if error.kind == CheckpointError.__name__:
            return CheckpointError(error.message)
        return self._lost(rank, error.message or error.kind)

    # Watching

    async def _watch(self, calls: Mapping[asyncio.Task[Any], int], silence_s: float | None) -> LearnerGone:
        """Return once the ranks that have not answered have made no progress for too long."""
        if len(self) == 1:
            await asyncio.Event().wait()  # nobody waits for it but the controller, whose deadline is enough
        limit_s = silence_s or self._deadlines.rank_silence_s
        loop = asyncio.get_running_loop()
        least, since = (-1, 0), loop.time()
        while True:
            await self._look(min(LOOK_S, limit_s / LOOKS))
            waiting = [rank for call, rank in calls.items() if not call.done()]
            if not waiting:
                await asyncio.Event().wait()  # all have answered, and this is about to be cancelled
            newest = (min(self._seen[rank]["progress"] for rank in waiting), len(waiting))
            if newest != least:
                least, since = newest, loop.time()
            elif loop.time() - since >= limit_s:
                return self._silence(waiting, limit_s)
            await asyncio.sleep(min(LOOK_S, limit_s / LOOKS))

    async def _look(self, limit_s: float) -> None:
        async def look(rank: int) -> None:
            try:
                self._seen[rank] = await self._workers[rank].call("where", deadline_s=limit_s)
                self._mute.discard(rank)
            except (TimeoutError, WorkerGone, RemoteError):
                self._mute.add(rank)

        async with asyncio.TaskGroup() as group:
            for rank in range(len(self)):
                group.create_task(look(rank))

    def _silence(self, waiting: Sequence[int], limit_s: float) -> LearnerGone:
        """Return who does not move: one that does not even answer, else the one that is behind all others."""
        least = min(self._seen[rank]["progress"] for rank in waiting)
        behind = [rank for rank in waiting if self._seen[rank]["progress"] == least]
        mute = sorted(self._mute & set(waiting), key=lambda rank: self._seen[rank]["progress"])
        what = f"made no progress for {limit_s:g} s"
        if mute:
            return self._lost(mute[0], f"{self._workers[mute[0]].name} {what} and does not answer")
        if len(behind) == 1:
            return self._lost(behind[0], f"{self._workers[behind[0]].name} {what}")
        names = " and ".join(self._workers[rank].name for rank in behind)
        return LearnerGone(f"{names} {what}, in {self._seen[behind[0]]['phase']}", phase=self._seen[behind[0]]["phase"])

    def _lost(self, rank: int, text: str) -> LearnerGone:
        if len(self) == 1:
            return LearnerGone(text)
        phase = self._seen[rank]["phase"]
        return LearnerGone(f"rank {rank}, in {phase or 'start'}: {text}", rank=rank, phase=phase)


async def _close(workers: Sequence[Worker], deadline_s: float) -> None:
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.close(deadline_s))


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
