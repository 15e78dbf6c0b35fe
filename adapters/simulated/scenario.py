"""A scenario: a run's settings, the world around it, what goes wrong there, and how the run must end.

Scenarios are TOML files (docs/reliability.md) or drawn by `chaos`; both are this.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from ...core.config import RunConfig, Section
from .faults import Fault

Outcome = Literal["completed", "interrupted", "data_exhausted", "failed"]

DEFAULTS: dict[str, dict[str, Any]] = {
    "run": {"name": "simulated", "steps": 6},
    "model": {"path": "simulated"},
    "data": {"kind": "generated", "size": 1000},
    "environment": {"kind": "simulated"},
    "scheduler": {"groups_per_step": 4, "max_staleness": 1},
    "rollout": {"group_size": 4, "max_turns": 2},
}
"""Settings that a scenario does not give."""
EVAL_STEPS, EVAL_PROMPTS = 2, 4
"""What `--eval` sets where the scenario has no evaluations."""


class Surroundings(Section):
    """How fast the simulated world is, in virtual seconds; latencies vary by chance, up to `spread` times as long."""

    engines: int = Field(1, ge=1, description="Engines.")
    turns: int = Field(1, ge=1, description="Turns after which an environment is done.")
    rollout_s: float = Field(1.0, gt=0, description="One answer of an engine.")
    environment_s: float = Field(0.1, ge=0, description="One answer of an environment.")
    learner_start_s: float = Field(1.0, ge=0, description="Until the learner is up.")
    engine_start_s: float = Field(0.5, ge=0, description="Until an engine is up.")
    train_s: float = Field(2.0, ge=0, description="One optimizer step.")
    load_s: float = Field(0.1, ge=0, description="One engine taking new weights.")
    commit_s: float = Field(0.004, ge=0, description="One group commit of the log.")
    spread: float = Field(1.0, ge=1, description="1: every latency is as said.")
    rewards: Literal["mixed", "equal", "every_third_equal", "any"] = Field(
        "mixed",
        description="Rewards inside a group: different, equal, equal for every third prompt, or one of it by chance.",
    )
    device_s: float = Field(
        0.0, ge=0, description="Between two samples of the devices' use; 0: none is taken."
    )
    heal_s: float | None = Field(None, gt=0, description="From here on nothing goes wrong any more.")


class Expect(Section):
    """How the run must end, besides keeping every law."""

    outcome: tuple[Outcome, ...] = Field(("completed",), min_length=1)
    refused: str | None = Field(None, description="The settings must be refused, with these words.")
    error: tuple[str, ...] = Field((), description="Types of failure of which the run may fail.")
    cause: str | None = Field(None, description="Words in the failure's message.")
    reason: str | None = Field(None, description="Words in the reason that the run ended with steps missing.")
    steps: int | None = Field(None, ge=0, description="Steps trained.")
    seconds_max: float | None = Field(None, gt=0, description="Virtual seconds the run may take.")
    quarantined: tuple[int, ...] | None = Field(None, description="Prompts quarantined, exactly.")
    some: tuple[str, ...] = Field((), description="Kinds of event that must be in the log.")
    none: tuple[str, ...] = Field((), description="Kinds of event that must not.")


class Scenario(Section):
    """One world and what is expected of it."""

    name: str = Field("scenario", min_length=1)
    about: str = Field("", description="What it shows.")
    config: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Settings of the run.")
    world: Surroundings = Surroundings()
    fault: tuple[Fault, ...] = ()
    expect: Expect = Expect()

    def settings(self, *, evaluating: bool = False) -> dict[str, dict[str, Any]]:
        """Return the run's settings: the defaults, the scenario's, and evaluations if asked for."""
        table = copy.deepcopy(DEFAULTS)
        table["engine"] = {"count": self.world.engines}
        for section, values in self.config.items():
            table[section] = {**table.get(section, {}), **values} if isinstance(values, Mapping) else values
        if evaluating and not table.get("eval", {}).get("every_steps"):
            table["eval"] = {"prompts": EVAL_PROMPTS, **table.get("eval", {}), "every_steps": EVAL_STEPS}
        return table

    def run_config(self, *, evaluating: bool = False) -> RunConfig:
        """Return the run's configuration. Raises pydantic's ValidationError where it is refused."""
        return RunConfig.model_validate(self.settings(evaluating=evaluating))
