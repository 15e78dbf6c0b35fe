"""The verdict on a simulated run: which law it broke, read from its log and from the learner's weights.

On purpose it does not trust the projections that decide: it counts prompts and lags by itself, and takes the shipped
ledger's findings on top. Where a run was resumed, only the history that survives counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from ...core.config import RunConfig
from ...events.identity import group_of
from ...events.record import Record
from ...events.types import (
    BatchTaken,
    DataExhausted,
    EnvStepStarted,
    Event,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    InvariantBroken,
    LlmCallStarted,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RunFailed,
    RunFinished,
    RunResumed,
    StepCompleted,
    StepStarted,
    TrajectoryCompleted,
    TrajectoryDropped,
)
from .simulation import Simulated


@dataclass(frozen=True, slots=True)
class Broken:
    """A law that a run broke: its short name, and how."""

    law: str
    how: str


def judge(run: Simulated) -> Broken | None:
    """Return the first law that `run` broke, None if it kept them all and ended as its scenario expects."""
    return next(_broken(run), None)


def _broken(run: Simulated) -> Iterator[Broken]:
    if run.stalled:
        yield Broken("never stalls", run.stalled)
        return
    for breach in run.breaches:
        yield Broken("ledger", breach)
    for record in run.records:
        if isinstance(record.event, InvariantBroken):
            yield Broken("ledger", f"seq {record.seq} says that '{record.event.law}' was broken")
    for error in run.errors:
        yield Broken("no exception is lost", error)
    last = run.records[-1].event if run.records else None
    if not isinstance(last, RunFinished | RunFailed):
        yield Broken("says how it ended", f"the last event is {getattr(last, 'kind', 'none')}")
        return
    history = Prompts(run.records, run.config)
    yield from history.broken(last)
    yield from _other_weights(run, history)
    yield from Rows(run.records, run.config).found
    yield from _runs_on(run)
    yield from stale_tokens(run.records, run.config)
    if isinstance(last, RunFinished) and (last.outcome == "data_exhausted") != bool(last.reason):
        yield Broken("says how it ended", f"{last.outcome} for the reason '{last.reason}'")
    yield from _unexpected(run, history, last)


def _other_weights(run: Simulated, history: Prompts) -> Iterator[Broken]:
    """Yield where the learner's weights are made of other groups than the log says of the history that counts."""
    logged = [sorted(batch) for _, batch in sorted(history.batches.items())]
    learned = [sorted({int(name.partition("/")[0]) for name in rows}) for rows in run.trained]
    if run.outcome == "completed" and logged != learned:
        step = next(n for n, (a, b) in enumerate(zip_longest(logged, learned)) if a != b)
        yield Broken("weights are what the log says", f"they differ at step {step}")


class Prompts:
    """Follows every prompt through the log."""

    def __init__(self, records: list[Record], config: RunConfig) -> None:
        self.state: dict[int, str] = {}
        self.found: list[Broken] = []
        self._group: dict[int, GroupDispatched] = {}
        self._taken: tuple[int, ...] = ()
        self.batches: dict[int, tuple[int, ...]] = {}
        """Groups of each step that was trained, in the history that counts."""
        # The bound of the others is a count, which the ledger checks, or that of a token: see `stale_tokens`.
        bounded = config.scheduler.policy in ("targeted", "windowed")
        self._lag_max = config.scheduler.max_staleness if bounded else config.run.steps
        for record in records:
            self._fold(record.event)

    def broken(self, last: RunFinished | RunFailed) -> Iterator[Broken]:
        """Yield what is wrong; a run that failed may end with a batch in training."""
        yield from self.found
        trained = Counter(self._group[group].prompt for batch in self.batches.values() for group in batch)
        for prompt, count in trained.items():
            if count > 1:
                yield Broken("none trained twice", f"prompt {prompt} was trained {count} times")
        allowed = {"trained", "filtered", "quarantined", "returned", "buffered"}
        if isinstance(last, RunFailed):
            allowed.add("taken")
        lost = {prompt: state for prompt, state in self.state.items() if state not in allowed}
        if lost:
            some = ", ".join(f"{prompt} ({state})" for prompt, state in list(lost.items())[:5])
            yield Broken("no prompt is lost", f"{len(lost)} prompts have no end: {some}")

    def _fold(self, event: Event) -> None:
        match event:
            case PromptDrawn():
                before = self.state.get(event.prompt, "returned")
                if before != "returned":
                    how = f"prompt {event.prompt} is drawn while it is {before}"
                    self.found.append(Broken("none trained twice", how))
                self.state[event.prompt] = "drawn"
            case GroupDispatched():
                self._group[event.group] = event
                self.state[event.prompt] = "in flight"
            case GroupBuffered():
                self.state[self._group[event.group].prompt] = "buffered"
            case GroupFiltered():
                self.state[self._group[event.group].prompt] = "filtered"
            case GroupFailed() | GroupDiscarded() | GroupEvicted():
                self.state[self._group[event.group].prompt] = "left by its group"
            case PromptReturned():
                self.state[event.prompt] = "returned"
            case PromptQuarantined():
                self.state[event.prompt] = "quarantined"
            case BatchTaken():
                self._take(event)
            case StepCompleted():
                self.batches[event.step] = self._taken
                for group in self._taken:
                    self.state[self._group[group].prompt] = "trained"
                self._taken = ()
            case RunResumed():
                undone = [self._taken, *(self.batches.pop(s) for s in list(self.batches) if s >= event.step)]
                for group in (group for batch in undone for group in batch):
                    self.state[self._group[group].prompt] = "rolled back"
                self._taken = ()
            case GroupRestored():
                if self.state[event.prompt] != "rolled back":
                    how = f"prompt {event.prompt} is restored while it is {self.state[event.prompt]}"
                    self.found.append(Broken("none trained twice", how))
                self.state[event.prompt] = "buffered"

    def _take(self, event: BatchTaken) -> None:
        self._taken = event.groups
        for group in event.groups:
            dispatched = self._group[group]
            self.state[dispatched.prompt] = "taken"
            lag = event.step - dispatched.version
            if lag > self._lag_max:
                self.found.append(
                    Broken("lag is bounded", f"group {group} has lag {lag}, max_staleness is {self._lag_max}")
                )


