"""The learner's ranks from the controller's side: started together, called together, and watched.

Ranks meet in collectives, in which one that is gone or stuck holds up all others without a word. So while a call is
under way each rank is asked what it does, about once a second, on its event loop, which answers whatever its thread
waits for. A rank that has ended, or the one that the others wait for, becomes a `LearnerGone` with its number and its
phase, and all other ranks are killed: nothing is left in a collective. Imports neither torch nor numpy.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ...core.config import DeadlineSection, LearnerSection
from ...core.ports import CheckpointError, LearnerGone
from ..launching import Launcher, Worker
from ..worker import RemoteError, WorkerFailed, WorkerGone
from .progress import IDLE, Where

TARGET = "eventrain.adapters.torch.learner_process:make"
LOOK_S = 1.0
"""Between two questions to a rank, and how long it may take to answer one."""
LOOK_FIRST_S = 0.05
"""Between the first two questions of a call; the pause doubles until it is `LOOK_S`. A short call is seen, too."""
LOOKS = 4
"""In the time in which a rank has to make progress, at least."""
STARTING = ("join", "start")
PEER_FAILED = "PeerFailed"
"""What a rank raises when it went back because of another one."""

Failure: TypeAlias = WorkerGone | RemoteError | TimeoutError


@dataclass
class _Call:
    """A call of all ranks, under way."""

    method: str
    deadline_s: float
    answers: dict[asyncio.Task[Any], int] = field(default_factory=dict)
    """Of each rank, in their order."""
    failures: list[tuple[int, Failure]] = field(default_factory=list)
    """Ranks that raised something, in the order in which it came home."""

    @property
    def waiting(self) -> dict[asyncio.Task[Any], int]:
        """The ranks that have not answered."""
        return {answer: rank for answer, rank in self.answers.items() if not answer.done()}


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

    @property
    def gpus(self) -> Sequence[int] | None:
        """The GPUs that rank 0 was given; see `Worker.gpus`."""
        return self._workers[0].gpus

    def __len__(self) -> int:
        return len(self._workers)

    async def call(self, method: str, deadline_s: float, each: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Call `method` of all ranks, with what `each` has for them; return their answers.

        Raises `CheckpointError` where all have gone back from one, else `LearnerGone`. The silence of ranks counts
        while they train, publish and write checkpoints; not while they start, which has one deadline for all of it.
        Cancelled, the ranks go on with what they do.
        """
        under_way = _Call(method, deadline_s)
        self._seen = [Where(phase=method, progress=seen["progress"]) for seen in self._seen]
        async with asyncio.TaskGroup() as group:
            for rank, params in enumerate(each):
                under_way.answers[group.create_task(self._answer(under_way, rank, params))] = rank
            silent = group.create_task(self._watch(under_way))
            try:
                gone = await self._answered(under_way, silent)
            finally:
                for task in (*under_way.answers, silent):
                    task.cancel()
        if gone is not None:
            await self.close(0)
            raise gone
        if under_way.failures:
            raise self._error(under_way.failures)
        return [answer.result() for answer in under_way.answers]

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

    async def _answer(self, under_way: _Call, rank: int, params: Mapping[str, Any]) -> Any:
        try:
            limit_s = under_way.deadline_s + self._deadlines.close_s
            return await self._workers[rank].call(under_way.method, deadline_s=limit_s, **params)
        except (WorkerGone, RemoteError, TimeoutError) as error:
            if isinstance(error, RemoteError) and len(self) > 1:
                await self._look_at(rank, LOOK_S)  # it lives, and knows where it was
            under_way.failures.append((rank, error))

    async def _answered(self, under_way: _Call, silent: asyncio.Task[LearnerGone]) -> LearnerGone | None:
        """Wait until all ranks have answered, be it with an error; return why they will not."""
        loop = asyncio.get_running_loop()
        failures, until = under_way.failures, math.inf
        while waiting := under_way.waiting:
            left = None if until == math.inf else max(0.0, until - loop.time())
            await asyncio.wait({*waiting, silent}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for rank, error in failures:
                if isinstance(error, WorkerGone):
                    return self._lost(rank, str(error))
            late = [rank for rank, error in failures if isinstance(error, TimeoutError)]
            if late:
                what = f"the learner did not answer '{under_way.method}' within {under_way.deadline_s:g} s"
                late += under_way.waiting.values()
                return self._lost(self._suspect(late), what, of=late)
            if not under_way.waiting:
                return None
            if failures and (silent.done() or loop.time() >= until):
                rank, error = failures[0]
                return self._lost(rank, str(error))
            if silent.done():
                return silent.result()
            if failures and until == math.inf:
                # What one rank raises of what all can raise, all do. Else the others wait for it for ever, or for
                # one of which it is not known yet that it has ended.
                until = loop.time() + self._deadlines.close_s
        return None

    def _error(self, failures: Sequence[tuple[int, Failure]]) -> CheckpointError | LearnerGone:
        """Return what the answers come to when every rank has given one, some of them an error."""
        rank, error = next(
            (one for one in failures if getattr(one[1], "kind", "") != PEER_FAILED), failures[0]
        )
        if not isinstance(error, RemoteError):
            return self._lost(rank, str(error))
        if error.kind == CheckpointError.__name__:
            return CheckpointError(error.message)
        return self._lost(rank, error.message or error.kind)

    # Watching

    async def _watch(self, under_way: _Call) -> LearnerGone:
        """Return once the ranks that have not answered have made no progress for too long."""
        if len(self) == 1:
            await asyncio.Event().wait()  # nobody waits for it but the controller, whose deadline is enough
        loop = asyncio.get_running_loop()
        starting = under_way.method in STARTING
        limit_s = under_way.deadline_s if starting else self._deadlines.rank_silence_s
        look_s = min(LOOK_S, limit_s / LOOKS)
        newest, since = (-1, 0), loop.time()
        pause_s = LOOK_FIRST_S
        while True:
            await self._look(look_s)
            waiting = list(under_way.waiting.values())
            if not waiting:
                await asyncio.Event().wait()  # all have answered, and this is about to be cancelled
            least = (min(self._seen[rank]["progress"] for rank in waiting), len(waiting))
            if least != newest:
                newest, since = least, loop.time()
            elif loop.time() - since >= limit_s:
                return self._silence(waiting, limit_s)
            await asyncio.sleep(min(pause_s, look_s))
            pause_s *= 2

    async def _look(self, limit_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            for rank in range(len(self)):
                group.create_task(self._look_at(rank, limit_s))

    async def _look_at(self, rank: int, limit_s: float) -> None:
        try:
            where: Where = await self._workers[rank].call("where", deadline_s=limit_s)
            # Idle is one that has not begun with what it was called for, or has done it.
            phase = self._seen[rank]["phase"] if where["phase"] == IDLE else where["phase"]
            self._seen[rank] = Where(phase=phase, progress=where["progress"])
            self._mute.discard(rank)
        except (TimeoutError, WorkerGone, RemoteError):
            self._mute.add(rank)

    def _silence(self, waiting: Sequence[int], limit_s: float) -> LearnerGone:
        suspect = self._suspect(waiting)
        if suspect is None:
            names = " and ".join(self._workers[rank].name for rank in self._behind(waiting))
            return self._lost(None, f"{names} made no progress for {limit_s:g} s", of=waiting)
        what = f"{self._workers[suspect].name} made no progress for {limit_s:g} s"
        return self._lost(suspect, what + (" and does not answer" if suspect in self._mute else ""))

    def _suspect(self, waiting: Sequence[int]) -> int | None:
        """Return whom the others wait for: one that does not even answer, else the one that is behind all others."""
        mute = self._behind([rank for rank in waiting if rank in self._mute])
        behind = mute or self._behind(waiting)
        return behind[0] if mute or len(behind) == 1 else None

    def _behind(self, ranks: Sequence[int]) -> list[int]:
        """Return those of `ranks` that have the fewest marks."""
        least = min((self._seen[rank]["progress"] for rank in ranks), default=0)
        return [rank for rank in ranks if self._seen[rank]["progress"] == least]

    def _lost(self, rank: int | None, text: str, *, of: Sequence[int] = ()) -> LearnerGone:
        """Return the loss of `rank`, or of a rank among `of` of which it is not known which."""
        if len(self) == 1:
            return LearnerGone(text)
        phase = self._seen[rank if rank is not None else self._behind(of)[0]]["phase"]
        where = f"in {phase}" if rank is None else f"rank {rank}, in {phase}"
        return LearnerGone(f"{where}: {text}", rank=rank, phase=phase)


async def _close(workers: Sequence[Worker], deadline_s: float) -> None:
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.close(deadline_s))


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
