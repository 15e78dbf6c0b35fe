"""The local learner: the `Learner` port over a process that holds weights and optimizer.

This is the parent's side and imports neither torch nor numpy; the work is done in `learner_process`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.config import AlgorithmSection, DeadlineSection, LearnerSection, ModelSection
from ...core.ports import (
    CheckpointError,
    LearnerGone,
    LearnerInfo,
    TrainBatch,
    TrainResult,
    WrittenFile,
    WrittenWeights,
)
from ..worker import RemoteError, WorkerFailed, WorkerGone, WorkerProcess

TARGET = "eventrain.adapters.torch.learner_process:make"


class TorchLearner:
    """The learner in a process of its own. Its output is appended to `log_path`.

    `model_path` is the resolved folder of `model`; `steps` are those of the run, for the learning-rate schedule;
    `rollout_temperature` is the one that sampled the training tokens, whose log-probs are compared.
    """

    def __init__(
        self,
        model_path: Path,
        model: ModelSection,
        section: LearnerSection,
        algorithm: AlgorithmSection,
        seed: int,
        steps: int,
        rollout_temperature: float,
        log_path: Path,
        deadlines: DeadlineSection,
    ) -> None:
        self._section = section
        self._settings: dict[str, Any] = {
            "model_path": str(model_path),
            "init": model.init,
            "section": section.model_dump(),
            "algorithm": algorithm.model_dump(),
            "seed": seed,
            "steps": steps,
            "temperature": rollout_temperature,
        }
        self._log_path = log_path
        self._deadlines = deadlines
        self._worker: WorkerProcess | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None before the first start and after close."""
        return self._worker.pid if self._worker is not None else None

    async def start(self, checkpoint: str | None) -> LearnerInfo:
        """Start the process and load the model, or everything from the folder `checkpoint`; see `Learner.start`.

        Raises `LearnerGone` with one line when the model folder or the checkpoint cannot be used. Failed or
        cancelled, it leaves no process behind.
        """
        await self.close()
        threads = str(self._section.threads)
        try:
            self._worker = await WorkerProcess.start(
                TARGET,
                self._settings,
                name="learner",
                log_path=self._log_path,
                deadline_s=self._deadlines.start_s,
                env={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"},
            )
        except WorkerFailed as error:
            raise LearnerGone(str(error)) from error
        try:
            return LearnerInfo(**await self._call("start", self._deadlines.start_s, checkpoint=checkpoint))
        except BaseException:
            await self.close()
            raise

    async def train(self, batch: TrainBatch) -> TrainResult:
        """Make one optimizer step; see `Learner.train`.

        Raises `LearnerGone` also for a loss or gradient that is not finite, and for a batch that is not of the
        learner's version: nothing is trained then. Cancelled, the step may still be made in the process.
        """
        answer = await self._call(
            "train",
            self._deadlines.train_step_s,
            step=batch.step,
            version=batch.version,
            rows=list(batch.rows),
        )
        return TrainResult(**answer)

    async def publish(self, path: str) -> WrittenWeights:
        """Write the current weights to `path`, which appears only when it is whole and on the disk."""
        return WrittenWeights(**await self._call("publish", self._deadlines.publish_s, path=path))

    async def checkpoint(self, path: str) -> WrittenFile:
        """Write a checkpoint folder, whole or not at all; see `checkpoint.py` for what is in it."""
        return WrittenFile(**await self._call("checkpoint", self._deadlines.checkpoint_s, path=path))

    async def close(self) -> None:
        """End the process. Idempotent."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close(self._deadlines.close_s)

    async def _call(self, method: str, deadline_s: float, **params: Any) -> Any:
        """Call the process. The deadline is a second line: who calls this port sets the one that is reported."""
        if self._worker is None:
            raise LearnerGone("the learner is not running")
        try:
            return await self._worker.call(method, deadline_s=deadline_s + self._deadlines.close_s, **params)
        except WorkerGone as error:
            raise LearnerGone(str(error)) from error
        except RemoteError as error:
            if error.kind == CheckpointError.__name__:
                raise CheckpointError(error.message) from error
            raise LearnerGone(error.message or error.kind) from error
        except TimeoutError as error:
            raise LearnerGone(f"the learner did not answer '{method}' within {deadline_s:g} s") from error