def _runs_on(run: Simulated) -> Iterator[Broken]:
    """Yield where something is asked for a group that has ended: its attempts are fenced off with it."""
    ended: dict[int, int] = {}
    for record in run.records:
        event = record.event
        if isinstance(event, GroupFailed | GroupEvicted | GroupDiscarded):
            ended[event.group] = record.seq
        elif isinstance(event, LlmCallStarted | EnvStepStarted):
            owner = group_of(event.trajectory)
            if owner is not None and owner in ended:
                how = f"seq {record.seq} is for {event.trajectory}, whose group ended at seq {ended[owner]}"
                yield Broken("nothing runs for a group that has ended", how)


class Rows:
    """Counts what groups and batches are made of: trajectories, and groups."""

    def __init__(self, records: list[Record], config: RunConfig) -> None:
        self.found: list[Broken] = []
        self._config = config
        self._complete: Counter[int] = Counter()
        self._dropped: Counter[int] = Counter()
        self._target: dict[int, int] = {}
        self._buffered: dict[int, int] = {}
        self._rows = 0
        self._step = 0
        self._data_ended = False
        for record in records:
            self._fold(record.event)

    def _fold(self, event: Event) -> None:
        match event:
            case GroupDispatched():
                self._target[event.group] = event.target
            case TrajectoryCompleted() if event.group is not None:
                self._complete[event.group] += 1
            case TrajectoryDropped():
                self._dropped[event.group] += 1
            case GroupBuffered():
                self._whole(event)
                self._buffered[event.group] = event.trajectories
            case GroupRestored():
                self._buffered[event.group] = len(event.trajectories)
            case RunResumed():
                self._step = event.step
            case GroupEvicted() | GroupDiscarded():
                self._buffered.pop(event.group, None)
                if isinstance(event, GroupDiscarded) and event.reason == "surplus":
                    self._surplus(event)
            case DataExhausted():
                self._data_ended = True
            case BatchTaken():
                self._take(event)
            case StepStarted() if event.trajectories != self._rows:
                self.found.append(
                    Broken(
                        "rows", f"step {event.step} has {event.trajectories} rows, its groups {self._rows}"
                    )
                )

    def _whole(self, event: GroupBuffered) -> None:
        rollout, group = self._config.rollout, event.group
        complete, dropped = self._complete[group], self._dropped[group]
        floor = rollout.group_floor or rollout.group_size
        if complete != event.trajectories or complete + dropped != rollout.group_size or complete < floor:
            how = (
                f"group {group} is buffered with {event.trajectories}: {complete} complete, {dropped} dropped"
            )
            self.found.append(Broken("rows", f"{how}, of {rollout.group_size}, and {floor} at least"))

    def _surplus(self, event: GroupDiscarded) -> None:
        """Check that no group is called surplus that its step could still want."""
        target, need = self._target[event.group], self._config.scheduler.groups_per_step
        there = sum(1 for group in self._buffered if self._target[group] == target)
        if target >= self._step and there < need:
            how = f"group {event.group} is called surplus while step {target} has {there} of {need}"
            self.found.append(Broken("surplus is not needed", how))

    def _take(self, event: BatchTaken) -> None:
        count, need = len(event.groups), self._config.scheduler.groups_per_step
        self._step = event.step + 1
        self._rows = sum(self._buffered.pop(group, 0) for group in event.groups)
        if count > need or (count < need and not self._data_ended):
            self.found.append(Broken("whole batches", f"step {event.step} trains {count} groups of {need}"))


