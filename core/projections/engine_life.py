"""The law of an engine's life: what may happen to it after what.

A new engine comes up or is lost. One that is up may be paused and resumed, take weights and requests. A lost one does
nothing until it is restarted, and then comes up or is lost again. An event that does not fit was meant for a former
life of the engine, and a state that believed it would send requests to the dead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ...events.types import (
    EngineLost,
    EnginePaused,
    EngineRestarted,
    EngineResumed,
    EngineUp,
    Event,
    LlmCallStarted,
    RunResumed,
    SyncAcknowledged,
    SyncStarted,
)

_MOVES: dict[type[Event], dict[str, str]] = {
    EngineUp: {"new": "up", "restarting": "up"},
    EngineLost: {"new": "lost", "up": "lost", "paused": "lost", "restarting": "lost"},
    EngineRestarted: {"lost": "restarting"},
    EnginePaused: {"up": "paused"},
    EngineResumed: {"paused": "up"},
    SyncStarted: {"up": "up", "paused": "paused"},
    SyncAcknowledged: {"up": "up", "paused": "paused"},
    LlmCallStarted: {"up": "up"},
}


@dataclass
class EngineLife:
    """Every engine's state: new, up, paused, lost or restarting."""

    EVENTS: ClassVar = frozenset({RunResumed, *_MOVES})
    """Those that it is about."""
    states: dict[str, str] = field(default_factory=dict)

    def breach(self, event: Event) -> tuple[str, str] | None:
        """Enter `event`; return what was expected and what was found if it may not follow."""
        if type(event) is RunResumed:
            self.states.clear()
        moves = _MOVES.get(type(event))
        if moves is None:
            return None
        engine: str = event.engine  # type: ignore[attr-defined]
        before = self.states.get(engine, "new")
        if before not in moves:
            return f"{event.kind} of an engine that is {' or '.join(moves)}", f"{engine} is {before}"  # type: ignore[attr-defined]
        self.states[engine] = moves[before]
        return None
