"""Going on where a log ends: what survives of a run, as the events that say so.

A run goes on from its newest checkpoint that is still there. What happened after it divides in three:

- Steps trained since then are rolled back. Their groups are still in the payload store, so they are *restored*: the
  same batches are trained again, in the same order, and nothing is generated a second time.
- Finished groups that no batch had taken are *kept*.
- Groups in flight are gone with the process. They are discarded, and their prompts are the first to be drawn.

Strikes, quarantine and the data's cursor are in the log, and so they stay. So does the configuration, unless the
RunResumed event brings another one; `reconfiguration.py` says what may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..events.record import Record
from ..events.types import (
    BatchTaken,
    CheckpointCommitted,
    Event,
    FinishedTrajectory,
    GroupDiscarded,
    GroupRestored,
    PayloadRef,
    PolicyChanged,
    PromptReturned,
    RunResumed,
    RunStarted,
)
from .config import RunConfig
from .projections import Group, View
from .projections.accounting import Ledger
from .reconfiguration import changes, refused
from .watchdog import Watch


class NotResumable(Exception):
    """The run cannot go on; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A group in the batch of a step, with its prompt's place in the dataset."""

    group: Group
    index: int


@dataclass
class Past:
    """The state that a log leaves behind: the projections of the run, and what a resume needs besides."""

    started: RunStarted
    config: RunConfig
    """As of the last event."""
    view: View = field(default_factory=View)
    ledger: Ledger = field(default_factory=Ledger)
    batches: dict[int, tuple[Taken, ...]] = field(default_factory=dict)
    """What each step took, from step `kept_from` on."""
    kept_from: int = 0
    """First step whose batch is known: no checkpoint before it is kept."""
    unrestored: dict[int, tuple[int, Taken]] = field(default_factory=dict)
    """Groups of batches that a resume has rolled back and not restored, because it was killed before: step, group."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    """Committed ones of the history that counts, by version."""
    last: Record | None = None

    def __post_init__(self) -> None:
        self.watch = Watch(self.view)
        self.view.attempts.keep = self.config.failures.window

    @classmethod
    def of(cls, records: Iterable[Record]) -> Past:
        """Fold a log. Raises `NotResumable` if it does not begin with the start of a run."""
        iterator = iter(records)
        first = next(iterator, None)
        if first is None or not isinstance(first.event, RunStarted):
            raise NotResumable("the log does not begin with run_started: nothing says what to run")
        past = cls(first.event, RunConfig.model_validate(first.event.config))
        past.apply(first)
        for record in iterator:
            past.apply(record)
        return past

    def apply(self, record: Record) -> None:
        """Fold one record."""
        self.view.apply(record)
        self.ledger.apply(record)
        self.watch.apply(record)
        self.last = record
        match record.event:
            case BatchTaken(step=step, groups=groups):
                live, prompts = self.view.groups.live, self.view.prompts
                self.batches[step] = tuple(
                    Taken(live[group], prompts.alive[live[group].prompt]) for group in groups
                )
            case CheckpointCommitted(version=version, path=path):
                self.checkpoints[version] = path
                self._forget_before(sorted(self.checkpoints)[-self.config.checkpoint.keep :][0])
            case RunResumed(version=version) as event:
                if event.config is not None:
                    self.config = RunConfig.model_validate(event.config)
                    self.view.attempts.keep = self.config.failures.window
                self.checkpoints = {at: path for at, path in self.checkpoints.items() if at <= version}
                for step in [step for step in self.batches if step >= version]:
                    self.unrestored |= {taken.group.group: (step, taken) for taken in self.batches.pop(step)}
            case GroupRestored(group=group):
                self.unrestored.pop(group, None)

    def _forget_before(self, version: int) -> None:
        self.kept_from = max(self.kept_from, version)
        for step in [step for step in self.batches if step < version]:
            del self.batches[step]


def resumption(
    past: Past,
    *,
    present: Callable[[str], bool],
    readable: Callable[[PayloadRef], bool],
    facts: Mapping[str, Any],
    config: RunConfig | None = None,
    forked_from: str = "",
) -> list[Event]:
    """Return the events with which the run goes on, in order; the first is RunResumed.

    `present` tells whether a checkpoint is there, `readable` whether a payload is. With `config` the run goes on with
    other settings. `forked_from` names the run of which `past` is a copy. Raises `NotResumable`, also for a setting
    that cannot change.
    """
    view, config = past.view, config or past.config
    if view.trainer.outcome == "completed" and config.run.steps == past.config.run.steps:
        raise NotResumable(f"the run is complete: {view.trainer.version} of {config.run.steps} steps are trained")
    version, checkpoint = _newest(past, present)
    changed = changes(past.config, config)
    for line in refused(past.config, config, version):
        raise NotResumable(line)
    taken_again = [(step, taken) for step, batch in past.batches.items() if step >= version for taken in batch]
    restored = sorted([*past.unrestored.values(), *taken_again], key=lambda pair: pair[0])  # stable within a batch
    kept = [*view.groups.buffer, *view.groups.whole]
    lost = [group for group in view.groups.live.values() if group.state == "in_flight" and not group.whole]
    events: list[Event] = [
        RunResumed(
            step=version,
            version=version,
            checkpoint=checkpoint,
            kept=len(kept),
            restored=len(restored),
            redispatched=len(lost),
            rolled_back=view.trainer.version - version,
            last_mono=past.last.mono if past.last else None,
            config=config.model_dump(mode="json") if changed else None,
            engines=config.engine.engines if changed else None,
            forked_from=forked_from,
            code_version=str(facts.get("code_version", "")),
            host=str(facts.get("host", "")),
            pid=int(facts.get("pid", 0)),
        )
    ]
    events += [PolicyChanged(key=key, old=str(old), new=str(new)) for key, old, new in changed]
    events += [_restored(step, taken) for step, taken in restored]
    given_up = [(group.group, group.prompt, "interrupted") for group in lost]
    given_up += [
        (group.group, group.prompt, "unreadable")
        for group in [*(taken.group for _, taken in restored), *(view.groups.live[number] for number in kept)]
        if not all(readable(one.payload) for one in group.completed.values())
    ]
    events += [GroupDiscarded.model_validate({"group": group, "reason": why}) for group, _, why in given_up]
    prompts = {prompt for _, prompt, _ in given_up} | set(_adrift(view))
    events += [PromptReturned(prompt=prompt, reason="discarded") for prompt in sorted(prompts)]
    return events


def _newest(past: Past, present: Callable[[str], bool]) -> tuple[int, str]:
    for version, path in sorted(past.checkpoints.items(), reverse=True):
        if present(path):
            return version, path
    if past.kept_from > 0:
        missing = ", ".join(past.checkpoints.values())
        raise NotResumable(
            f"no checkpoint is left of {missing}, and the batches of steps before {past.kept_from} are not kept"
        )
    return 0, ""


def _restored(step: int, taken: Taken) -> GroupRestored:
    group = taken.group
    return GroupRestored(
        group=group.group,
        prompt=group.prompt,
        index=taken.index,
        target=group.target,
        version=group.version,
        size=group.size,
        step=step,
        trajectories=tuple(
            FinishedTrajectory(
                trajectory=one.trajectory,
                reward=one.reward,
                completion_tokens=one.completion_tokens,
                version_spans=one.version_spans,
                payload=one.payload,
            )
            for one in group.completed.values()
        ),
    )


def _adrift(view: View) -> Iterator[int]:
    """Yield prompts in nobody's hands: the log ends between the end of a group and what became of its prompt."""
    held = {group.prompt for group in view.groups.live.values()}
    for prompt in view.prompts.alive:
        if prompt not in held:
            yield prompt
