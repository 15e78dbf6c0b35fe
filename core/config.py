"""What a run is: every setting, its default, and what is allowed.

A configuration is one TOML file with the sections below. Unknown keys are refused. The whole of it stands in
RunStarted, so a log can be replayed without the file.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

FILTERED_STEPS = 10
"""Batches of groups that may be filtered for one step unless the configuration says otherwise."""


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RunSection(Section):
    """What is run, and for how long."""

    name: str = Field(
        "run", min_length=1, description="Shown in the terminal and used in the name of the run folder."
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="Of everything random: data order, environments, sampling, initial weights.",
    )
    steps: int = Field(ge=1, description="Optimizer steps to make.")


class ModelSection(Section):
    """The policy: a Hugging Face model folder (config.json, tokenizer, weights)."""

    path: str = Field(description="Model folder; relative paths start at the configuration file.")
    init: Literal["pretrained", "random"] = Field(
        "pretrained", description="'random' draws fresh weights from the folder's config.json with run.seed."
    )


class DataSection(Section):
    """Where prompts come from."""

    kind: Literal["jsonl", "parquet", "reasoning_gym", "generated"] = Field(
        description="'generated' makes items by number, {\"number\": i}, for environments that need no data file."
    )
    path: str | None = Field(None, description="File, for 'jsonl' and 'parquet'.")
    eval_path: str | None = Field(
        None, description="File of held-out items, for 'jsonl' and 'parquet' when evaluations are on."
    )
    task: str | None = Field(
        None, description="Dataset name, for 'reasoning_gym'; for example 'basic_arithmetic'."
    )
    size: int | None = Field(
        None, ge=1, description="Items in an epoch; optional for a file, of which it takes the first ones."
    )
    epochs: int = Field(1, ge=1, description="How often each item may be drawn.")
    shuffle: bool = Field(True, description="A fresh order for every epoch, from run.seed.")
    options: dict[str, Any] = Field(default_factory=dict, description="Handed to the reasoning_gym task.")


class EnvironmentSection(Section):
    """The world that answers the policy."""

    kind: str = Field(
        description="'number_hunt', 'verifier', 'reasoning_gym', or your own class as 'package.module:Class'."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Handed to the environment's constructor."
    )


class RolloutSection(Section):
    """How trajectories are made."""

    group_size: int = Field(
        8, ge=2, description="Trajectories per prompt; the baseline is their mean reward."
    )
    group_floor: int | None = Field(
        None,
        ge=2,
        description="Complete trajectories with which a group is trained when the attempts at the others are used up; "
        "default: group_size, all of them.",
    )
    max_turns: int = Field(1, ge=1, description="Policy answers per trajectory at most.")
    max_tokens: int = Field(256, ge=1, description="Sampled tokens per turn at most.")
    context_tokens: int = Field(2048, ge=2, description="Tokens of a whole trajectory at most.")
    temperature: float = Field(
        1.0, gt=0, description="Of training rollouts. Log-probs are of this distribution."
    )
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus; 1 samples from the whole distribution.")

    @property
    def floor_or_default(self) -> int:
        """Complete trajectories that a group needs."""
        return self.group_floor or self.group_size


class SchedulerSection(Section):
    """Which groups are generated when."""

    policy: Literal["targeted", "capacity", "windowed", "token_windowed"] = Field(
        "targeted",
        description="'targeted': every group is meant for one step, which waits for it. 'capacity': the number of "
        "groups is bounded, and first finished is first trained. 'windowed': a group that is too slow for "
        "max_staleness is given up. 'token_windowed': no group is too slow, but its tokens older than max_staleness "
        "are left out of the loss. See docs/policies.md.",
    )
    groups_per_step: int = Field(ge=1, description="Groups that one optimizer step trains.")
    max_staleness: int = Field(
        1,
        ge=0,
        description="Versions a group may lag behind the step that trains it, with 'capacity' in the mean only, "
        "with 'token_windowed' each token that is trained; 0 is synchronous training.",
    )
    oversample_groups: int = Field(
        0,
        ge=0,
        description="Groups started for each step beyond groups_per_step, with 'targeted'. The first ones to be whole "
        "are trained, the rest is given up and its prompts are drawn again.",
    )
    permits: int | None = Field(
        None,
        ge=1,
        description="Groups in flight at most; default: (groups_per_step + oversample_groups) x (max_staleness + 1).",
    )
    buffer_groups: int | None = Field(
        None,
        ge=1,
        description="Finished groups kept at most, with those in flight; default: as for permits.",
    )

    @property
    def groups_started_per_step(self) -> int:
        """Groups that are started for one optimizer step."""
        return self.groups_per_step + self.oversample_groups

    @property
    def permits_or_default(self) -> int:
        """Groups in flight at most."""
        return self.permits or self.groups_started_per_step * (self.max_staleness + 1)

    @property
    def buffer_or_default(self) -> int:
        """Finished groups kept at most."""
        return self.buffer_groups or self.groups_started_per_step * (self.max_staleness + 1)

    def oldest_trained(self, step: int) -> int:
        """Return the oldest version whose tokens `step` may train; 0 where the policy bounds groups, not tokens."""
        return max(0, step - self.max_staleness) if self.policy == "token_windowed" else 0


class AlgorithmSection(Section):
    """The objective: GRPO with a clipped, token-level loss."""

    advantage: Literal["grpo", "dr_grpo"] = Field(
        "grpo",
        description="'grpo' divides by the group's standard deviation, 'dr_grpo' does not (arXiv 2503.20783).",
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="Ratio is clipped below 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, description="Ratio is clipped above 1 + clip_high.")
    importance_cap: float = Field(
        2.0, ge=1, description="Truncation of the importance weight between learner and behaviour policy."
    )
    entropy_weight: float = Field(0.0, ge=0, description="Weight of an entropy bonus.")
    drop_zero_variance: bool = Field(
        False,
        description="Filter groups whose rewards are all equal, and refill (arXiv 2503.14476, section 3.2).",
    )
    filtered_max: int | None = Field(
        None,
        ge=0,
        description="Groups filtered for one step at most; one more ends the run. 0: no bound; default: "
        "10 x scheduler.groups_per_step.",
    )


class LearnerSection(Section):
    """The optimizer and where it runs."""

    kind: Literal["torch"] = Field("torch", description="PyTorch, in a process of its own.")
    lr: float = Field(1e-6, gt=0, description="Peak learning rate of AdamW.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="After the warm-up.")
    weight_decay: float = Field(0.0, ge=0, description="Of AdamW; decoupled from the gradient.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of AdamW's mean of gradients.")
    beta2: float = Field(0.95, ge=0, lt=1, description="Decay of AdamW's mean of squared gradients.")
    grad_clip: float = Field(1.0, gt=0, description="Maximum norm of the gradient.")
    micro_batch_tokens: int = Field(16384, ge=1, description="Padded tokens of one forward pass at most.")
    threads: int = Field(1, ge=1, description="CPU threads of the learner process.")
    device: str = Field("auto", description="'auto', 'cpu', 'cuda', 'cuda:1', ...")


class EngineSection(Section):
    """The inference engines."""

    kind: Literal["torch"] = Field("torch", description="PyTorch, each in a process of its own.")
    count: int = Field(1, ge=1, description="Engines, each in a process of its own.")
    slots: int = Field(32, ge=1, description="Requests that one engine decodes at the same time.")
    threads: int = Field(1, ge=1, description="CPU threads of each engine process.")
    device: str = Field("auto", description="'auto', 'cpu', 'cuda', 'cuda:1', ...")
    sync_mode: Literal["drain", "pause", "in_flight"] = Field(
        "in_flight",
        description="How engines take new weights: after what is in flight, around it, or through it.",
    )
    kv_after_sync: Literal["recompute", "keep"] = Field(
        "recompute", description="What happens to the KV cache of requests in flight when weights change."
    )
    restarts_max: int = Field(2, ge=0, description="Restarts of each engine in a run.")


class EvalSection(Section):
    """Evaluation on held-out items."""

    every_steps: int = Field(0, ge=0, description="0: never.")
    prompts: int = Field(32, ge=1, description="Items per evaluation, one trajectory each.")
    temperature: float = Field(1.0, gt=0, description="Of evaluation rollouts.")
    at_end: bool = Field(True, description="Also after the last step, if evaluations are on.")
    seed_offset: int = Field(1_000_003, ge=1, description="Added to run.seed for generated evaluation items.")


class CheckpointSection(Section):
    """When weights and optimizer are saved."""

    every_steps: int = Field(0, ge=0, description="0: only at the end.")
    at_end: bool = Field(True, description="After the last step, and when the run is interrupted.")
    keep: int = Field(2, ge=1, description="Committed checkpoints kept.")


class DeadlineSection(Section):
    """How long each outside effect may take, in seconds. Its expiry is an event."""

    start_s: float = Field(300, gt=0, description="An engine or the learner until it is up.")
    llm_call_s: float = Field(600, gt=0, description="One completion, queue included.")
    env_reset_s: float = Field(60, gt=0, description="An environment's opening messages.")
    env_step_s: float = Field(60, gt=0, description="An environment's answer to one turn.")
    reward_s: float = Field(60, gt=0, description="The reward of one trajectory.")
    train_step_s: float = Field(3600, gt=0, description="One optimizer step.")
    publish_s: float = Field(600, gt=0, description="Writing weights for the engines.")
    weight_sync_s: float = Field(600, gt=0, description="One engine taking new weights, pause included.")
    eval_s: float = Field(3600, gt=0, description="One whole evaluation.")
    checkpoint_s: float = Field(1800, gt=0, description="Writing one checkpoint.")
    buffer_wait_s: float = Field(
        7200, gt=0, description="The trainer's wait for a batch; its expiry ends the run."
    )
    durable_s: float = Field(60, gt=0, description="The log's way to the disk.")
    close_s: float = Field(20, gt=0, description="An engine or the learner until it has ended.")


class FailureSection(Section):
    """What happens when something fails."""

    attempts_max: int = Field(
        3, ge=1, description="Attempts at one trajectory, failures of the prompt's own making."
    )
    engine_attempts_max: int = Field(8, ge=1, description="Attempts, failures of engines and infrastructure.")
    backoff_s: float = Field(0.5, ge=0, description="Wait before the first retry; doubles with each.")
    backoff_max_s: float = Field(30, ge=0, description="Longest wait before a retry.")
    strikes_max: int = Field(
        2,
        ge=1,
        description="Groups of one item that fail, or lose trajectories, by its own making before it is quarantined.",
    )
    engine_strikes_max: int = Field(
        3,
        ge=1,
        description="The same where engines failed or calls expired; the death of an engine does not count.",
    )
    share_max: float = Field(
        0.5, gt=0, le=1, description="Share of failed trajectories that ends the run ..."
    )
    window: int = Field(64, ge=1, description="... within this many ended attempts.")


class LogSection(Section):
    """The event log."""

    segment_bytes: int = Field(
        64 * 2**20, ge=4096, description="Compressed size at which a new segment begins."
    )
    unsaved_max: int = Field(8192, ge=1, description="Events not yet on disk before dispatching waits.")


class WatchdogSection(Section):
    """When a run that does not move is reported, and what follows.

    A deadlock is proven from the events, at the event after which nothing can move, and has no setting. Reports are
    the events `stall_detected` and `stall_cleared`; `eventrain stalls RUN` lists them.
    """

    on_stall: Literal["warn", "abort"] = Field(
        "warn",
        description="'abort' ends the run with the cause of a deadlock, a livelock or a silent loss. Overdue effects "
        "have their deadlines, and a degraded run goes on.",
    )
    overdue_factor: float = Field(
        20,
        gt=1,
        description="An effect is overdue when it is this many times older than 99 % of the finished ones of its kind "
        "became; later where a few of them took much longer than the rest.",
    )
    overdue_floor_s: float = Field(
        60,
        gt=0,
        description="No effect is overdue before this many seconds, or a quarter of its deadline if that is less.",
    )
    livelock_s: float = Field(
        600,
        gt=0,
        description="Seconds without a step or a new usable group, while attempts keep ending, that are a livelock.",
    )
    degraded_s: float = Field(
        120, gt=0, description="Seconds of low use of the engines, with work at hand, before it is reported."
    )
    degraded_share: float = Field(
        0.25, gt=0, lt=1, description="Share of the engines' slots below which their use is low."
    )


class RunConfig(Section):
    """The whole configuration of a run."""

    run: RunSection
    model: ModelSection
    data: DataSection
    environment: EnvironmentSection
    rollout: RolloutSection = RolloutSection()
    scheduler: SchedulerSection
    algorithm: AlgorithmSection = AlgorithmSection()
    learner: LearnerSection = LearnerSection()
    engine: EngineSection = EngineSection()
    eval: EvalSection = EvalSection()
    checkpoint: CheckpointSection = CheckpointSection()
    deadlines: DeadlineSection = DeadlineSection()
    failures: FailureSection = FailureSection()
    log: LogSection = LogSection()
    watchdog: WatchdogSection = WatchdogSection()

    @model_validator(mode="after")
    def _numbers_that_can_make_progress(self) -> RunConfig:
        self._groups_make_sense()
        scheduler, data, rollout = self.scheduler, self.data, self.rollout
        if scheduler.buffer_or_default < scheduler.groups_per_step:
            raise ValueError(
                f"scheduler.buffer_groups is {scheduler.buffer_groups}, but a step needs "
                f"scheduler.groups_per_step = {scheduler.groups_per_step}: no step could ever start"
            )
        window = scheduler.groups_per_step * (scheduler.max_staleness + 1)
        if scheduler.policy == "capacity" and scheduler.permits_or_default > window:
            raise ValueError(
                f"scheduler.permits is {scheduler.permits}, but scheduler.policy = 'capacity' never has more than "
                f"scheduler.groups_per_step x (scheduler.max_staleness + 1) = {window} groups in flight"
            )
        if scheduler.policy == "token_windowed" and self.engine.sync_mode == "drain":
            raise ValueError(
                "engine.sync_mode is 'drain', but scheduler.policy = 'token_windowed' lets groups go on through new "
                "weights, and 'drain' keeps the weights back until they have ended: use 'in_flight' or 'pause'"
            )
        if rollout.max_tokens >= rollout.context_tokens:
            raise ValueError(
                f"rollout.max_tokens is {rollout.max_tokens}, but rollout.context_tokens is "
                f"{rollout.context_tokens}: no room is left for a prompt"
            )
        if data.kind in ("jsonl", "parquet"):
            if data.path is None:
                raise ValueError(f"data.path is missing: data.kind = '{data.kind}' reads a file")
            if self.eval.every_steps and data.eval_path is None:
                raise ValueError(
                    f"data.eval_path is missing: eval.every_steps is {self.eval.every_steps}, and an evaluation "
                    "needs items that training does not see"
                )
        elif data.size is None:
            raise ValueError(f"data.size is missing: data.kind = '{data.kind}' has no length of its own")
        if data.kind == "reasoning_gym" and data.task is None:
            raise ValueError("data.task is missing: data.kind = 'reasoning_gym' needs the name of a task")
        if data.size is not None:
            require_enough_prompts(self, data.size)
        return self

    def _groups_make_sense(self) -> None:
        scheduler, rollout = self.scheduler, self.rollout
        if rollout.floor_or_default > rollout.group_size:
            raise ValueError(
                f"rollout.group_floor is {rollout.group_floor}, but rollout.group_size is {rollout.group_size}: "
                "no group could ever be whole"
            )
        if not scheduler.oversample_groups:
            return
        if scheduler.policy != "targeted":
            raise ValueError(
                f"scheduler.oversample_groups is {scheduler.oversample_groups}, but scheduler.policy = "
                f"'{scheduler.policy}' waits for no particular group: only 'targeted' can use it"
            )
        if scheduler.buffer_or_default < scheduler.groups_started_per_step:
            raise ValueError(
                f"scheduler.buffer_groups is {scheduler.buffer_groups}, but scheduler.groups_per_step + "
                f"scheduler.oversample_groups = {scheduler.groups_started_per_step} groups are started for a step"
            )

    @property
    def filtered_max(self) -> int:
        """Groups filtered for one step at most; 0 is no bound."""
        limit = self.algorithm.filtered_max
        return FILTERED_STEPS * self.scheduler.groups_per_step if limit is None else limit


def require_enough_prompts(config: RunConfig, items: int) -> None:
    """Raise ValueError when `items` per epoch cannot fill every step of the run."""
    need = config.run.steps * config.scheduler.groups_per_step
    have = items * config.data.epochs
    if need > have:
        raise ValueError(
            f"run.steps = {config.run.steps} with scheduler.groups_per_step = {config.scheduler.groups_per_step} "
            f"need {need} prompts, but {items} items x data.epochs = {config.data.epochs} are {have}: "
            f"at least data.epochs = {-(-need // items)} would do"
        )
