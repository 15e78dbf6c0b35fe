"""Every event of a run, in one file.

A run is the fold of these. Each class states one thing that happened, in the past tense; none carries
behaviour. The envelope (`seq`, `ts`, `mono`, `actor`, `cause`, `corr`, `v`) is not here: it is added once, at
append, by the bus (see `record.py`).

Rules for a change:

- a new field gets a default, and old logs read on;
- a changed meaning raises the class's ``SCHEMA`` and adds an upcaster in `upcast.py`, with a stored old log in
  ``tests/golden``;
- a ``kind`` is never renamed: it is what stands in the files of every finished run.

Units stand last in a name (``_s`` seconds, ``_bytes``). Ids are what a person can type: group ``57``,
trajectory ``"57/3"``, turn ``2`` of it; an evaluation's trajectories are ``"eval4/0"``, ``"eval4/1"``, ...
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Phase = Literal[
    "starting",
    "generating",
    "waiting_for_buffer",
    "converting",
    "training",
    "weight_sync",
    "eval",
    "checkpoint",
    "finished",
]
"""What the trainer is doing now; exactly one holds at any time. ``generating`` is the default."""

PHASES_OF_NEXT_STEP = frozenset[Phase]({"waiting_for_buffer", "generating", "converting", "finished"})
"""With the first of these after a step is trained, the trainer has done with it and turns to the next."""

Outcome = Literal["completed", "failed", "cancelled", "expired", "lost"]
"""How an effect ended. Every started effect ends in exactly one of these."""

FailureKind = Literal[
    "prompt_too_long",
    "refused",
    "engine_error",
    "engine_lost",
    "llm_expired",
    "env_error",
    "env_expired",
    "env_lost",
    "reward_error",
    "reward_expired",
    "cancelled",
    "defect",
]
"""What went wrong with an attempt. Retries and quarantine are decided by it, never by the text of a message."""

Blame = Literal["prompt", "engine", "environment", "infrastructure", "nobody"]
"""Who is charged: only failures blamed on a prompt count towards its quarantine."""

EdgeName = Literal[
    "buffer_ready",
    "version",
    "permit",
    "engine_available",
    "sync_done",
    "eval_done",
    "durable",
    "drained",
    "work",
]
"""The named reasons to wait. ``work`` is an actor at rest: its `step` finds nothing to decide."""

LOOP_LAG_BOUNDS_S = tuple(0.001 * 2**power for power in range(11))
"""Upper bounds of the buckets of LoopLagSampled, in seconds."""

VersionSpans = tuple[tuple[int, int], ...]
"""Runs of ``(weight version, number of tokens)`` in token order."""


class Event(BaseModel):
    """What every event shares: frozen, closed to unknown fields, and free of NaN (JSON cannot carry one)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    SCHEMA: ClassVar[int] = 1


class PayloadRef(BaseModel):
    """Where a payload lies: `length` bytes at `offset` of pack file `pack`, with their digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    digest: str
    length: int
    pack: int
    offset: int


class FinishedTrajectory(BaseModel):
    """A complete trajectory, as far as a batch needs to know it; its tokens are in `payload`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    trajectory: str
    reward: float
    completion_tokens: int
    version_spans: VersionSpans = ()
    payload: PayloadRef


# The run


class RunStarted(Event):
    """A run began with this whole configuration; everything that decides later reads only it and events."""

    kind: Literal["run_started"] = "run_started"
    run: str
    config: dict[str, Any]
    code_version: str
    seed: int
    host: str
    pid: int
    prompts: int = Field(description="items in one epoch of the data")
    engines: int | None = Field(
        default=None, description="engines that are to come up; None in logs of before it was said"
    )
    base: str = Field(default="", description="folder at which relative paths of the configuration start")
    redacted: bool | None = Field(
        default=None, description="true: the log is a copy without texts, payloads, paths and options"
    )


