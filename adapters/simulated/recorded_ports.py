"""Ports that answer what a log recorded: the outside world of a run, without the world.

Tokens are as many as were recorded, and stand for nothing; what they cost, their versions, rewards and failures are
the recorded ones.
"""

from __future__ import annotations

from ...core.ports import Ports
from ...core.projections.environment_workers import worker_name
from .recorded_answers import RecordedClock
from .recorded_data import RecordedPrompts
from .recorded_engine import RecordedEngine
from .recorded_environment import RecordedEnvironment, RecordedEnvironmentWorker, RecordedRenderer
from .recorded_learner import RecordedLearner
from .recorded_world import RecordedWorld
from .world import NumberedPrompts, SimulatedArtifacts


def recorded_ports(world: RecordedWorld, clock: RecordedClock) -> Ports:
    """Return the ports of a run that is reproduced in `world`."""
    recording = world.recording
    assert recording.config is not None
    assert recording.started is not None
    config = recording.config
    count = recording.started.engines or config.engine.engines
    names = sorted(recording.engines)
    spare = (name for n in range(count) if (name := f"engine-{n}") not in recording.engines)
    while len(names) < count:
        names.append(next(spare))
    evaluating = config.eval.every_steps > 0
    return Ports(
        clock=clock,
        engines=[RecordedEngine(name, world) for name in sorted(names)],
        learner=RecordedLearner(world),
        environments=lambda: RecordedEnvironment(world),
        environment_workers=[
            RecordedEnvironmentWorker(worker_name(number), world, clock)
            for number in range(config.environment.workers)
        ],
        prompts=RecordedPrompts(recording),
        renderer=RecordedRenderer(),
        artifacts=SimulatedArtifacts(),
        eval_prompts=NumberedPrompts(recording.eval_items or config.eval.prompts) if evaluating else None,
        facts={"code_version": recording.started.code_version, "base": recording.started.base},
    )
