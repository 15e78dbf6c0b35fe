"""What every part of a check works with: the folded state, the log ahead, and how two decisions are compared."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...events.record import Record
from ...events.types import Event, RunResumed, RunStarted, Unblocked
from ..config import RunConfig
from ..failures import RunFailure, one_line
from ..policies import Policy, policy_for
from ..projections import View
from ..resume import Past
from .prompts import LoggedPrompts
from .state import state_of
from .verdict import Agreement, Decided, Divergence, NotReplayable


class Diverged(Exception):
    """Ends a check at its first divergence; raised and caught inside this package only."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(f"seq {divergence.seq}")
        self.divergence = divergence


@dataclass(frozen=True, slots=True)
class Raised:
    """A decision that ends the run: what `step` or `decide` raised."""

    error: str
    message: str

    @classmethod
    def of(cls, failure: RunFailure) -> Raised:
        """Return what the log would say of `failure`."""
        return cls(failure.error, one_line(failure))

    def decided(self) -> Decided:
        """Return it as the decision that it is."""
        return Decided("run_failed", {"error": self.error, "message": self.message})


class Ahead:
    """Records, with a look at those that come."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._rest: Iterator[Record] = iter(records)
        self._held: deque[Record] = deque()

    def peek(self, place: int = 0) -> Record | None:
        """Return the record `place` behind the next one, None where the log has ended."""
        while len(self._held) <= place:
            record = next(self._rest, None)
            if record is None:
                return None
            self._held.append(record)
        return self._held[place]

    def take(self) -> Record | None:
        """Return the next record and go past it; None at the end."""
        return self._held.popleft() if self._held else next(self._rest, None)

    def batch(self, place: int, mine: Callable[[Record], bool]) -> list[Record]:
        """Return the records from `place` on as far as they are `mine`."""
        found: list[Record] = []
        record = self.peek(place)
        while record is not None and mine(record):
            found.append(record)
            record = self.peek(place + len(found))
        return found

    def after_wait(self, actor: str) -> int:
        """Return the place of what `actor` published next: behind the end of its wait, if that comes next."""
        record = self.peek()
        return int(record is not None and record.actor == actor and type(record.event) is Unblocked)


class Scene:
    """The state as far as the log is folded, and what was compared up to there."""

    def __init__(
        self,
        records: Iterable[Record],
        config: RunConfig | None,
        policy: Policy | None,
        ignore_kinds: Iterable[str],
    ) -> None:
        self.ahead = Ahead(records)
        first = self.ahead.take()
        if first is None or not isinstance(first.event, RunStarted):
            raise NotReplayable("the log does not begin with run_started: nothing says what was run")
        started = first.event
        self.config = config or RunConfig.model_validate(started.config)
        if config is not None:  # some projections read settings there
            started = started.model_copy(update={"config": config.model_dump(mode="json")})
        self._own_config, self._own_policy = config is None, policy is None
        self.policy = policy or policy_for(self.config)
        self.past = Past(started, self.config)
        self.view: View = self.past.view
        self.prompts = LoggedPrompts(self.view.prompts)
        self.engines = started.engines if started.engines is not None else -1
        """Engines that are to come up; -1, which no count of lost ones reaches, where an old log does not say."""
        self.ignore = frozenset(ignore_kinds)
        self.decisions: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        self.waits = 0
        self._start_ts = first.ts
        self.past.apply(first._replace(event=started))

    def agreement(self) -> Agreement:
        """Return what agreed so far."""
        return Agreement(self.view.last_seq + 1, self.decisions, self.waits, self.ignored)

    def cut_off(self, place: int) -> bool:
        """Return whether the log was cut off at `place`: it ends there, or goes on in a new process."""
        record = self.ahead.peek(place)
        return record is None or isinstance(record.event, RunResumed)

    def changed_by(self, event: RunResumed) -> RunConfig | None:
        """Return the settings that a resume changed to; None: none of them, or others take the place of the run's."""
        if event.config is None or not self._own_config:
            return None
        return RunConfig.model_validate(event.config)

    def go_on_with(self, config: RunConfig | None, event: RunResumed) -> None:
        """Decide by `config`, if there is one, from `event` on."""
        if config is None:
            return
        self.config = config
        self.engines = self.engines if event.engines is None else event.engines
        if self._own_policy:
            self.policy = policy_for(config)

    def batch(self, records: Sequence[Record], produced: Sequence[Event] | Raised, *, cut_off: bool) -> None:
        """Compare decisions that were made at once; `cut_off` allows the last ones to be missing."""
        if isinstance(produced, Raised):
            self._lists(records, [produced.decided()], cut_off=False)
        elif self.ignore or len(produced) != len(records):
            self._lists(records, [Decided.of(event) for event in produced], cut_off=cut_off)
        elif any(event != record.event for event, record in zip(produced, records, strict=True)):
            self._lists(records, [Decided.of(event) for event in produced], cut_off=False)
        else:
            self.decisions.update(record.event.kind for record in records)  # type: ignore[attr-defined]

    def _lists(self, records: Sequence[Record], produced: Sequence[Decided], *, cut_off: bool) -> None:
        left = [(record, Decided.of(record.event)) for record in records]
        compared = [(record, decided) for record, decided in left if decided.kind not in self.ignore]
        wanted = [decided for decided in produced if decided.kind not in self.ignore]
        recorded = [decided for _, decided in compared]
        if recorded != (wanted[: len(recorded)] if cut_off else wanted):
            same = next(
                (n for n, (one, other) in enumerate(zip(recorded, wanted, strict=False)) if one != other),
                min(len(recorded), len(wanted)),
            )
            at = compared[min(same, len(compared) - 1)][0] if compared else records[0]
            raise self.diverged(at, recorded, wanted)
        self.decisions.update(decided.kind for decided in recorded)
        self.ignored.update(decided.kind for _, decided in left if decided.kind in self.ignore)

    def one(self, record: Record, recorded: Decided, produced: Decided | None) -> None:
        """Compare a decision that excludes every other of its actor; None: nothing was due."""
        if recorded.kind in self.ignore or (produced is not None and produced.kind in self.ignore):
            self.ignored[recorded.kind] += 1
        elif recorded != produced:
            raise self.diverged(record, [recorded], [] if produced is None else [produced])
        else:
            self.decisions[recorded.kind] += 1

    def wait(self, record: Record, edge: str, due: Sequence[Decided], expected: str | None = None) -> None:
        """Compare the decision to wait for `edge` with what was due then, and with the edge to be `expected`."""
        due = [decided for decided in due if decided.kind not in self.ignore]
        if due:
            raise self.diverged(record, [Decided("blocked", {"edge": edge})], due)
        if expected is not None and expected != edge and "blocked" not in self.ignore:
            produced = Decided("blocked", {"edge": expected})
            raise self.diverged(record, [Decided("blocked", {"edge": edge})], [produced])
        self.waits += 1

    def diverged(self, record: Record, recorded: Sequence[Decided], produced: Sequence[Decided]) -> Diverged:
        """Return the divergence at `record`, on the state that is folded now."""
        return Diverged(
            Divergence(
                seq=record.seq,
                ts=record.ts,
                start_ts=self._start_ts,
                actor=record.actor,
                recorded=tuple(recorded),
                produced=tuple(produced),
                state_seq=self.view.last_seq,
                state=state_of(self.view, self.config),
                before=self.agreement(),
            )
        )
