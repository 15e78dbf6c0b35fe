"""Foresight: whether a run with these settings can make progress at all, found by running it, before it is run.

The shipped run makes the first steps of a smaller copy of itself in virtual time, three times:

- in a *quick* world, whose parts are faster than any real ones, with the deadlines of the settings. What expires
  there expires anywhere.
- in a *slow* world, with a slow disk, long rollouts and two prompts that are refused, one of them late, and with
  deadlines out of reach. What stands still there does so by its own logic.
- in the same slow world without refusals, where other groups are in flight when a step ends.

All are as healthy as a run can hope for, so a run that does not get through them is refused, with the chain from the
trainer's wait to the first cause, and with the setting whose default would have got through. What depends on how fast
the real parts are is not foreseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from ...core.chain import trainer_chain
from ...core.config import DeadlineSection, RunConfig, WatchdogSection
from ...core.failures import RunFailure
from ...core.policies import Policy
from ...core.ports import GenerateRequest, PromptTooLong
from ...core.run import Run, RunOutcome
from ...events.bus import Bus
from ...events.record import Record
from ...events.types import DeadlineExpired, StallDetected
from .disk import SimulatedDisk
from .engine import SimulatedEngine
from .trial import Parts, trial
from .virtual_time import Stalled, VirtualClock
from .world import SimulatedEnvironment, SimulatedLearner

GROUPS_PER_STEP, STALENESS = 3, 3
"""At most so many in the copy."""
BEYOND = 4
"""Steps after the first window: to fill it, to go on, to evaluate and to save."""
SPARE = 2 * GROUPS_PER_STEP
"""At most so many prompts more than the copy's steps need."""

STANDS_STILL = ("deadlock", "livelock", "silent_loss", "buffer_wait_expired")


@dataclass(frozen=True)
class Latencies:
    """How long the parts of a world take, in seconds."""

    start_s: float
    answer_s: float
    train_s: float
    write_s: float
    """Of weights and checkpoints, by the learner and by an engine that takes them."""
    commit_s: float
    wait_s: float
    """The trainer's longest wait that can come of these latencies, many times over."""
    late_s: float = 0.0
    """After which the second of the refused prompts is refused; 0: none is."""


QUICK = Latencies(start_s=0.05, answer_s=2e-4, train_s=5e-4, write_s=1e-4, commit_s=1e-4, wait_s=1.0)
"""No process that loads a library is up in 50 ms, and no engine samples a token in 0.2 ms."""
SLOW = Latencies(
    start_s=5.0, answer_s=1.0, train_s=2.0, write_s=0.1, commit_s=0.1, wait_s=300.0, late_s=20.0
)
PLAIN = replace(SLOW, late_s=0.0)
OUT_OF_REACH_S = 1e6


@dataclass(frozen=True)
class Refusal:
    """Why a run cannot make progress."""

    step: int
    """That can never be trained, in the copy."""
    why: str
    """The chain, or the failure that ended it."""
    settings: tuple[str, ...] = ()
    """Each alone, left at its default, would let the run go on; if none would, what the run schedules by."""

    def __str__(self) -> str:
        """Return it as one line."""
        what = "no step can be trained" if self.step == 0 else f"a trial run ends at step {self.step}"
        return f"with {' and '.join(self.settings)}, {what}: {self.why}"


def refusal(config: RunConfig, *, policy: Policy | None = None) -> Refusal | None:
    """Return why a run of `config` cannot make progress, None when it can.

    `policy` is used in place of the configured one. Takes a fraction of a second, more where it refuses.
    """
    found = _first(config, policy)
    if found is None:
        return None
    settings = tuple(text for text, other in changed_back(config) if _first(other, policy) is None)
    return replace(found, settings=settings or (_sizes(config, policy),))


def _first(config: RunConfig, policy: Policy | None) -> Refusal | None:
    copy = smaller(config)
    return (
        _tried(quick(copy), QUICK, policy)
        or _tried(slow(copy), SLOW, policy)
        or _tried(slow(copy), PLAIN, policy)
    )


# The copy