class RunResumed(Event):
    """A stopped run goes on in the same folder, from its newest usable checkpoint; or a fork of it goes on in another.

    Steps after the checkpoint did not happen in the history that survives: their groups are restored, and trained
    again without being generated again. Groups that were in flight are discarded, and their prompts drawn first.
    """

    kind: Literal["run_resumed"] = "run_resumed"
    step: int
    version: int
    checkpoint: str = Field(default="", description="folder it goes on from; empty: the model as loaded")
    kept: int = Field(default=0, description="finished groups that still were to be trained")
    restored: int = Field(default=0, description="groups of steps that are rolled back, buffered again")
    redispatched: int = Field(default=0, description="in-flight groups whose prompts are dispatched again")
    rolled_back: int = Field(default=0, description="steps after the checkpoint that are trained again")
    last_mono: int | None = Field(default=None, description="monotonic time of the last event before")
    config: dict[str, Any] | None = Field(
        default=None, description="whole configuration from here on where a setting was changed; None: as before"
    )
    engines: int | None = Field(
        default=None, description="engines that are to come up, with a changed configuration; None: as before"
    )
    forked_from: str = Field(
        default="", description="folder of the run whose log this one begins with, where it was forked here"
    )
    code_version: str = ""
    host: str = ""
    pid: int = 0


class StopRequested(Event):
    """Somebody or something asked the run to end; actors stop at their next safe point."""

    kind: Literal["stop_requested"] = "stop_requested"
    reason: Literal["interrupted", "data_exhausted"]


class RunFinished(Event):
    """The run ended as it should. Always the last event of a run that did not fail."""

    kind: Literal["run_finished"] = "run_finished"
    outcome: Literal["completed", "interrupted", "data_exhausted"]
    steps: int
    version: int
    seconds: float
    reason: str = Field(default="", description="why steps are missing, in one line")


class RunFailed(Event):
    """The run ended by a failure; `message` is its first cause, `first_cause` the seq that shows it."""

    kind: Literal["run_failed"] = "run_failed"
    failed_actor: str
    error: str = Field(description="type of the exception or of the failure")
    message: str
    first_cause: int | None = None


class LogTailCut(Event):
    """A torn tail was found when the log was opened; it ended after `after_seq` and lost no whole frame."""

    kind: Literal["log_tail_cut"] = "log_tail_cut"
    after_seq: int
    cut_bytes: int


class PhaseEntered(Event):
    """The trainer's phase changed; the one before ended at this instant."""

    kind: Literal["phase_entered"] = "phase_entered"
    phase: Phase
    step: int


class PolicyChanged(Event):
    """A setting changed, as of the resume or the fork that this event follows."""

    kind: Literal["policy_changed"] = "policy_changed"
    key: str
    old: str
    new: str


# Prompts and groups


class PromptDrawn(Event):
    """A dataset item was drawn: draw number `prompt` is item `index` of `epoch`."""

    kind: Literal["prompt_drawn"] = "prompt_drawn"
    prompt: int = Field(description="number of the draw, from 0 over the whole run")
    epoch: int
    index: int


class PromptQuarantined(Event):
    """The item is never drawn again, in this run or when it is resumed."""

    kind: Literal["prompt_quarantined"] = "prompt_quarantined"
    prompt: int
    index: int
    failure: FailureKind
    message: str


class PromptReturned(Event):
    """A drawn prompt went back untrained.

    'discarded' ones are drawn first, 'failed' ones after all fresh ones; 'evicted' and 'surplus' ones, which took
    long, first, and from the second time on after all fresh ones.
    """

    kind: Literal["prompt_returned"] = "prompt_returned"
    prompt: int
    reason: Literal["discarded", "failed", "evicted", "surplus"]


class DataExhausted(Event):
    """No prompt is left to draw within the configured epochs."""

    kind: Literal["data_exhausted"] = "data_exhausted"
    drawn: int
    quarantined: int


class GroupDispatched(Event):
    """Group `group` starts: `size` trajectories of one prompt, meant for step `target`.

    What the target means is the policy's: the one step that trains it (targeted), the step that it is counted for
    (capacity), the last step that may train it (windowed).
    """

    kind: Literal["group_dispatched"] = "group_dispatched"
    group: int
    prompt: int
    target: int
    version: int = Field(description="generation version at dispatch; the lag is counted from it")
    size: int
    attempt: int = 0