def stale_tokens(records: list[Record], config: RunConfig) -> Iterator[Broken]:
    """Yield every step that trained tokens older than max_staleness, or masked others than those."""
    by_token = config.scheduler.policy == "token_windowed"
    tokens: dict[int, list[tuple[int, int]]] = {}
    taken: tuple[int, ...] = ()
    for event in (record.event for record in records):
        match event:
            case TrajectoryCompleted() if event.group is not None:
                tokens.setdefault(event.group, []).extend(event.version_spans)
            case BatchTaken():
                taken = event.groups
            case StepStarted() | StepCompleted():
                ages = [(event.step - version, count) for group in taken for version, count in tokens[group]]
                old = sum(count for age, count in ages if by_token and age > config.scheduler.max_staleness)
                fresh = sum(count for _, count in ages) - old
                if (event.masked_tokens, event.trained_tokens) != (old, fresh):
                    counts = (
                        f"trained {event.trained_tokens} of {fresh}, masked {event.masked_tokens} of {old}"
                    )
                    yield Broken("no stale token is trained", f"step {event.step}: {counts}")


def _unexpected(run: Simulated, history: Prompts, last: RunFinished | RunFailed) -> Iterator[Broken]:
    """Yield what is not as the scenario expects.

    A kill may come before what the scenario is about, or take it with it: then the run ends well, and what was
    expected to be seen may not be seen.
    """
    expect, events = run.scenario.expect, [record.event for record in run.records]
    outcome, resumed = run.outcome, any(isinstance(event, RunResumed) for event in events)
    if isinstance(last, RunFailed) and last.error == "buffer_wait_expired":
        yield Broken("never stalls", f"only a deadline ended the run: {last.message}")
    if outcome not in expect.outcome and not (resumed and outcome == "completed"):
        why = f": {last.error}: {last.message}" if isinstance(last, RunFailed) else ""
        yield Broken("ends as it should", f"{outcome}{why}; expected {' or '.join(expect.outcome)}")
    elif isinstance(last, RunFailed):
        if expect.error and last.error not in expect.error:
            yield Broken(
                "ends as it should", f"failed of {last.error}: {last.message}; expected {expect.error}"
            )
        if expect.cause and expect.cause not in last.message:
            yield Broken("ends as it should", f"the cause is '{last.message}', not '{expect.cause}'")
    trained = len(history.batches)
    if expect.reason is not None and expect.reason not in getattr(last, "reason", ""):
        yield Broken(
            "ends as it should", f"the reason is '{getattr(last, 'reason', '')}', not '{expect.reason}'"
        )
    steps = expect.steps if expect.steps is not None else run.config.run.steps
    if (expect.steps is not None or outcome == "completed") and trained != steps:
        yield Broken("every step is trained", f"{trained} of {steps}")
    if expect.seconds_max is not None and run.seconds > expect.seconds_max:
        yield Broken("makes progress", f"took {run.seconds:.1f} virtual seconds of {expect.seconds_max:g}")
    quarantined = {event.prompt for event in events if isinstance(event, PromptQuarantined)}
    wanted = set(expect.quarantined or ())
    if expect.quarantined is not None and not (quarantined <= wanted if resumed else quarantined == wanted):
        yield Broken("ends as it should", f"quarantined {sorted(quarantined)}, expected {sorted(wanted)}")
    kinds = {record.event.kind for record in run.records}  # type: ignore[attr-defined]
    for kind in expect.some:
        if kind not in kinds and not resumed:
            yield Broken("ends as it should", f"no event is {kind}")
    for kind in expect.none:
        if kind in kinds:
            yield Broken("ends as it should", f"an event is {kind}")
    yield from _late_progress(run)


def _late_progress(run: Simulated) -> Iterator[Broken]:
    """Demand progress once the world is healed: something that moves the run, within a budget that it resets."""
    heal_s = run.scenario.world.heal_s
    if heal_s is None:
        return
    budget_s, healed_ns = progress_budget_s(run.config), round(heal_s * 1e9)
    since = healed_ns
    for record in run.records:
        if record.mono - max(since, healed_ns) > budget_s * 1e9:
            yield Broken(
                "makes progress",
                f"nothing moved the run from {since / 1e9:.0f} s to seq {record.seq} at {record.mono / 1e9:.0f} s, "
                f"and all was healed at {heal_s:g} s (budget {budget_s:.0f} s)",
            )
            return
        if isinstance(record.event, PROGRESS):
            since = record.mono


PROGRESS = (
    BatchTaken,
    StepCompleted,
    GroupBuffered,
    GroupFiltered,
    PromptQuarantined,
    RunResumed,
    RunFinished,
    RunFailed,
)


def progress_budget_s(config: RunConfig) -> float:
    """Return how long a healed run may go without moving.

    What hangs when the world is healed has to expire first; then an engine may need its restart, and an attempt its
    turn, each within its deadline.
    """
    limits = config.deadlines
    calls = (
        limits.llm_call_s
        + limits.env_reset_s
        + limits.env_step_s * config.rollout.max_turns
        + limits.reward_s
    )
    engines = limits.close_s + limits.start_s + limits.weight_sync_s
    rest = limits.train_step_s + limits.publish_s + limits.eval_s + limits.checkpoint_s + limits.durable_s
    return 2 * (calls + engines) + rest + config.failures.backoff_max_s