def smaller(config: RunConfig) -> RunConfig:
    """Return a copy of the run that is cheap to simulate and can go on exactly if the run itself can.

    What the scheduler compares keeps its order: permits and the room of the buffer lie in the same place between
    the multiples of a step's groups, steps and data end as near to the window as before. Trajectories are not told
    apart by anything that decides, so the smallest group will do; the same goes for turns beyond the second,
    engines beyond the second, and evaluated items beyond the second.
    """
    scheduler, data = config.scheduler, config.data
    per_step, staleness = min(GROUPS_PER_STEP, scheduler.groups_per_step), min(STALENESS, scheduler.max_staleness)
    steps = min(config.run.steps, staleness + BEYOND)
    epochs = min(data.epochs, 2)
    changes: dict[str, dict[str, Any]] = {
        "run": {"steps": steps},
        "data": {"size": -(-(steps * per_step + _spare(config)) // epochs), "epochs": epochs},
        "rollout": {
            "group_size": 2,
            "max_turns": min(config.rollout.max_turns, 2),
            "max_tokens": 3,
            "context_tokens": 64,
        },
        "scheduler": {"groups_per_step": per_step, "max_staleness": staleness},
        "engine": {"count": min(config.engine.engines, 2), "slots": max(config.engine.slots, 64)},
        "eval": {"prompts": min(config.eval.prompts, 2), "every_steps": _sooner(config.eval.every_steps, config)},
        "checkpoint": {"every_steps": _sooner(config.checkpoint.every_steps, config)},
        "watchdog": {"on_stall": "abort"},
    }
    for name in ("permits", "buffer_groups"):
        count = getattr(scheduler, name)
        if count is not None:
            changes["scheduler"][name] = _in_place(count, scheduler.groups_per_step, scheduler.max_staleness)
    return _with(config, changes)


def _in_place(count: int, per_step: int, staleness: int) -> int:
    """Return the count that lies between the multiples of the copy's groups per step as `count` lies between ours."""
    small, window = min(GROUPS_PER_STEP, per_step), min(STALENESS, staleness) + 1
    whole, rest = divmod(count, per_step)
    if rest:
        rest = min(max(1, rest * small // per_step), small - 1)
    if whole > staleness:  # the window, or more than it
        return window * small + (count > per_step * (staleness + 1))
    return min(whole, window - 1) * small + rest


def _sooner(every: int, config: RunConfig) -> int:
    """Return a period that strikes within the copy's steps if `every` (0: never) strikes within the run's."""
    staleness = min(STALENESS, config.scheduler.max_staleness)
    return min(every, staleness + 2) if every <= config.run.steps else every


def _spare(config: RunConfig) -> int:
    """Return how many prompts the copy has beyond those that its steps need: those of the run, as far as known."""
    if config.data.size is None:
        return SPARE
    need = config.run.steps * config.scheduler.groups_per_step
    return min(SPARE, config.data.size * config.data.epochs - need)


def _with(config: RunConfig, changes: dict[str, dict[str, Any]]) -> RunConfig:
    """Return `config` with some settings changed; not validated again."""
    sections = {name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    return config.model_copy(update=sections)


def quick(copy: RunConfig) -> RunConfig:
    """Return `copy` for the quick world: its own deadlines, of which the trainer's wait is cut to what can matter."""
    return _with(copy, {"deadlines": {"buffer_wait_s": min(QUICK.wait_s, copy.deadlines.buffer_wait_s)}})


def slow(copy: RunConfig) -> RunConfig:
    """Return `copy` for the slow world, where only the trainer's wait may expire, and two prompts may fail."""
    far = dict.fromkeys(DeadlineSection.model_fields, OUT_OF_REACH_S) | {"buffer_wait_s": SLOW.wait_s}
    return _with(
        copy,
        {
            "deadlines": far,
            "failures": {"share_max": 1.0},
            "watchdog": WatchdogSection(on_stall="abort").model_dump(),
        },
    )


# The trial


@dataclass
class _Witness:
    """Notes what the outcome of a run does not say."""

    run: Run
    chain: list[str] = field(default_factory=list)
    """Behind a wait, as it was when the wait expired or the watchdog reported it."""
    in_vain: str = ""
    """An evaluation or a checkpoint that did not end well, which ends no run."""

    def apply(self, record: Record) -> None:
        """Read the chain from the run's own state, which the record has just made."""
        match record.event:
            case DeadlineExpired(effect="wait") if not self.chain:
                self.chain = self.brought_up_to_date(trainer_chain(self.run.view, self.run.config)[0])
            case StallDetected() as event if not self.chain:
                self.chain = self.brought_up_to_date(event.chain)
            case DeadlineExpired(effect="eval" | "checkpoint") as event:
                self.in_vain = self.in_vain or f"{event.effect} of {event.subject}: no end within {event.limit_s:g} s"

    def brought_up_to_date(self, chain: Sequence[str]) -> list[str]:
        """Return `chain` with what the collector waits for now; it may have fallen asleep before an engine was up."""
        run, then = self.run, "collector waits engine_available"
        if then not in chain or not run.view.engines.up():
            return list(chain)
        now = f"collector waits {run.policy.why_idle(run.view, run.config).name}"
        return [now if link == then else link for link in chain]


def _tried(config: RunConfig, latencies: Latencies, policy: Policy | None) -> Refusal | None:
    witnesses: list[_Witness] = []

    def watching(run: Run, bus: Bus) -> None:
        witnesses.append(bus.register(_Witness(run)))

    try:
        run, outcome = trial(config, _parts(config, latencies), policy=policy, watching=watching)
    except Stalled as stalled:
        run = witnesses[0].run
        return Refusal(run.view.trainer.step, f"{stalled}: {' <- '.join(trainer_chain(run.view, config)[0])}")
    witness = witnesses[0]
    if outcome.outcome == "completed":
        return Refusal(outcome.steps, witness.in_vain) if witness.in_vain else None
    if latencies.late_s and _may_end_so(outcome):
        return None
    stood = outcome.error in STANDS_STILL and witness.chain
    why = " <- ".join(witness.chain) if stood else outcome.message or f"it ends as {outcome.outcome}"
    return Refusal(outcome.steps, why)


def _may_end_so(outcome: RunOutcome) -> bool:
    """Return whether prompts that fail may end a run like this: with their data, or by a limit that is meant to."""
    if outcome.outcome == "data_exhausted":
        return True
    return isinstance(outcome.exception, RunFailure) and outcome.error not in STANDS_STILL


def _parts(config: RunConfig, latencies: Latencies) -> Parts:
    clock = VirtualClock()

    def lasting(seconds: float) -> Callable[..., Any]:
        async def hook(*_: object) -> None:
            await clock.sleep(seconds)

        return hook

    late = _late_prompt(config)

    async def refuse(request: GenerateRequest) -> None:
        group = request.request.split("/")[0]
        if latencies.late_s and group in ("1", str(late)):
            await clock.sleep(latencies.late_s if group == str(late) else 0.0)
            raise PromptTooLong("a prompt that is refused, as may happen in any run")

    writing = lasting(latencies.write_s)
    engines = [
        SimulatedEngine(
            f"engine-{number}",
            clock,
            seconds=lambda request: latencies.answer_s,
            slots=config.engine.slots,
            on_generate=refuse,
            on_load=writing,
            on_start=lasting(latencies.start_s),
        )
        for number in range(config.engine.count)
    ]
    learner = SimulatedLearner(
        clock, seconds=latencies.train_s, start_s=latencies.start_s, on_checkpoint=writing, on_publish=writing
    )
    assert config.data.size is not None
    return Parts(
        clock,
        engines,
        learner,
        # Rewards that are never equal: no group is filtered.
        lambda: SimulatedEnvironment(
            clock, turns=config.rollout.max_turns, seconds=0.0, score=lambda item, seed: seed / 2**63
        ),
        items=config.data.size,
        eval_items=config.eval.prompts if config.eval.every_steps else 0,
        disk=SimulatedDisk(lambda: latencies.commit_s),
    )


def _late_prompt(config: RunConfig) -> int:
    """Return a group of the first window that follows the start: its step comes while it has yet to fail."""
    return config.scheduler.groups_per_step * (config.scheduler.max_staleness + 1) + 1


# What is to blame

SEARCHED = ("scheduler", "deadlines", "log", "eval", "checkpoint", "algorithm", "engine", "failures", "watchdog")


def changed_back(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    """Yield for each setting that is not at its default its name and value, and the run with the default instead."""
    for section in SEARCHED:
        values = getattr(config, section)
        for key, about in type(values).model_fields.items():
            value = getattr(values, key)
            if about.is_required():
                continue
            default = about.get_default(call_default_factory=True, validated_data={})
            if value == default:
                continue
            other = _with(config, {section: {key: default}})
            try:
                RunConfig.model_validate(other.model_dump())
            except ValidationError:
                continue
            instead = "" if default is None else f" (its default {default} would do)"
            yield f"{section}.{key} = {value}{instead}", other


def _sizes(config: RunConfig, policy: Policy | None) -> str:
    scheduler = config.scheduler
    name = f"'{scheduler.policy}'" if policy is None else type(policy).__name__
    return (
        f"scheduler.policy = {name}, groups_per_step = {scheduler.groups_per_step}, "
        f"max_staleness = {scheduler.max_staleness}, permits = {scheduler.permits_or_default}, "
        f"buffer_groups = {scheduler.buffer_or_default}"
    )
