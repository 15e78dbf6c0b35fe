"""The calls of a recorded run: each by what it is about, how it ended, and at which instant.

Answers that came at once share an instant, and keep their order when they come again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

from ...events.record import Record
from ...events.types import Event

Key = tuple[Hashable, ...]
"""The kind of a call first, and then what it is about."""

TOGETHER_NS = 250_000_000
"""Answers with no decision between them count as come at once within this time: nobody looked meanwhile."""
STEP_NS = 10
"""Between answers of different instants, so that everybody has reacted to one before the next comes."""


@dataclass(slots=True)
class Instant:
    """Answers that came at once: in the order of their seqs, at `at_s` from the beginning."""

    first_seq: int
    first_ns: int
    last_ns: int
    at_s: float = 0.0


@dataclass(slots=True, eq=False)
class Answer:
    """How one call ended. `event` says what came of it; without an `instant` it never ended."""

    key: Key
    seq: int
    seconds: float
    """From its call to its end."""
    outcome: str = "hangs"
    """completed, failed, lost, expired, cancelled; or hangs: the log does not see its end."""
    event: Event | None = None
    instant: Instant | None = None
    at_once: bool = False
    reward: float = 0.0
    failure: Event | None = None
    """Of what type it failed: what followed."""


@dataclass
class RecordedCalls:
    """The calls of one life of a run, and their ends."""

    answers: dict[Key, Answer] = field(default_factory=dict)
    by_kind: defaultdict[Hashable, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    """The completed ones, of all lives."""
    _open: dict[Key, Record] = field(default_factory=dict)
    _instant: Instant | None = None
    _instants: list[Instant] = field(default_factory=list)

    def clear(self) -> None:
        """Forget the life before."""
        self.answers.clear()
        self._open.clear()
        self._instants.clear()
        self._instant = None

    def begin(self, record: Record, key: Key) -> None:
        """Note that a call begins; until it ends, it hangs."""
        self._open[key] = record
        self.answers[key] = Answer(key, record.seq, 0.0)

    def began(self, key: Key) -> Record | None:
        """Return the begin of a call that has not ended."""
        return self._open.get(key)

    def end(
        self, record: Record, key: Key, outcome: str, *, since: Record | None = None, at_once: bool = False
    ) -> Answer:
        """Note how a call ended; `since` is its begin where `begin` was not told of it."""
        opened = self._open.pop(key, record)
        began = opened if since is None else since
        answer = Answer(key, record.seq, (record.mono - began.mono) / 1e9, outcome, record.event, at_once=at_once)
        if not at_once:
            answer.instant = self._instant_of(record, began)
        self.answers[key] = answer
        if outcome == "completed":
            self.by_kind[key[0]].append(answer)
        return answer

    def part(self) -> None:
        """Have what comes from now on be of another instant than what came before."""
        self._instant = None

    def _instant_of(self, record: Record, began: Record) -> Instant:
        now = self._instant
        if now is None or began.seq > now.first_seq or record.mono - now.first_ns > TOGETHER_NS:
            now = self._instant = Instant(record.seq, record.mono, record.mono)
            self._instants.append(now)
        now.last_ns = record.mono
        return now

    def settle(self, first: Record | None) -> None:
        """Give every instant its time since `first`, the begin of the life, each later than the one before."""
        assert first is not None or not self._instants
        before_ns = 0
        for instant in self._instants:
            assert first is not None
            before_ns = max(instant.last_ns - first.mono, before_ns + STEP_NS)
            instant.at_s = before_ns / 1e9