class GroupBuffered(Event):
    """All trajectories that the group needs are complete and wait to be trained."""

    kind: Literal["group_buffered"] = "group_buffered"
    group: int
    target: int
    trajectories: int
    reward_mean: float
    reward_std: float


class GroupFiltered(Event):
    """The group is complete but teaches nothing (for example: all rewards are equal)."""

    kind: Literal["group_filtered"] = "group_filtered"
    group: int
    reason: Literal["zero_variance"]
    reward_mean: float


class GroupFailed(Event):
    """The group ended without what training needs; its target is short again and will be refilled."""

    kind: Literal["group_failed"] = "group_failed"
    group: int
    failure: FailureKind
    retryable: bool
    blame: Blame
    message: str


class GroupEvicted(Event):
    """A group, buffered or in flight, became too stale to be trained; what still runs of it is cancelled."""

    kind: Literal["group_evicted"] = "group_evicted"
    group: int
    lag: int = Field(description="the lag that the next step would have trained it with")


class GroupDiscarded(Event):
    """A group was given up for a reason that is nobody's failure; 'surplus': its step has groups enough."""

    kind: Literal["group_discarded"] = "group_discarded"
    group: int
    reason: Literal["run_ended", "interrupted", "surplus", "rolled_back", "unreadable"]


class GroupRestored(Event):
    """A batch that had taken the group does not count any more, and the group is buffered again.

    It stands before all groups that no batch has taken, in the order of the batches.
    """

    kind: Literal["group_restored"] = "group_restored"
    group: int
    prompt: int
    index: int = Field(description="of the prompt in the dataset")
    target: int
    version: int
    size: int
    step: int = Field(description="step that had taken it")
    trajectories: tuple[FinishedTrajectory, ...]


class BatchTaken(Event):
    """Step `step` consumes these groups; they leave the buffer here, once and for all."""

    kind: Literal["batch_taken"] = "batch_taken"
    step: int
    groups: tuple[int, ...] = Field(description="numbers of the groups, in the order of the batch")


# Trajectories


class TrajectoryStarted(Event):
    """One attempt at one trajectory began."""

    kind: Literal["trajectory_started"] = "trajectory_started"
    trajectory: str
    group: int | None = Field(default=None, description="None in an evaluation")
    attempt: int = 0


class TrajectoryCompleted(Event):
    """A trajectory ended with a reward; its tokens are in `payload`.

    The five times and `other_s` add up to the trajectory's wall time.
    """

    kind: Literal["trajectory_completed"] = "trajectory_completed"
    trajectory: str
    group: int | None
    attempt: int
    turns: int
    prompt_tokens: int = Field(description="tokens that the environment wrote, over all turns")
    completion_tokens: int = Field(description="tokens that the policy sampled")
    version_spans: VersionSpans = Field(description="of the sampled tokens")
    reward: float
    stop_reason: Literal["done", "max_turns", "context_full"]
    queue_s: float
    llm_s: float
    env_setup_s: float
    env_s: float
    reward_s: float
    other_s: float
    payload: PayloadRef


TRAJECTORY_PARTS = ("queue", "llm", "env_setup", "env", "reward", "other")
"""What the wall time of a trajectory is divided into; the parts add up to it."""


def part_seconds(event: TrajectoryCompleted) -> tuple[float, ...]:
    """Return the seconds of each of `TRAJECTORY_PARTS`, in that order."""
    return event.queue_s, event.llm_s, event.env_setup_s, event.env_s, event.reward_s, event.other_s


class TrajectoryFailed(Event):
    """An attempt ended without a reward. It never becomes a row of a batch."""

    kind: Literal["trajectory_failed"] = "trajectory_failed"
    trajectory: str
    group: int | None
    attempt: int
    failure: FailureKind
    retryable: bool
    blame: Blame
    message: str


class RetryScheduled(Event):
    """A failed trajectory will be attempted again, as attempt `attempt`, after `delay_s`."""

    kind: Literal["retry_scheduled"] = "retry_scheduled"
    trajectory: str
    group: int
    attempt: int
    delay_s: float


