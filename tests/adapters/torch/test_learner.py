"""The learner as the run sees it: a real process, a real tiny model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from eventrain.adapters.torch.learner import TorchLearner
from eventrain.core.config import AlgorithmSection, DeadlineSection, LearnerSection, ModelSection
from eventrain.core.ports import CheckpointError, LearnerGone, TrainBatch, TrainRow

from .training_rows import batch, row


def learner_at(model: Path, log: Path) -> TorchLearner:
    """Return a learner that is not started."""
    return TorchLearner(
        model,
        ModelSection(path=str(model)),
        LearnerSection(lr=1e-2, device="cpu"),
        AlgorithmSection(),
        0,
        8,
        1.0,
        log,
        DeadlineSection(start_s=60, close_s=10),
    )


def batch_of(step: int) -> TrainBatch:
    """Return a batch as the core makes it."""
    return TrainBatch(step, step, [TrainRow(**one) for one in batch(step, version=step)])


@pytest.mark.slow
def test_a_learner_trains_publishes_and_resumes(tiny_model: Path, tmp_path: Path) -> None:
    """Step, weights and checkpoint come out of the process, and a second one goes on from there.

    An impossible checkpoint is an error that the learner survives.
    """

    async def use() -> None:
        learner = learner_at(tiny_model, tmp_path / "learner.log")
        try:
            info = await learner.start(None)
            assert (info.version, info.device) == (0, "cpu")
            result = await learner.train(batch_of(0))
            assert result.metrics["grad_norm"] > 0
            weights = await learner.publish(str(tmp_path / "weights" / "1.safetensors"))
            assert len(load_file(weights.path)) > 0
            (tmp_path / "file").touch()
            with pytest.raises(CheckpointError, match="could not be written"):
                await learner.checkpoint(str(tmp_path / "file" / "step"))
            checkpoint = await learner.checkpoint(str(tmp_path / "step-1"))
            assert (await learner.start(checkpoint.path)).version == 1
            assert (await learner.train(batch_of(1))).metrics["grad_norm"] > 0
        finally:
            await learner.close()
        await learner.close()

    asyncio.run(use())


@pytest.mark.slow
def test_what_a_learner_cannot_survive_is_learner_gone(tiny_model: Path, tmp_path: Path) -> None:
    """An overflow, a killed process and an unreadable model folder end the run, each with its reason in a line."""

    async def use() -> None:
        learner = learner_at(tiny_model, tmp_path / "learner.log")
        try:
            await learner.start(None)
            overflow = [TrainRow(**row(seed, 30, advantage=-3e38)) for seed in range(4)]
            with pytest.raises(LearnerGone, match="step 0: the loss is inf; no optimizer step was made"):
                await learner.train(TrainBatch(0, 0, overflow))
            assert learner.pid is not None
            os.kill(learner.pid, signal.SIGKILL)
            with pytest.raises(LearnerGone, match="SIGKILL"):
                await learner.train(batch_of(0))
        finally:
            await learner.close()
        unreadable = learner_at(tmp_path, tmp_path / "learner.log")
        with pytest.raises(LearnerGone, match="is no usable model folder") as raised:
            await unreadable.start(None)
        assert "\n" not in str(raised.value)
        assert unreadable.pid is None
        with pytest.raises(LearnerGone, match="not running"):
            await unreadable.publish(str(tmp_path / "weights"))

    asyncio.run(use())


def test_the_parent_needs_no_torch() -> None:
    """Importing the port costs neither torch nor numpy: those belong to the process."""
    check = "import eventrain.adapters.torch.learner, sys; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
