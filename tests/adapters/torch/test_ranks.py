"""What becomes of several ranks when one of them fails, dies or hangs; and how rows are split over them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from eventrain.adapters.torch.learner import TorchLearner
from eventrain.adapters.torch.learner_ranks import LearnerRanks
from eventrain.adapters.torch.row_split import split_rows
from eventrain.adapters.worker import RemoteError, WorkerGone
from eventrain.core.config import DeadlineSection
from eventrain.core.ports import CheckpointError, LearnerGone, TrainBatch, TrainRow

from .several_ranks import batch_of, learner_of, write_model
from .training_rows import changed, row


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model folder."""
    return write_model(tmp_path_factory.mktemp("model"))


def test_rows_are_split_by_tokens() -> None:
    """Each row goes to one rank, the ranks have about as many tokens, and each keeps the order of the batch."""
    tokens = [900, 10, 20, 500, 30, 410, 880, 0, 40]
    shares = split_rows(tokens, 3)
    assert sorted(index for share in shares for index in share) == list(range(9))
    assert all(share == sorted(share) for share in shares)
    loads = [sum(tokens[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= 40
    assert split_rows([5, 5], 1) == [[0, 1]]
    assert sorted(split_rows([7], 3)) == [[], [], [0]]


# Watching, with workers that do as they are told


class Puppet:
    """A worker that answers, hangs or raises."""

    node = ""
    gpus = None
    pid = None

    def __init__(self, name: str, answer: Any, progress: int) -> None:
        self.name = name
        self.alive = True
        self.closed = False
        self._answer = answer
        self._progress = progress

    async def call(self, method: str, /, *, deadline_s: float | None = None, **params: Any) -> Any:
        if method == "where":
            return {"phase": f"forward_backward {self._progress}/9", "progress": self._progress}
        if self._answer is None:
            await asyncio.Event().wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def wait_gone(self) -> str:
        return await asyncio.Event().wait() and ""

    async def close(self, deadline_s: float) -> None:
        self.closed = True


def outcome(*answers: tuple[Any, int]) -> tuple[Any, bool]:
    """Return what a call of ranks comes to, and whether they were closed; None for an answer is none."""

    async def use() -> Any:
        workers = [Puppet(f"learner-{rank}", *answer) for rank, answer in enumerate(answers)]
        ranks = LearnerRanks(workers, DeadlineSection(rank_silence_s=0.2, close_s=0.1))
        try:
            result = await ranks.call("train", 60, [{}] * len(workers))
        except (LearnerGone, CheckpointError) as error:
            result = error
        return result, all(worker.closed for worker in workers)

    return asyncio.run(use())


def test_the_rank_that_is_behind_is_named() -> None:
    """All answer where they are, one of them is one mark behind: the others wait for it."""
    error, closed = outcome((None, 4), (None, 3), (None, 4))
    assert str(error) == "rank 1, in forward_backward 3/9: learner-1 made no progress for 0.2 s"
    assert (error.rank, error.phase, closed) == (1, "forward_backward 3/9", True)


def test_ranks_that_are_equally_far_are_all_named() -> None:
    """Where nobody is behind, no rank is accused."""
    error, closed = outcome((None, 4), (None, 4))
    assert str(error) == "in forward_backward 4/9: learner-0 and learner-1 made no progress for 0.2 s"
    assert (error.rank, error.phase, closed) == (None, "forward_backward 4/9", True)


def test_a_rank_that_has_answered_is_not_silent() -> None:
    """Only those that still work have to make progress; the one that they wait for is among them."""
    error, _ = outcome(("done", 1), (None, 4), (None, 5))
    assert error.rank == 1


def test_a_rank_that_raises_alone_ends_all() -> None:
    """The others would wait for it for ever, so they are killed, and its error is the reason."""
    error, closed = outcome((None, 4), (RemoteError("OutOfMemoryError", "no room"), 4))
    assert str(error) == "rank 1, in forward_backward 4/9: OutOfMemoryError: no room"
    assert (error.rank, closed) == (1, True)


def test_the_death_of_a_rank_comes_before_what_it_causes() -> None:
    """The rank whose connection broke is not the one that is at fault."""
    broken = RemoteError("RuntimeError", "connection closed by peer")
    error, closed = outcome((broken, 4), (WorkerGone("was killed"), 4))
    assert str(error).endswith("was killed")
    assert (error.rank, closed) == (1, True)


def test_a_deadline_names_the_rank_that_the_others_wait_for() -> None:
    """Ranks that are all late are killed, and the one that is behind is the reason."""
    error, closed = outcome((TimeoutError(), 4), (TimeoutError(), 3), (None, 4))
    assert str(error) == "rank 1, in forward_backward 3/9: the learner did not answer 'train' within 60 s"
    assert (error.rank, closed) == (1, True)


def test_what_all_ranks_went_back_from_is_the_error_of_the_one_that_failed() -> None:
    """A rank that only followed does not hide the reason, and all live on."""
    error, closed = outcome(
        (RemoteError("PeerFailed", ""), 4), (RemoteError("CheckpointError", "disk full"), 4)
    )
    assert isinstance(error, CheckpointError)
    assert str(error) == "disk full"
    assert not closed


def test_a_learner_of_one_rank_is_not_watched() -> None:
    """It may take as long as its deadline lets it, and its errors name no rank."""

    async def use() -> None:
        worker = Puppet("learner", None, 0)
        ranks = LearnerRanks([worker], DeadlineSection(rank_silence_s=0.01))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ranks.call("train", 60, [{}])
        assert not worker.closed

    asyncio.run(use())


# Real ranks


def ended(pids: list[int | None]) -> bool:
    """Return whether no such process is left."""
    for pid in pids:
        assert pid is not None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        return False
    return True


async def lost_in_training(
    learner: TorchLearner, fault: signal.Signals
) -> tuple[LearnerGone, list[int | None]]:
    """Send `fault` to rank 1 amid a long step; return the error and the processes that there were."""
    await learner.start(None)
    assert learner._ranks is not None
    pids = learner._ranks.pids
    assert len({*pids}) == 3
    lost: list[LearnerGone] = []

    async def train() -> None:
        with pytest.raises(LearnerGone) as raised:
            await learner.train(batch_of(0, rows=4000))
        lost.append(raised.value)

    async with asyncio.TaskGroup() as group:
        group.create_task(train())
        while not learner._ranks._seen[1]["phase"].startswith("forward_backward"):
            await learner._ranks._workers[1].call("where", deadline_s=10)
        os.kill(pids[1] or 0, fault)
    return lost[0], pids


@pytest.mark.slow
def test_a_killed_rank_is_named_with_its_phase(model: Path, tmp_path: Path) -> None:
    """Its death ends the call at once, with its number and what it did, and no other rank is left in a collective."""

    async def use() -> None:
        async with learner_of(3, model, tmp_path, micro_batch_tokens=1, rank_silence_s=60) as learner:
            error, pids = await lost_in_training(learner, signal.SIGKILL)
            assert error.rank == 1
            assert error.phase.startswith("forward_backward ")
            assert f"rank 1, in {error.phase}: learner-1 (pid {pids[1]}) was killed by SIGKILL" in str(error)
            assert ended(pids)

    asyncio.run(use())


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_with_its_phase(model: Path, tmp_path: Path) -> None:
    """One that is stopped holds up all others without a word; after `rank_silence_s` it is told from them."""

    async def use() -> None:
        async with learner_of(3, model, tmp_path, micro_batch_tokens=1, rank_silence_s=3) as learner:
            error, pids = await lost_in_training(learner, signal.SIGSTOP)
            assert error.rank == 1
            assert error.phase.startswith("forward_backward ")
            assert "learner-1 made no progress for 3 s and does not answer" in str(error)
            assert ended(pids)

    asyncio.run(use())


@pytest.mark.slow
def test_what_one_rank_cannot_train_ends_the_step_on_all(model: Path, tmp_path: Path) -> None:
    """A row that cannot be trained, a loss that overflows, and a model folder without a model have their reason."""

    async def use() -> None:
        async with learner_of(2, model, tmp_path) as learner:
            await learner.start(None)
            rows = [TrainRow(**row(1, 20)), TrainRow(**changed(row(2, 12), advantage=float("nan")))]
            with pytest.raises(
                LearnerGone, match=r"rank 1, in batch: trajectory 2/0: its advantage is nan"
            ) as raised:
                await learner.train(TrainBatch(0, 0, rows))
            assert raised.value.rank == 1
            overflow = [TrainRow(**row(1, 20)), TrainRow(**row(2, 12, advantage=-3e38))]
            with pytest.raises(
                LearnerGone, match=r"rank 1, in .*step 0: the loss is inf; no optimizer step was made"
            ):
                await learner.train(TrainBatch(0, 0, overflow))
            assert (await learner.train(batch_of(0))).metrics["grad_norm"] > 0
        async with learner_of(2, tmp_path, tmp_path) as unreadable:
            with pytest.raises(LearnerGone, match="is no usable model folder"):
                await unreadable.start(None)
            assert unreadable.pid is None

    asyncio.run(use())
