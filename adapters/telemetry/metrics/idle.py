"""Why devices are idle: a cause for each pool at every moment, by the rules in RULES."""

from __future__ import annotations

from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import (
    BatchTaken,
    Blocked,
    EngineLost,
    EnginePaused,
    EngineRestarted,
    EngineResumed,
    EngineUp,
    EnvStepFinished,
    EnvStepStarted,
    EvalCompleted,
    EvalStarted,
    Event,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    LlmCallFinished,
    LlmCallStarted,
    PhaseEntered,
    RetryScheduled,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StallCleared,
    StallDetected,
    SyncAcknowledged,
    SyncFailed,
    SyncStarted,
    TrajectoryCompleted,
    TrajectoryFailed,
    TrajectoryStarted,
    Unblocked,
)
from .dispatching import Dispatching
from .engines import Engines
from .groups import Groups
from .health import Health
from .learning import Learning
from .part import Part, Track
from .phases import Phases
from .rollouts import Rollouts
from .snapshot import Snapshot

CAUSES = (
    "buffer_starvation",
    "staleness_gate",
    "weight_sync",
    "eval",
    "checkpoint",
    "backpressure",
    "straggler",
    "fault",
    "environment",
    "starting",
    "converting",
    "low_use",
)
STRAGGLES = 3
"""A group that is in flight for this many times the median of the last ones is a straggler."""
RULES = (
    (
        "learner",
        "starting, weight_sync, eval, checkpoint, converting",
        "the trainer is in the phase of that name",
    ),
    (
        "learner",
        "low_use",
        "the trainer is in the phase training, or finished: the learner has work, and leaves room",
    ),
    ("learner", "fault", "it waits for a batch, and no engine is up or the verdict of a stall stands"),
    (
        "learner",
        "straggler",
        (
            "it waits for a batch that lacks one of several groups, or the oldest in flight takes 3 times the usual "
            "time (the median of the last 64)"
        ),
    ),
    ("learner", "buffer_starvation", "it waits for a batch, and none of these holds"),
    ("engine", "starting", "the trainer is in the phase starting, or no engine has been up yet"),
    ("engine", "weight_sync", "the pool is syncing or draining"),
    ("engine", "fault", "the pool is down: no engine is up"),
    ("engine", "low_use", "there are as many calls as slots: the engines have work, and leave room"),
    (
        "engine",
        "environment",
        "more than half of the trajectories in flight are in their environment: its reset, a step, the reward",
    ),
    ("engine", "eval", "an evaluation is going on"),
    ("engine", "staleness_gate", "the collector waits for a version of the weights"),
    ("engine", "backpressure", "the collector has no permit: as much is in flight and buffered as may be"),
    ("engine", "low_use", "none of these holds"),
    ("shared", "as the learner", "and as the engines while the trainer waits for a batch"),
    ("controller", "low_use", "always"),
)
"""Pool, cause, and when it holds. Of a pool's causes the first one that holds is taken."""

_OF_PHASE = {
    "starting": "starting",
    "converting": "converting",
    "training": "low_use",
    "weight_sync": "weight_sync",
    "eval": "eval",
    "checkpoint": "checkpoint",
    "finished": "low_use",
}
_OF_COLLECTOR = {"gated": "staleness_gate", "out_of_permits": "backpressure"}


class Idle(Part):
    """The cause for which each pool would be idle, now and in the recent past. It folds after all that it reads."""

    def __init__(
        self,
        phases: Phases,
        engines: Engines,
        rollouts: Rollouts,
        groups: Groups,
        dispatching: Dispatching,
        learning: Learning,
        health: Health,
    ) -> None:
        self._phases = phases
        self._engines = engines
        self._rollouts = rollouts
        self._groups = groups
        self._dispatching = dispatching
        self._learning = learning
        self._health = health
        self._tracks = {pool: Track("starting") for pool in ("learner", "engine", "shared")}
        self._tracks["controller"] = Track("low_use")
        self._learner, self._shared = self._tracks["learner"], self._tracks["shared"]
        self.engine = self._tracks["engine"]
        """The causes of an engine's device; `value` is the one now."""
        self._straggles_ns: int | None = None  # when starvation becomes the oldest group's fault

    def shares(self, pool: str, begin_ns: int, end_ns: int) -> dict[str, float]:
        """Return for which share of a window each cause held for `pool`."""
        self._settle(end_ns)
        return self._tracks[pool].shares(begin_ns, end_ns)

    @on(
        LlmCallStarted,
        LlmCallFinished,
        EnvStepStarted,
        EnvStepFinished,
        TrajectoryStarted,
        TrajectoryCompleted,
        TrajectoryFailed,
        RetryScheduled,
    )
    def _rollout(self, record: Record, event: Event) -> None:
        cause = self._of_engines()
        if cause != self.engine.value:
            self.engine.enter(cause, record.mono)
            self._share(record.mono)

    @on(
        RunStarted,
        RunResumed,
        RunFinished,
        RunFailed,
        PhaseEntered,
        StallDetected,
        StallCleared,
        Blocked,
        Unblocked,
        EngineUp,
        EngineLost,
        EnginePaused,
        EngineResumed,
        EngineRestarted,
        SyncStarted,
        SyncAcknowledged,
        SyncFailed,
        GroupDispatched,
        GroupBuffered,
        GroupFiltered,
        GroupFailed,
        GroupEvicted,
        GroupDiscarded,
        GroupRestored,
        BatchTaken,
        EvalStarted,
        EvalCompleted,
    )
    def _changed(self, record: Record, event: Event) -> None:
        now_ns = record.mono
        self._settle(now_ns)
        self._learner.enter(self._of_learner(now_ns), now_ns)
        self.engine.enter(self._of_engines(), now_ns)
        self._share(now_ns)

    def _share(self, now_ns: int) -> None:
        waits = self._phases.clock.state not in _OF_PHASE
        self._shared.enter((self.engine if waits else self._learner).value, now_ns)

    def _settle(self, now_ns: int) -> None:
        """Enter what time alone has changed since the last event: the oldest group has become a straggler."""
        at_ns = self._straggles_ns
        if at_ns is not None and at_ns <= now_ns:
            self._learner.enter("straggler", max(at_ns, self._learner.since_ns))
            self._straggles_ns = None

    def _of_learner(self, now_ns: int) -> str:
        self._straggles_ns = None
        cause = _OF_PHASE.get(self._phases.clock.state)
        if cause is not None:
            return cause
        if self._health.stalls or not self._engines.up:
            return "fault"
        groups = self._groups
        if groups.missing <= 1 < groups.per_step:
            return "straggler"
        if groups.usual_ns and groups.flight:
            at_ns = next(iter(groups.flight.values())) + STRAGGLES * groups.usual_ns
            if at_ns <= now_ns:
                return "straggler"
            self._straggles_ns = at_ns
        return "buffer_starvation"

    def _of_engines(self) -> str:
        engines, rollouts = self._engines, self._rollouts
        state = engines.clock.state
        if self._phases.clock.state == "starting" or not engines.ever_up:
            return "starting"
        if state in ("syncing", "draining"):
            return "weight_sync"
        if state == "down":
            return "fault"
        if len(engines.calls) >= engines.slots:
            return "low_use"
        stages = rollouts.in_stage
        if 2 * (stages["env"] + stages["env_setup"] + stages["reward"]) > len(rollouts.stage):
            return "environment"
        if self._learning.evaluating:
            return "eval"
        return _OF_COLLECTOR.get(self._dispatching.state, "low_use")

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write nothing: causes count only together with the idle seconds of devices."""