class TrajectoryDropped(Event):
    """The attempts at a trajectory are used up, and its group goes on without it; its last failure is given.

    The group is whole once all its other trajectories are complete. It keeps `rollout.group_floor` of them at least.
    """

    kind: Literal["trajectory_dropped"] = "trajectory_dropped"
    trajectory: str
    group: int
    failure: FailureKind
    blame: Blame
    message: str


class LlmCallStarted(Event):
    """A request goes to an engine."""

    kind: Literal["llm_call_started"] = "llm_call_started"
    trajectory: str
    turn: int
    engine: str
    prompt_tokens: int
    max_tokens: int
    trace_parent: str = ""
    part: int = Field(default=0, description="of the turn's answer; the next ones go on where a weight sync cut it off")


class LlmCallFinished(Event):
    """The engine answered, or the call ended otherwise.

    Of `seconds`, `away_s` is what passed while the engine did not have the call: on its way, or in front of the
    engine; None where the engine does not say how long it had it.
    Schema 2: `seconds` excludes the time in the engine's queue, which is `queue_s`. In schema 1 it included it.
    """

    SCHEMA: ClassVar[int] = 2
    kind: Literal["llm_call_finished"] = "llm_call_finished"
    trajectory: str
    turn: int
    engine: str
    outcome: Outcome
    tokens: int = 0
    version_spans: VersionSpans = ()
    queue_s: float = 0.0
    seconds: float
    finish_reason: Literal["stop", "length", "abort", ""] = ""
    message: str = ""
    away_s: float | None = None
    part: int = Field(default=0, description="as in LlmCallStarted")


class EnvStepStarted(Event):
    """The environment was asked; `call` 'reset' has turn -1."""

    kind: Literal["env_step_started"] = "env_step_started"
    trajectory: str
    turn: int
    call: Literal["reset", "step", "reward"] = "step"


class EnvStepFinished(Event):
    """The environment answered, or the call ended otherwise."""

    kind: Literal["env_step_finished"] = "env_step_finished"
    trajectory: str
    turn: int
    call: Literal["reset", "step", "reward"] = "step"
    outcome: Outcome
    seconds: float
    done: bool = False
    message: str = ""


class RewardScored(Event):
    """The reward of one trajectory."""

    kind: Literal["reward_scored"] = "reward_scored"
    trajectory: str
    reward: float


# Training


class StepStarted(Event):
    """Training of step `step` begins, from `version` to `version + 1`. Durable before the learner is asked."""

    kind: Literal["step_started"] = "step_started"
    step: int
    version: int
    groups: int
    trajectories: int
    tokens: int
    trained_tokens: int = Field(0, description="sampled tokens that are in the loss")
    masked_tokens: int = Field(0, description="sampled tokens that are too old for it, and are left out")


class StepCompleted(Event):
    """One optimizer step was made."""

    kind: Literal["step_completed"] = "step_completed"
    step: int
    version: int = Field(description="the new one, step + 1")
    loss: float
    reward_mean: float
    lag_mean: float
    lag_max: int
    trained_tokens: int = Field(0, description="as in StepStarted")
    masked_tokens: int = Field(0, description="as in StepStarted")
    metrics: dict[str, float] = Field(default_factory=dict)
    parts_s: dict[str, float] = Field(default_factory=dict, description="seconds per part of the step")


class StepFailed(Event):
    """Training of step `step` ended without a new version that counts; the run ends too."""

    kind: Literal["step_failed"] = "step_failed"
    step: int
    outcome: Outcome
    message: str


class WeightsPublished(Event):
    """Weights `version` lie ready for the engines. Durable before the first engine is asked to load them."""

    kind: Literal["weights_published"] = "weights_published"
    version: int
    path: str = Field(description="relative to the run folder")
    size_bytes: int
    seconds: float
    tensors: int = Field(default=0, description="0 in logs of before it was said, as the next two")
    buckets: int = Field(default=1, description="parts in which they are transferred")
    digest: str = Field(default="", description="of names, types, shapes and bytes of all tensors")


class SyncStarted(Event):
    """An engine is asked to take weights `version`. The seq of this event is the lease of the update."""

    kind: Literal["sync_started"] = "sync_started"
    engine: str
    version: int
    mode: Literal["drain", "pause", "abort", "in_flight"]


