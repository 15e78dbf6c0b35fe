"""The learner: the `Learner` port over the workers that hold weights and optimizer, one for each rank.

This is the controller's side and imports neither torch nor numpy; the work is done in `learner_process`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.config import AlgorithmSection, DeadlineSection, LearnerSection, ModelSection
from ...core.ports import LearnerGone, LearnerInfo, TrainBatch, TrainResult, WrittenFile, WrittenWeights
from ..gpus import known_device
from ..launching import Launcher, LocalLauncher
from .learner_ranks import LearnerRanks
from .row_split import split_rows

_LOCAL = LocalLauncher()


class TorchLearner:
    """The learner in workers of its own, which `launcher` starts: ``learner``, or ``learner-0``, ``learner-1``, ...

    Their output is appended to `log_path`, with the rank's number behind its stem where there are several.
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
        launcher: Launcher = _LOCAL,
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
            # The controller names who is silent before the others give up waiting for it.
            "timeout_s": max(deadlines.start_s, 2 * deadlines.rank_silence_s),
        }
        self._log_path = log_path
        self._deadlines = deadlines
        self._launcher = launcher
        self._ranks: LearnerRanks | None = None

    @property
    def pid(self) -> int | None:
        """The process of rank 0, or None before the first start, after close, and where it is of another machine."""
        return self.pids[0] if self.pids else None

    @property
    def pids(self) -> list[int | None]:
        """The process of each rank, None for one of another machine; empty before the first start and after close."""
        return self._ranks.pids if self._ranks is not None else []

    async def start(self, checkpoint: str | None) -> LearnerInfo:
        """Start the workers and load the model, or everything from the folder `checkpoint`; see `Learner.start`.

        The checkpoint may be of another number of ranks. Raises `LearnerGone` with one line when the model folder or
        the checkpoint cannot be used. Failed or cancelled, it leaves no process behind.
        """
        await self.close()
        self._ranks = await LearnerRanks.start(
            self._launcher, self._settings, self._section, self._log_path, self._deadlines
        )
        try:
            said = await self._call_all("start", self._deadlines.start_s, checkpoint=checkpoint)
            first = {**said[0], "device": known_device(self._ranks.gpus, said[0]["device"])}
            return LearnerInfo(**first, ranks=len(self._ranks), nodes=self._ranks.nodes)
        except BaseException:
            await self.close()
            raise

    async def train(self, batch: TrainBatch) -> TrainResult:
        """Make one optimizer step; see `Learner.train`.

        Raises `LearnerGone` also for a loss or gradient that is not finite, and for a batch that is not of the
        learner's version: nothing is trained then. Cancelled, the step may still be made in the process.
        """
        tokens = [len(row.sampled) if any(row.sampled) else 0 for row in batch.rows]
        shares = split_rows(tokens, self._section.ranks)
        answers = await self._call(
            "train",
            self._deadlines.train_step_s,
            [
                {"step": batch.step, "version": batch.version, "rows": [batch.rows[index] for index in share]}
                for share in shares
            ],
        )
        # Loss and metrics are the same everywhere; the seconds are those of the rank that took longest.
        seconds = {part: max(answer["seconds"][part] for answer in answers) for part in answers[0]["seconds"]}
        return TrainResult(answers[0]["loss"], answers[0]["metrics"], seconds)

    async def publish(self, path: str) -> WrittenWeights:
        """Write the current weights to `path`, which appears only when it is whole; see `Learner.publish`."""
        return WrittenWeights(**(await self._call_all("publish", self._deadlines.publish_s, path=path))[0])

    async def checkpoint(self, path: str) -> WrittenFile:
        """Write a checkpoint folder, whole or not at all.

        What is in it is in `checkpoint.py`, and for several ranks, which all have to reach `path`, in
        `sharded_checkpoint.py`.
        """
        return WrittenFile(**(await self._call_all("checkpoint", self._deadlines.checkpoint_s, path=path))[0])

    async def close(self) -> None:
        """End the workers. Idempotent."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            await ranks.close(self._deadlines.close_s)

    async def _call_all(self, method: str, deadline_s: float, **params: Any) -> list[Any]:
        """Call all ranks with the same parameters."""
        return await self._call(method, deadline_s, [params] * self._section.ranks)

    async def _call(self, method: str, deadline_s: float, each: list[dict[str, Any]]) -> list[Any]:
        """Call all ranks. The deadline is a second line: who calls this port sets the one that is reported."""
        if self._ranks is None:
            raise LearnerGone("the learner is not running")
        return await self._ranks.call(method, deadline_s, each)
