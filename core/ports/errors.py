"""The errors that an adapter may raise. Any other exception is a defect of the adapter."""

from __future__ import annotations


class PortError(Exception):
    """Something outside failed. `message` is one line for a person."""


class PromptTooLong(PortError):
    """The prompt does not fit the engine's context. Permanent, and the prompt's own fault."""


class PromptRefused(PortError):
    """The engine refuses this prompt, now and on every retry."""


class EngineError(PortError):
    """This call failed in the engine; the engine lives and the call may be tried again."""


class EngineGone(PortError):
    """The engine died or is beyond repair; everything it held is gone."""


class EnvironmentFailed(PortError):
    """The environment or its reward failed for this trajectory."""


class EnvironmentWorkerGone(PortError):
    """The worker that held the environment of this trajectory died; the environment is gone with it."""


class LearnerGone(PortError):
    """The learner died or can not go on. Ends the run.

    `rank` is the one that died or hangs, None where there is one alone or it is not known; `phase` is what it did last.
    """

    def __init__(self, message: str = "", *, rank: int | None = None, phase: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.phase = phase


class CheckpointError(PortError):
    """A checkpoint could not be written; the learner lives."""