class SyncRetried(Event):
    """An update of an engine failed and is made again, as attempt `attempt`; the engine has sampled nothing since."""

    kind: Literal["sync_retried"] = "sync_retried"
    engine: str
    version: int
    attempt: int
    message: str


class SyncVerified(Event):
    """What the engine took is what was published: as many tensors, with the same names and the same bytes."""

    kind: Literal["sync_verified"] = "sync_verified"
    engine: str
    version: int
    tensors: int
    digest: str
    size_bytes: int
    seconds: float = Field(description="of the update that succeeded, from its announcement to the engine's receipt")


class SyncAcknowledged(Event):
    """The engine samples with `version` from its next token on."""

    kind: Literal["sync_acknowledged"] = "sync_acknowledged"
    engine: str
    version: int
    seconds: float


class SyncFailed(Event):
    """The engine did not take the weights; it is lost to the run until it is restarted."""

    kind: Literal["sync_failed"] = "sync_failed"
    engine: str
    version: int
    outcome: Outcome
    message: str


class LearnerUp(Event):
    """The learner has its weights and waits for a batch."""

    kind: Literal["learner_up"] = "learner_up"
    version: int
    parameters: int
    device: str
    ranks: int = 1
    nodes: tuple[str, ...] = Field(default=(), description="of its ranks, in their order; empty: not known")


class LearnerLost(Event):
    """The learner's process ended or no longer answers."""

    kind: Literal["learner_lost"] = "learner_lost"
    message: str
    rank: int | None = Field(
        default=None, description="that died or hangs; None: there is one alone, or it is not known"
    )
    phase: str = Field(default="", description="what that rank did last")


# Engines


class EngineUp(Event):
    """An engine serves, with weights `version`."""

    kind: Literal["engine_up"] = "engine_up"
    engine: str
    version: int
    context_tokens: int
    slots: int = Field(description="requests that it decodes at the same time")
    device: str = "cpu"
    node: str = Field(default="", description="where it runs, if that is not the controller's machine")


class EnginePaused(Event):
    """An engine takes no new request until it is resumed."""

    kind: Literal["engine_paused"] = "engine_paused"
    engine: str
    mode: Literal["drain", "pause", "abort"]


class EngineResumed(Event):
    """An engine takes requests again."""

    kind: Literal["engine_resumed"] = "engine_resumed"
    engine: str


class EngineLost(Event):
    """An engine died or was given up; what it held is dispatched again."""

    kind: Literal["engine_lost"] = "engine_lost"
    engine: str
    message: str


class EngineRestarted(Event):
    """A lost engine was started anew; it serves once EngineUp follows with the current version."""

    kind: Literal["engine_restarted"] = "engine_restarted"
    engine: str
    restart: int


# Workers that hold environments


class EnvironmentWorkerUp(Event):
    """A worker makes environments from now on."""

    kind: Literal["environment_worker_up"] = "environment_worker_up"
    worker: str
    node: str = Field(default="", description="where it runs, if that is not the controller's machine")
    pid: int | None = None


class EnvironmentWorkerLost(Event):
    """A worker died or was given up; the trajectories whose environments it held are attempted again."""

    kind: Literal["environment_worker_lost"] = "environment_worker_lost"
    worker: str
    message: str


class EnvironmentWorkerRestarted(Event):
    """A lost worker was started anew; it makes environments once EnvironmentWorkerUp follows."""

    kind: Literal["environment_worker_restarted"] = "environment_worker_restarted"
    worker: str
    restart: int


# Evaluation and checkpoints


class EvalStarted(Event):
    """Evaluation number `eval` began; every call is answered by weights `version`."""

    kind: Literal["eval_started"] = "eval_started"
    eval: int
    step: int
    version: int
    trajectories: int


class EvalCompleted(Event):
    """An evaluation ended; failed trajectories are counted and are not part of the mean."""

    kind: Literal["eval_completed"] = "eval_completed"
    eval: int
    step: int
    version: int
    outcome: Outcome = "completed"
    reward_mean: float | None
    completed: int
    failed: int
    seconds: float


