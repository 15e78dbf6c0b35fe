"""The life of every prompt: drawn, alive in a group, and then trained, filtered, quarantined or returned."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...events.record import Record
from ...events.types import (
    BatchTaken,
    DataExhausted,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    PromptDrawn,
    PromptQuarantined,
    PromptReturned,
    RunResumed,
    RunStarted,
    StepCompleted,
)
from .fold import Folded, on


@dataclass
class Prompts(Folded):
    """Where every drawn prompt is. A prompt's number is its place in the order of all epochs."""

    per_epoch: int = 0
    next_prompt: int = 0
    """First number not drawn yet. Numbers of quarantined items are skipped, so it may exceed `drawn`."""
    drawn: int = 0
    """Different prompts drawn so far."""
    alive: dict[int, int] = field(default_factory=dict)
    """Prompts in the hands of a group: number -> dataset index."""
    returned: list[int] = field(default_factory=list)
    """To be drawn before any fresh one."""
    set_aside: list[int] = field(default_factory=list)
    """Failed once, or evicted more than once, to be drawn when no fresh one is left."""
    index_of_returned: dict[int, int] = field(default_factory=dict)
    prompt_of: dict[int, int] = field(default_factory=dict)
    """Live group -> prompt."""
    strikes: Counter[int] = field(default_factory=Counter)
    """Failed groups by dataset index that were the prompt's own fault."""
    evictions: Counter[int] = field(default_factory=Counter)
    """Evicted groups by prompt."""
    quarantined: dict[int, str] = field(default_factory=dict)
    """Dataset index -> why it is never drawn again."""
    ended: Counter[str] = field(default_factory=Counter)
    """Prompts by how their life ended: trained, filtered, quarantined."""
    exhausted: bool = False
    _training: tuple[int, ...] = ()

    def waiting(self) -> int:
        """Return how many prompts went back and may be drawn again."""
        return len(self.returned) + len(self.set_aside)

    @on(RunStarted)
    def _started(self, record: Record, event: RunStarted) -> None:
        self.per_epoch = event.prompts

    @on(RunResumed)
    def _resumed(self, record: Record, event: RunResumed) -> None:
        self._training = ()

    @on(GroupRestored)
    def _restored(self, record: Record, event: GroupRestored) -> None:
        if event.prompt not in self.alive:
            self.alive[event.prompt] = event.index
            self.ended["trained"] -= 1
        self.prompt_of[event.group] = event.prompt

    @on(PromptDrawn)
    def _drawn(self, record: Record, event: PromptDrawn) -> None:
        if event.prompt in self.index_of_returned:
            del self.index_of_returned[event.prompt]
            (self.returned if event.prompt in self.returned else self.set_aside).remove(event.prompt)
        else:
            self.drawn += 1
            self.next_prompt = event.prompt + 1
        self.alive[event.prompt] = event.index

    @on(GroupDispatched)
    def _dispatched(self, record: Record, event: GroupDispatched) -> None:
        self.prompt_of[event.group] = event.prompt

    @on(GroupFailed)
    def _failed(self, record: Record, event: GroupFailed) -> None:
        if event.blame in ("prompt", "environment"):
            self.strikes[self.alive[self.prompt_of[event.group]]] += 1
        del self.prompt_of[event.group]

    @on(GroupEvicted)
    def _evicted(self, record: Record, event: GroupEvicted) -> None:
        self.evictions[self.prompt_of.pop(event.group)] += 1

    @on(GroupDiscarded)
    def _discarded(self, record: Record, event: GroupDiscarded) -> None:
        self.prompt_of.pop(event.group, None)  # one that was taken for a batch has left it before

    @on(PromptReturned)
    def _returned(self, record: Record, event: PromptReturned) -> None:
        self.index_of_returned[event.prompt] = self.alive.pop(event.prompt)
        first = event.reason == "discarded" or (
            event.reason == "evicted"
            and self.evictions[event.prompt] < 2  # else the slow ones take every slot
        )
        (self.returned if first else self.set_aside).append(event.prompt)
        self.exhausted = False

    @on(PromptQuarantined)
    def _quarantined(self, record: Record, event: PromptQuarantined) -> None:
        self.quarantined[event.index] = event.message
        self._end(event.prompt, "quarantined")

    @on(GroupFiltered)
    def _filtered(self, record: Record, event: GroupFiltered) -> None:
        self._end(self.prompt_of.pop(event.group), "filtered")

    @on(BatchTaken)
    def _taken(self, record: Record, event: BatchTaken) -> None:
        self._training = tuple(self.prompt_of.pop(group) for group in event.groups)

    @on(StepCompleted)
    def _trained(self, record: Record, event: StepCompleted) -> None:
        for prompt in self._training:
            self._end(prompt, "trained")
        self._training = ()

    @on(DataExhausted)
    def _exhausted(self, record: Record, event: DataExhausted) -> None:
        self.exhausted = True

    def _end(self, prompt: int, how: str) -> None:
        del self.alive[prompt]
        self.ended[how] += 1
