"""What a run is: every setting, its default, and what is allowed.

A configuration is one TOML file with the sections below. Unknown keys are refused. The whole of it stands in
RunStarted, so a log can be replayed without the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from .config_processes import require_sensible_processes
from .config_sections import (
    CheckpointSection,
    ClusterSection,
    DeadlineSection,
    EngineSection,
    EvalSection,
    FailureSection,
    LearnerSection,
    LogSection,
    Section,
    TelemetrySection,
    WatchdogSection,
)

__all__ = [
    "FILTERED_STEPS",
    "AlgorithmSection",
    "CheckpointSection",
    "ClusterSection",
    "DataSection",
    "DeadlineSection",
    "EngineSection",
    "EnvironmentSection",
    "EvalSection",
    "FailureSection",
    "LearnerSection",
    "LogSection",
    "ModelSection",
    "RolloutSection",
    "RunConfig",
    "RunSection",
    "SchedulerSection",
    "Section",
    "TelemetrySection",
    "WatchdogSection",
    "recorded_checkpoint",
    "recorded_config",
    "recorded_scheduler",
    "require_enough_prompts",
]

S = TypeVar("S", bound=Section)

FILTERED_STEPS = 10
"""Batches of groups that may be filtered for one step unless the configuration says otherwise."""


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
    workers: int = Field(
        0,
        ge=0,
        description="Processes in which environments and rewards run; 0: in the controller, beside everything else.",
    )
    restarts_max: int = Field(2, ge=0, description="Restarts of each of these processes in a run.")


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
    cluster: ClusterSection = ClusterSection()
    deadlines: DeadlineSection = DeadlineSection()
    failures: FailureSection = FailureSection()
    log: LogSection = LogSection()
    telemetry: TelemetrySection = TelemetrySection()
    watchdog: WatchdogSection = WatchdogSection()

    @model_validator(mode="after")
    def _numbers_that_can_make_progress(self) -> RunConfig:
        self._groups_make_sense()
        require_sensible_processes(self.engine, self.cluster)
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


def recorded_config(config: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that a log has in `config`, without what this version does not know.

    For whoever reads a log and decides nothing. Raises pydantic's ValidationError where what is known is not usable.
    """
    known: dict[str, Any] = {}
    for name, field in RunConfig.model_fields.items():
        said = config.get(name)
        if isinstance(said, Mapping) and isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            known[name] = {key: said[key] for key in field.annotation.model_fields if key in said}
        elif name in config:
            known[name] = said
    return RunConfig.model_validate(known)


def recorded_scheduler(config: Mapping[str, Any]) -> SchedulerSection:
    """Return the scheduler's settings as a log has them in `config`, as far as this version can use them.

    For folds that count by them and decide nothing, which have to read a log of any version to its end: a key that is
    not known here is left out, and a value that is not taken counts as its default; of ``groups_per_step``, which has
    none, as 1. Raises nothing.
    """
    return _recorded(SchedulerSection, config.get("scheduler"), {"groups_per_step": 1})


def recorded_checkpoint(config: Mapping[str, Any]) -> CheckpointSection:
    """Return what `config` of a log says of checkpoints, read as `recorded_scheduler` reads."""
    return _recorded(CheckpointSection, config.get("checkpoint"), {})


def _recorded(kind: type[S], recorded: object, otherwise: dict[str, Any]) -> S:
    said = recorded if isinstance(recorded, Mapping) else {}
    usable = {name: said[name] for name in kind.model_fields if name in said}
    try:
        return kind.model_validate(otherwise | usable)
    except ValidationError as error:
        for wrong in error.errors():
            usable.pop(str(wrong["loc"][0]), None)
        return kind.model_validate(otherwise | usable)