class CheckpointStarted(Event):
    """A checkpoint is being written. Durable before the learner is asked."""

    kind: Literal["checkpoint_started"] = "checkpoint_started"
    step: int
    version: int
    path: str = Field(description="relative to the run folder")


class CheckpointCommitted(Event):
    """The checkpoint is whole and on disk; only now may a resume use it."""

    kind: Literal["checkpoint_committed"] = "checkpoint_committed"
    step: int
    version: int
    path: str
    size_bytes: int
    seconds: float


class CheckpointFailed(Event):
    """The checkpoint is not usable; the one before stays."""

    kind: Literal["checkpoint_failed"] = "checkpoint_failed"
    step: int
    version: int
    message: str


# Devices, waits, health


class Origin(BaseModel):
    """Where and when something was seen that came home later, with others in a batch.

    `at_ns` is of the worker's clock; `at_ns + offset_ns` is the same instant of the controller's, give or take
    `error_ns`: half of the round trip by which the offset was measured (RFC 5905, section 8).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    worker: str
    node: str
    at_ns: int = Field(description="UTC, nanoseconds since the epoch")
    offset_ns: int
    error_ns: int


class DeviceSampled(Event):
    """Use of one device over the `window_s` seconds that ended now."""

    kind: Literal["device_sampled"] = "device_sampled"
    device: str = Field(description="as it is told apart in this run: 'cuda:0', 'cpu:engine-0', '10.0.0.7/gpu0'")
    pool: Literal["engine", "learner", "controller", "shared"] = Field(
        description="what it works for; 'shared': for several of them, or it is not known for which"
    )
    utilization: float = Field(description="0 to 1: share of the window in which it was busy")
    memory_bytes: int
    window_s: float
    source: str = Field(default="", description="where the figures come from: nvml, gpm, psutil, ray")
    sm_active: float | None = Field(
        default=None,
        description="0 to 1: mean share of a GPU's multiprocessors that had work, where the chip counts it; a kernel "
        "that only waits keeps `utilization` at 1, and not this",
    )
    memory_total_bytes: int | None = Field(default=None, description="that there is; None: not known")
    origin: Origin | None = Field(default=None, description="None: seen by the controller, now")


class EngineSampled(Event):
    """What an engine that counts for itself said of its load."""

    kind: Literal["engine_sampled"] = "engine_sampled"
    engine: str
    running: int = Field(description="requests that it decodes")
    waiting: int = Field(description="requests in its own queue")
    kv_used: float = Field(description="0 to 1: share of its KV cache in use")
    preemptions: int = Field(description="requests that it has put back for want of cache, since it started")
    prompt_tokens: int = Field(description="processed since it started")
    cached_tokens: int = Field(default=0, description="of them, taken from its prefix cache")
    sampled_tokens: int = Field(description="since it started")
    origin: Origin | None = Field(default=None, description="None: seen by the controller, now")


class WorkerLogged(Event):
    """A line that a worker on another machine logged as a warning or worse."""

    kind: Literal["worker_logged"] = "worker_logged"
    level: Literal["warning", "error"]
    line: str
    origin: Origin


class LoopLagSampled(Event):
    """How late the controller's event loop was with timers, over the `window_s` seconds that ended now."""

    kind: Literal["loop_lag_sampled"] = "loop_lag_sampled"
    window_s: float
    counts: tuple[int, ...] = Field(
        description="timers that were late by at most 1, 2, 4, ... 1024 ms (LOOP_LAG_BOUNDS_S), then all others; "
        "each is counted once"
    )
    sum_s: float = Field(description="seconds that all of them together were late")
    max_s: float = Field(description="the latest one")


class TelemetryDegraded(Event):
    """A part of the telemetry does not work, or works less well than asked; the run does not depend on it."""

    kind: Literal["telemetry_degraded"] = "telemetry_degraded"
    part: Literal["metrics", "traces", "devices", "trackers", "workers"] = Field(description="which one")
    missing: str = Field(description="what is missing and why, in one line")
    works: str = Field(description="what works nevertheless, in one line")


