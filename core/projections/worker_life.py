"""The law of an environment worker's life: what may happen to it after what.

A new worker comes up or is lost. One that is up takes environments until it is lost. A lost one does nothing until it
is restarted, and then comes up or is lost again. What an environment is asked after its worker was lost is no breach:
its trajectory learns of the loss that way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...events.types import (
    EnvironmentWorkerLost,
    EnvironmentWorkerRestarted,
    EnvironmentWorkerUp,
    EnvStepStarted,
    Event,
    RunResumed,
)

_MOVES: dict[type[Event], dict[str, str]] = {
    EnvironmentWorkerUp: {"new": "up", "restarting": "up"},
    EnvironmentWorkerLost: {"new": "lost", "up": "lost", "restarting": "lost"},
    EnvironmentWorkerRestarted: {"lost": "restarting"},
    EnvStepStarted: {"up": "up"},
}

WORKED = frozenset((*_MOVES, RunResumed))
"""Events that this law is about."""


@dataclass
class WorkerLife:
    """Every worker's state: new, up, lost or restarting."""

    states: dict[str, str] = field(default_factory=dict)

    def breach(self, event: Event) -> tuple[str, str] | None:
        """Enter `event`; return what was expected and what was found if it may not follow."""
        if type(event) is RunResumed:
            self.states.clear()
            return None
        if type(event) is EnvStepStarted and (event.call != "reset" or not event.worker):
            return None
        moves = _MOVES[type(event)]
        worker: str = event.worker  # type: ignore[attr-defined]
        before = self.states.get(worker, "new")
        if before not in moves:
            return f"{event.kind} of a worker that is {' or '.join(moves)}", f"{worker} is {before}"  # type: ignore[attr-defined]
        self.states[worker] = moves[before]
        return None
