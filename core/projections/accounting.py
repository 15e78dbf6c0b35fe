"""The laws of the log, checked event by event: nothing disappears, nothing ends twice.

This is a second bookkeeping, on purpose independent of the projections that decide: it knows only which event may
follow which. A breach keeps the seq of the first event that broke the law; the auditor publishes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ...events.record import Record
from ...events.types import (
    BatchTaken,
    Event,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    InvariantBroken,
    PhaseEntered,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from .effects import Breach, Effects
from .engine_life import BOUND, EngineLife
from .fold import on
from .group_life import ENTERED, GroupLife
from .token_age import AGED, TokenAge
from .worker_life import WORKED, WorkerLife

__all__ = ["ALIVE", "ENDED", "Breach", "Ledger"]

_GROUP_MOVES: dict[tuple[type[Event], str], str] = {
    (GroupBuffered, "in_flight"): "buffered",
    (GroupFiltered, "in_flight"): "filtered",
    (GroupFailed, "in_flight"): "failed",
    (GroupEvicted, "in_flight"): "evicted",
    (GroupEvicted, "buffered"): "evicted",
    (GroupDiscarded, "in_flight"): "discarded",
    (GroupDiscarded, "buffered"): "discarded",
    (GroupRestored, "training"): "buffered",
    (GroupRestored, "trained"): "buffered",
    (BatchTaken, "buffered"): "training",
    (StepCompleted, "training"): "trained",
}
ALIVE = ("in_flight", "buffered", "training")
ENDED = ("trained", "filtered", "failed", "evicted", "discarded")


@dataclass
class Ledger(Effects):
    """The books: every group, prompt, attempt, call, wait, version and nanosecond, and the breaches found."""

    published: set[str] = field(default_factory=set)
    """Laws whose breach the log tells of already."""
    groups: Counter[str] = field(default_factory=Counter)
    """Groups by state; the values sum to `dispatched` at every event."""
    dispatched: int = 0
    prompts: Counter[str] = field(default_factory=Counter)
    """Prompts by state: alive, trained, filtered, quarantined, returned; they sum to `drawn`."""
    drawn: int = 0
    phase_ns: int = 0
    wall_ns: int = 0
    """Both sum the run's own time; they are equal when it ends."""
    _alive: dict[int, str] = field(default_factory=dict)
    _prompts: dict[int, str] = field(default_factory=dict)
    _engines: EngineLife = field(default_factory=EngineLife)
    _workers: WorkerLife = field(default_factory=WorkerLife)
    _members: GroupLife = field(default_factory=GroupLife)
    _token_age: TokenAge = field(default_factory=TokenAge)
    _ended: bool = False
    _next_seq: int = -1
    _next_step: int = 0
    _phase_since: int = 0
    _started: int = 0
    _limits: dict[str, int] = field(default_factory=dict)
    _per_step: int = 0

    def apply(self, record: Record) -> None:
        """Check that `record` may follow what came before, and enter it in the books."""
        seq, event = record.seq, record.event
        if self._next_seq not in (-1, seq):
            self._broken("seq", record, f"seq {self._next_seq}", f"seq {seq}")
        self._next_seq = seq + 1
        if record.cause is not None and record.cause >= seq:
            self._broken("cause", record, "a cause before its effect", f"cause {record.cause}")
        if self._ended and not isinstance(event, RunResumed):
            self._broken("end", record, "nothing after the run's last event", type(event).__name__)
        kind = type(event)
        if kind in BOUND:
            life = self._engines.breach(event)
            if life is not None:
                self._broken("engines", record, *life)
        if kind in WORKED:
            work = self._workers.breach(event)
            if work is not None:
                self._broken("environment workers", record, *work)
        if kind in ENTERED:
            members = self._members.breach(event)
            if members is not None:
                law, expected, found = members
                self._broken(law, record, expected, found)
        if kind in AGED:
            age = self._token_age.breach(event)
            if age is not None:
                self._broken("token age", record, *age)
        handler = self.handlers.get(kind)
        if handler is not None:
            handler(self, record, event)

    # The run's time

    @on(RunStarted)
    def _run_started(self, record: Record, event: RunStarted) -> None:
        self._started = self._phase_since = record.mono
        self._configured(event.config)

    def _configured(self, config: dict[str, Any]) -> None:
        scheduler: dict[str, Any] = config.get("scheduler", {})
        staleness, per_step = scheduler.get("max_staleness"), scheduler.get("groups_per_step")
        if staleness is None or per_step is None:
            return
        window = (per_step + scheduler.get("oversample_groups", 0)) * (staleness + 1)
        self._limits = {
            "in_flight": scheduler.get("permits") or window,
            "buffered": scheduler.get("buffer_groups") or window,
        }
        # The policy of count bounds the lag of all groups together, and that of tokens the age of each token.
        bounded = {"capacity": "capacity", "token_windowed": "token"}.get(
            str(scheduler.get("policy")), "lag"
        )
        self._limits[bounded] = staleness
        self._per_step = per_step

    @on(RunResumed)
    def _run_resumed(self, record: Record, event: RunResumed) -> None:
        if not self._ended and event.last_mono is not None:  # killed: what had begun ended with its process
            self.phase_ns += event.last_mono - self._phase_since
            self.wall_ns += event.last_mono - self._started
        self._started = self._phase_since = record.mono
        self._open.clear()
        self._failed_calls.clear()
        self._trained = self._published = None
        self._next_step, self._ended = event.step, False
        if event.config is not None:
            self._configured(event.config)
        if "buffered" in self._limits:  # what is restored comes on top of what was buffered and may still be
            at_hand = self.groups["in_flight"] + self.groups["buffered"] + self.groups["training"]
            self._limits["buffered"] = max(self._limits["buffered"], at_hand + event.restored)

    @on(InvariantBroken)
    def _invariant_broken(self, record: Record, event: InvariantBroken) -> None:
        self.published.add(event.law)

    @on(PhaseEntered)
    def _phase_entered(self, record: Record, event: PhaseEntered) -> None:
        self.phase_ns += record.mono - self._phase_since
        self._phase_since = record.mono

    @on(RunFinished, RunFailed)
    def _run_ended(self, record: Record, event: RunFinished | RunFailed) -> None:
        self._ended = True
        self.phase_ns += record.mono - self._phase_since
        self.wall_ns += record.mono - self._started
        if self.phase_ns != self.wall_ns:
            self._broken("phase time", record, f"{self.wall_ns} ns", f"{self.phase_ns} ns in phases")
        for kind, keys in self._open.items():
            if keys:
                self._broken(
                    f"open {kind}", record, "none at the end", f"{len(keys)}: {sorted(map(str, keys))[:3]}"
                )
        if isinstance(event, RunFinished) and self.groups["in_flight"] + self.groups["training"]:
            self._broken("groups", record, "none in flight at the end", str(dict(self.groups)))
        if self.prompts["alive"] != len(self._alive):
            self._broken(
                "prompts",
                record,
                f"{len(self._alive)} alive, one for each group",
                f"{self.prompts['alive']} alive",
            )

    # Groups

    @on(GroupDispatched)
    def _group_dispatched(self, record: Record, event: GroupDispatched) -> None:
        if event.group in self._alive:
            self._broken(
                "groups", record, "a new group", f"group {event.group} is {self._alive[event.group]}"
            )
            return
        self.dispatched += 1
        self._alive[event.group], self._dispatch[event.group] = "in_flight", event
        self.groups["in_flight"] += 1
        self._bounded("in_flight", record)
        self._counted(record, event)
        if self._prompts.get(event.prompt) != "alive":
            self._broken("prompts", record, "a group of a drawn prompt", f"group {event.group} has none")

    @on(GroupBuffered, GroupFiltered, GroupFailed, GroupEvicted, GroupDiscarded)
    def _group_moved(self, record: Record, event: Any) -> None:
        dispatch = self._dispatch.get(event.group)
        if isinstance(event, GroupDiscarded) and event.reason == "surplus" and dispatch is not None:
            self._to_spare(record, dispatch)
        self._move(record, event.group)
        self._bounded("buffered", record)
        if type(event) is GroupFiltered and event.group in self._dispatch:
            self._prompt_moves(record, self._dispatch.pop(event.group).prompt, "alive", "filtered")

    @on(GroupRestored)
    def _group_restored(self, record: Record, event: GroupRestored) -> None:
        if event.step < self._next_step:
            self._broken("steps", record, f"groups of step {self._next_step} and later", f"step {event.step}")
        if event.group not in self._alive:  # trained, in a step that does not count any more
            self._alive[event.group] = "trained"
            self._prompt_moves(record, event.prompt, "trained", "alive")
        self._move(record, event.group)
        self._dispatch[event.group] = GroupDispatched(
            group=event.group,
            prompt=event.prompt,
            target=event.target,
            version=event.version,
            size=event.size,
        )

    def _to_spare(self, record: Record, dispatch: GroupDispatched) -> None:
        """Check that the step of a surplus group has been taken, or has enough buffered without it."""
        others = sum(
            1
            for group, state in self._alive.items()
            if state == "buffered"
            and group != dispatch.group
            and self._dispatch[group].target == dispatch.target
        )
        if dispatch.target >= self._next_step and others < self._per_step:
            need = f"{self._per_step} buffered for step {dispatch.target} without it"
            self._broken("surplus", record, need, f"group {dispatch.group} and {others} others")

    @on(BatchTaken)
    def _batch_taken(self, record: Record, event: BatchTaken) -> None:
        if self._per_step and len(event.groups) > self._per_step:
            self._broken("steps", record, f"at most {self._per_step} groups", f"{len(event.groups)}")
        if event.step != self._next_step:
            self._broken("steps", record, f"step {self._next_step}", f"step {event.step}")
        self._next_step = event.step + 1
        for group in event.groups:
            self._move(record, group)
            dispatch = self._dispatch.get(group)
            if dispatch is not None and event.step - dispatch.version > self._limits.get("lag", event.step):
                self._broken(
                    "lag",
                    record,
                    f"at most {self._limits['lag']} versions",
                    f"group {group} of version {dispatch.version} in step {event.step}",
                )

    @on(StepStarted)
    def _step_started(self, record: Record, event: StepStarted) -> None:
        self._begin("step", record, event.step)
        if event.groups != self.groups["training"]:
            taken = f"{self.groups['training']} groups were taken"
            self._broken("groups", record, taken, f"step {event.step} trains {event.groups}")

    @on(StepFailed)
    def _step_failed(self, record: Record, event: StepFailed) -> None:
        self._close("step", record, event.step)

    @on(StepCompleted)
    def _step_completed(self, record: Record, event: StepCompleted) -> None:
        self._close("step", record, event.step)
        self._trained = event.version
        if event.version != event.step + 1:
            self._broken("versions", record, f"version {event.step + 1}", f"version {event.version}")
        for group in [group for group, state in self._alive.items() if state == "training"]:
            self._move(record, group)
            self._prompt_moves(record, self._dispatch.pop(group).prompt, "alive", "trained")

    def _move(self, record: Record, group: int) -> None:
        before = self._alive.get(group, "not alive")
        after = _GROUP_MOVES.get((type(record.event), before))
        if after is None:
            self._broken("groups", record, f"no {record.event.kind} of it", f"group {group} is {before}")  # type: ignore[attr-defined]
            return
        self.groups[before] -= 1
        self.groups[after] += 1
        if after in ALIVE:
            self._alive[group] = after
        else:
            del self._alive[group]
            if after in ("failed", "evicted", "discarded"):
                self._dispatch.pop(group, None)
        if sum(self.groups.values()) != self.dispatched:
            self._broken("groups", record, f"{self.dispatched} dispatched", str(dict(self.groups)))

    def _bounded(self, state: str, record: Record) -> None:
        limit = self._limits.get(state)
        if limit is not None and self.groups[state] > limit:
            self._broken(f"{state} limit", record, f"at most {limit} groups", str(self.groups[state]))

    def _counted(self, record: Record, event: GroupDispatched) -> None:
        """Check the count of the capacity policy: accepted + running against (staleness + step) x groups a step."""
        if "capacity" in self._limits:
            count = sum(self.groups[state] for state in (*ALIVE, "trained"))
            limit = (self._limits["capacity"] + event.version + 1) * self._per_step
            if count > limit:
                self._broken(
                    "capacity", record, f"at most {limit} groups by version {event.version}", str(count)
                )

    # Prompts

    @on(PromptDrawn)
    def _prompt_drawn(self, record: Record, event: PromptDrawn) -> None:
        before = self._prompts.get(event.prompt)
        if before is None:
            self.drawn += 1
            self._prompts[event.prompt] = "alive"
            self.prompts["alive"] += 1
        else:
            self._prompt_moves(record, event.prompt, "returned", "alive")

    @on(PromptReturned)
    def _prompt_returned(self, record: Record, event: PromptReturned) -> None:
        self._prompt_moves(record, event.prompt, "alive", "returned")

    @on(PromptQuarantined)
    def _prompt_quarantined(self, record: Record, event: PromptQuarantined) -> None:
        self._prompt_moves(record, event.prompt, "alive", "quarantined")

    def _prompt_moves(self, record: Record, prompt: int, before: str, after: str) -> None:
        found = self._prompts.get(prompt)
        if found != before:
            self._broken("prompts", record, f"prompt {prompt} {before}", f"{found or 'never drawn'}")
            return
        self._prompts[prompt] = after
        self.prompts[before] -= 1
        self.prompts[after] += 1
