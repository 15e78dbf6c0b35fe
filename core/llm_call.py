"""One call to an engine, as the log tells it: when it began, and once how it ended."""

from __future__ import annotations

from dataclasses import dataclass

from ..events.record import Record
from ..events.types import LlmCallFinished, LlmCallStarted, Outcome
from .ports import GenerateRequest, Generation
from .projections import EngineStatus
from .waits import Waiter


@dataclass(frozen=True, slots=True)
class LlmCall:
    """A call that has begun, and what its engine was then."""

    waiter: Waiter
    request: GenerateRequest
    trajectory: str
    turn: int
    part: int
    engine: str
    life: int
    """Restarts that the engine had."""
    version: int
    """Of the weights that it served."""
    started: Record

    @classmethod
    def begin(
        cls,
        waiter: Waiter,
        engine: EngineStatus,
        request: GenerateRequest,
        *,
        trajectory: str,
        turn: int,
        part: int,
    ) -> LlmCall:
        """Publish that a call to `engine` begins, and return it."""
        started = waiter.publish(
            LlmCallStarted(
                trajectory=trajectory,
                turn=turn,
                engine=engine.name,
                prompt_tokens=len(request.prompt_ids),
                max_tokens=request.max_tokens,
                trace_parent=request.trace_parent,
                part=part,
            )
        )
        return cls(
            waiter, request, trajectory, turn, part, engine.name, engine.restarts, engine.version, started
        )

    def end(self, outcome: Outcome, message: str = "", generation: Generation | None = None) -> float:
        """Publish how the call ended; return its seconds without the queue."""
        queue_s = generation.queue_s if generation else 0.0
        elapsed_s = self.waiter.elapsed_s(self.started.mono)
        had_s = generation.engine_s if generation else None
        seconds = max(0.0, elapsed_s - queue_s)
        self.waiter.publish(
            LlmCallFinished(
                trajectory=self.trajectory,
                turn=self.turn,
                engine=self.engine,
                outcome=outcome,
                tokens=len(generation.token_ids) if generation else 0,
                version_spans=generation.version_spans if generation else (),
                queue_s=queue_s,
                seconds=seconds,
                finish_reason=generation.finish_reason if generation else "",
                message=message,
                away_s=None if had_s is None else max(0.0, elapsed_s - had_s),
                part=self.part,
            ),
            cause=self.started.seq,
        )
        return seconds