class TelemetryDropped(Event):
    """Telemetry lost `count` items since the last such event: the receiver was slower than the run, or gone."""

    kind: Literal["telemetry_dropped"] = "telemetry_dropped"
    signal: Literal["metrics", "traces", "devices", "trackers", "workers"] = Field(description="what they were")
    reason: Literal["queue_full", "unreachable", "refused", "timed_out", "failed"]
    count: int = Field(description="pushes of metrics, spans, samples, or steps")


class Blocked(Event):
    """An actor waits: it needs `awaited`, there is `present`."""

    kind: Literal["blocked"] = "blocked"
    waiter: str
    edge: EdgeName
    awaited: str
    present: str


class Unblocked(Event):
    """The wait that began at seq `blocked` ended."""

    kind: Literal["unblocked"] = "unblocked"
    waiter: str
    edge: EdgeName
    blocked: int
    outcome: Literal["ready", "expired", "cancelled"]
    seconds: float


class DeadlineExpired(Event):
    """An effect or a wait took longer than it may."""

    kind: Literal["deadline_expired"] = "deadline_expired"
    effect: str
    subject: str
    limit_s: float


class InvariantBroken(Event):
    """A law does not hold; `broken_by` is the seq of the first event after which it did not."""

    kind: Literal["invariant_broken"] = "invariant_broken"
    law: str
    broken_by: int
    expected: str
    found: str


class StallDetected(Event):
    """The run cannot or does not move; `chain` leads from the trainer's wait to the first cause."""

    kind: Literal["stall_detected"] = "stall_detected"
    stall: int
    stall_kind: Literal["deadlock", "overdue", "livelock", "degraded", "silent_loss"]
    chain: tuple[str, ...]
    sentence: str
    first_cause: int | None = Field(
        default=None, description="seq of the event that shows the first cause, where one does"
    )


class StallCleared(Event):
    """A stall ended; `by` is the seq of the event that ended it."""

    kind: Literal["stall_cleared"] = "stall_cleared"
    stall: int
    by: int
    seconds: float


AnyEvent = Annotated[
    RunStarted
    | RunResumed
    | StopRequested
    | RunFinished
    | RunFailed
    | LogTailCut
    | PhaseEntered
    | PolicyChanged
    | PromptDrawn
    | PromptQuarantined
    | PromptReturned
    | DataExhausted
    | GroupDispatched
    | GroupBuffered
    | GroupFiltered
    | GroupFailed
    | GroupEvicted
    | GroupDiscarded
    | GroupRestored
    | BatchTaken
    | TrajectoryStarted
    | TrajectoryCompleted
    | TrajectoryFailed
    | RetryScheduled
    | TrajectoryDropped
    | LlmCallStarted
    | LlmCallFinished
    | EnvStepStarted
    | EnvStepFinished
    | RewardScored
    | StepStarted
    | StepCompleted
    | StepFailed
    | WeightsPublished
    | SyncStarted
    | SyncRetried
    | SyncVerified
    | SyncAcknowledged
    | SyncFailed
    | LearnerUp
    | LearnerLost
    | EngineUp
    | EnginePaused
    | EngineResumed
    | EngineLost
    | EngineRestarted
    | EnvironmentWorkerUp
    | EnvironmentWorkerLost
    | EnvironmentWorkerRestarted
    | EvalStarted
    | EvalCompleted
    | CheckpointStarted
    | CheckpointCommitted
    | CheckpointFailed
    | DeviceSampled
    | EngineSampled
    | WorkerLogged
    | LoopLagSampled
    | TelemetryDegraded
    | TelemetryDropped
    | Blocked
    | Unblocked
    | DeadlineExpired
    | InvariantBroken
    | StallDetected
    | StallCleared,
    Field(discriminator="kind"),
]
"""The one discriminated union of all events."""

EVENT_CLASSES: tuple[type[Event], ...] = get_args(get_args(AnyEvent)[0])
BY_KIND: dict[str, type[Event]] = {cls.model_fields["kind"].default: cls for cls in EVENT_CLASSES}

TELEMETRY: tuple[type[Event], ...] = (
    DeviceSampled,
    EngineSampled,
    WorkerLogged,
    LoopLagSampled,
    TelemetryDegraded,
    TelemetryDropped,
)
"""Events that tell of a run from its side: no decision reads them, and nothing moves because of them."""
