"""The groups in flight and in the buffer, and the trees of spans that wait for what becomes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ....events.identity import trace_id
from ....events.record import Record
from ....events.types import (
    EnvStepFinished,
    EnvStepStarted,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    LlmCallFinished,
    LlmCallStarted,
    RetryScheduled,
    TrajectoryCompleted,
    TrajectoryDropped,
    TrajectoryFailed,
    TrajectoryStarted,
)
from . import names
from .attempt import Attempt, Fate, Stay, buffer_span, root_span_id
from .origin import Origin, truncated
from .sampling import Sampling
from .spans import Attributes, Link, Span

HELD_MAX = 200_000
"""Spans that wait for the fate of their groups, at most; some 200 MB."""
REMEMBERED_MAX = 65_536
"""Trained trajectories that are remembered for a resume which trains them again, where their ids or whether they were
kept does not follow from their names."""


@dataclass(slots=True, eq=False)
class Group:
    """A group, or the trajectories of an evaluation (`number` is None), whose fate is not known."""

    origin: Origin
    number: int | None
    version: int
    dispatched_ns: int
    drawn: bool
    """Whether it is traced whatever becomes of it."""
    kept: bool = False
    """Whether something made it worth a trace."""
    running: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    """Those that have ended, and those that run."""
    retries: dict[str, tuple[int, float]] = field(default_factory=dict)
    """When a further attempt at a trajectory was submitted, and with which delay."""
    stay: Stay | None = None
    restored: tuple[Attempt, ...] | None = None
    """Of a group that comes back from a batch: whom its time in the buffer belongs to."""
    fate: Fate | None = None
    let_go: bool = False
    last: Attempt | None = None
    """The trajectory that was completed last."""

    def completed(self) -> Iterator[Attempt]:
        """Yield the trajectories that a batch takes."""
        if self.restored is not None:
            yield from self.restored
        for one in self.attempts:
            if isinstance(one.ended, TrajectoryCompleted):
                yield one


class Groups:
    """Folds everything that happens to groups and trajectories; finished spans go to `out`."""

    def __init__(self, sampling: Sampling, out: list[Span], held_max: int = HELD_MAX) -> None:
        self.sampling = sampling
        self.out = out
        self.held_max = held_max
        self.held = 0
        """Spans that wait."""
        self.let_go = 0
        """Spans that waited in vain: there were too many."""
        self.running: dict[str, Attempt] = {}
        self.live: dict[int | str, Group] = {}
        self.last_buffered: Group | None = None
        self._remembered: dict[str, tuple[int, bool]] = {}
        self._origins: list[tuple[int, Origin]] = []  # from which group on, for a log that was forked
        self._next_group = 0

    def enter(self, origin: Origin) -> None:
        """Name what is dispatched from here on after `origin`."""
        if not self._origins or self._origins[-1][1].run != origin.run:
            self._origins.append((self._next_group, origin))
        self._origin = origin

    # Groups

    def dispatched(self, record: Record, now_ns: int, event: GroupDispatched) -> None:
        """Begin a group."""
        self._next_group = max(self._next_group, event.group + 1)
        drawn = self.sampling.drawn(self._origin.run, event.group)
        self.live[event.group] = Group(self._origin, event.group, event.version, now_ns, drawn)

    def evaluates(self, name: str, version: int, now_ns: int) -> None:
        """Begin the trajectories of an evaluation."""
        self.live[name] = Group(self._origin, None, version, now_ns, drawn=True)

    def evaluated(self, name: str, now_ns: int) -> list[Link]:
        """End them, and return links to all of them."""
        group = self.live.get(name)
        if group is None:
            return []
        links = [one.link(((names.TRAJECTORY, one.trajectory),)) for one in group.completed()]
        self._settle(name, group, Fate("evaluated", now_ns))
        return links

    def buffered(self, record: Record, now_ns: int, event: GroupBuffered) -> None:
        """Begin a group's time in the buffer."""
        group = self.live.get(event.group)
        if group is not None:
            group.stay = Stay(record.seq, now_ns)
            self.last_buffered = group

    def restored(self, record: Record, now_ns: int, event: GroupRestored) -> None:
        """Begin the time in the buffer of a group whose step was rolled back.

        Its trajectories' trees are finished, so this time stands beside them, in the same traces.
        """
        origin = next(one for first, one in reversed(self._origins) if first <= event.group)
        drawn = self.sampling.drawn(origin.run, event.group)
        group = Group(origin, event.group, event.version, now_ns, drawn, stay=Stay(record.seq, now_ns))
        back = []
        for one in event.trajectories:
            attempt, _ = self._remembered.get(one.trajectory, (0, drawn))
            made = Attempt(origin, one.trajectory, attempt, event.group, event.version, now_ns, now_ns, now_ns)
            made.trace_id = trace_id(origin.run, one.trajectory)
            made.root_id = root_span_id(origin.run, one.trajectory, attempt)
            back.append(made)
        group.restored = tuple(back)
        self.live[event.group] = group

    def taken(self, step: int, numbers: Iterable[int], now_ns: int) -> list[Link]:
        """End the groups of a batch, keep the slowest of them, and return a link to each trajectory."""
        groups = [(number, self.live[number]) for number in numbers if number in self.live]
        batch = [one for _, group in groups for one in group.completed()]
        slowest = {one for one in self.sampling.slowest_of(batch) if one.ended is not None}
        links = []
        for number, group in groups:
            kept = self._settle(number, group, Fate("trained", now_ns, step), slowest)
            staleness = ((names.VERSION, group.version), (names.STALENESS, step - group.version))
            for one in group.completed():
                attributes: Attributes = ((names.TRAJECTORY, one.trajectory), *staleness)
                if one.trajectory not in kept:
                    attributes += ((names.SAMPLED, False),)
                links.append(one.link(attributes))
        return links

    def filtered(self, record: Record, now_ns: int, event: GroupFiltered) -> None:
        """End a group that teaches nothing."""
        self._end(event.group, Fate("filtered", now_ns))

    def failed(self, record: Record, now_ns: int, event: GroupFailed) -> None:
        """End a group that failed; it is kept."""
        self._end(event.group, Fate("failed", now_ns), keep=True)

    def evicted(self, record: Record, now_ns: int, event: GroupEvicted) -> None:
        """End a group that became too stale; it is kept."""
        self._end(event.group, Fate("evicted", now_ns), keep=True)

    def discarded(self, record: Record, now_ns: int, event: GroupDiscarded) -> None:
        """End a group that was given up."""
        self._end(event.group, Fate(f"discarded: {event.reason}", now_ns))

    def _end(self, number: int, fate: Fate, *, keep: bool = False) -> None:
        group = self.live.get(number)
        if group is not None:
            group.kept |= keep
            self._settle(number, group, fate)

    def _settle(
        self, key: int | str, group: Group, fate: Fate, slowest: Iterable[Attempt] = ()
    ) -> frozenset[str]:
        """Send what is kept of a group; return the trajectories. Attempts that still run are waited for."""
        group.fate = fate
        if group.running:
            return frozenset()
        del self.live[key]
        self.held -= sum(1 + len(one.children) for one in group.attempts)
        if group.let_go:
            kept = frozenset[str]()
        elif group.drawn or group.kept:
            kept = frozenset(one.trajectory for one in group.attempts)
        else:
            chosen = {one.trajectory for one in slowest}
            kept = frozenset(one.trajectory for one in group.attempts if one.failed or one.trajectory in chosen)
        for one in group.attempts:
            if one.trajectory in kept:
                self.out += one.tree(fate, group.stay)
        for one in group.completed():
            if fate.step is not None and one.ended is not None:
                self._remember(one, group.drawn, one.trajectory in kept)
        return kept | self._stayed(group, fate)

    def _stayed(self, group: Group, fate: Fate) -> frozenset[str]:
        """Send the second time in the buffer of a restored group; return which of its trajectories are kept."""
        if group.restored is None or group.stay is None or group.let_go:
            return frozenset()
        kept = {
            one.trajectory
            for one in group.restored
            if self._remembered.get(one.trajectory, (0, group.drawn))[1]
        }
        for one in group.restored:
            if one.trajectory in kept:
                alone = buffer_span(one, b"", group.stay, fate)
                self.out.append(alone._replace(links=(one.link(()),)))
        return frozenset(kept)

    def _remember(self, one: Attempt, drawn: bool, kept: bool) -> None:
        if one.attempt or kept != drawn:
            self._remembered[one.trajectory] = one.attempt, kept
            if len(self._remembered) > REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]

    # Trajectories

    def started(self, record: Record, now_ns: int, event: TrajectoryStarted) -> None:
        """Begin an attempt."""
        group = self.live.get(_key(event.trajectory, event.group))
        if group is None:
            return
        submitted_ns, delay_s = group.retries.pop(event.trajectory, (group.dispatched_ns, 0.0))
        one = Attempt(
            group.origin,
            event.trajectory,
            event.attempt,
            event.group,
            group.version,
            submitted_ns,
            group.dispatched_ns,
            now_ns,
        )
        one.begin(delay_s)
        group.running += 1
        self.running[event.trajectory] = one
        if not group.let_go:
            group.attempts.append(one)
            self.held += 2
            if self.held > self.held_max:
                self._let_go_oldest()

    def called(self, record: Record, now_ns: int, event: LlmCallStarted | EnvStepStarted) -> None:
        """Open a call."""
        one = self.running.get(event.trajectory)
        if one is not None:
            one.call_started(record.seq, now_ns, event)

    def answered(self, record: Record, now_ns: int, event: LlmCallFinished) -> None:
        """Close a call to an engine."""
        one = self.running.get(event.trajectory)
        if one is not None:
            before = len(one.children)
            one.chat_finished(now_ns, event)
            self._holds(one, before)

    def stepped(self, record: Record, now_ns: int, event: EnvStepFinished) -> None:
        """Close a call to the environment."""
        one = self.running.get(event.trajectory)
        if one is not None:
            before = len(one.children)
            one.env_finished(now_ns, event)
            self._holds(one, before)

    def ended(self, record: Record, now_ns: int, event: TrajectoryCompleted | TrajectoryFailed) -> None:
        """End an attempt."""
        one = self.running.pop(event.trajectory, None)
        if one is None:
            return
        before = len(one.children)
        one.end(now_ns, event)
        self._holds(one, before)
        key = _key(event.trajectory, event.group)
        group = self.live[key]
        group.running -= 1
        if isinstance(event, TrajectoryCompleted):
            group.last = one
            if group.let_go:
                group.restored = (*(group.restored or ()), one)
        elif event.group is None:
            group.retries[event.trajectory] = now_ns, 0.0  # an evaluation tries again without saying so
        if group.fate is not None and not group.running:
            self._settle(key, group, group.fate)

    def retried(self, record: Record, now_ns: int, event: RetryScheduled) -> None:
        """Note on a failed attempt that another one follows."""
        group = self.live.get(event.group)
        if group is not None:
            group.retries[event.trajectory] = now_ns, event.delay_s
            follows = ((names.ATTEMPT, event.attempt), (names.DELAY_S, event.delay_s))
            self._note(group, event.trajectory, now_ns, names.RETRY_SCHEDULED, follows)

    def dropped(self, record: Record, now_ns: int, event: TrajectoryDropped) -> None:
        """Note on a failed attempt that the group goes on without its trajectory."""
        group = self.live.get(event.group)
        if group is not None:
            why = ((names.FAILURE, event.failure), (names.BLAME, event.blame))
            self._note(group, event.trajectory, now_ns, names.DROPPED, why)

    def _note(self, group: Group, trajectory: str, now_ns: int, name: str, attributes: Attributes) -> None:
        for one in reversed(group.attempts):
            if one.trajectory == trajectory:
                one.note(now_ns, name, attributes)
                return

    # What is held

    def _holds(self, one: Attempt, before: int) -> None:
        """Count what an attempt has come to hold since it held `before` children."""
        if self.live[_key(one.trajectory, one.group)].let_go:
            one.children.clear()
            return
        self.held += len(one.children) - before
        if self.held > self.held_max:
            self._let_go_oldest()

    def _let_go_oldest(self) -> None:
        """Give up the oldest group that holds spans, one that was not drawn before one that was."""
        holding = [group for group in self.live.values() if group.attempts]
        oldest = next((group for group in holding if not (group.drawn or group.kept)), holding[0])
        count = sum(1 + len(one.children) for one in oldest.attempts)
        self.held -= count
        self.let_go += count
        oldest.let_go = True
        oldest.restored = tuple(oldest.completed())  # a step still links to them
        for one in oldest.attempts:
            one.children.clear()
        oldest.attempts = []

    def keep(self, group: Group) -> None:
        """Have `group` traced whatever becomes of it."""
        group.kept = True

    # What is open

    def snapshot(self, seq: int, now_ns: int, *, gone: bool = False) -> None:
        """Send copies of all trees that are open, as far as they have come; `gone` says that their process is.

        What runs is sent whatever it was drawn for: it is part of what stands still, or was lost.
        """
        for group in self.live.values():
            whole = group.stay is not None
            if group.let_go or (whole and not (group.drawn or group.kept)):
                continue
            for one in group.attempts:
                if one.ended is None or group.drawn or group.kept or one.failed:
                    tree, opened = one.open_tree(now_ns, group.stay)
                    self.out += truncated(one.origin.run, tree, opened, seq, gone=gone and one.ended is None)

    def forget(self, now_ns: int) -> None:
        """Drop what ran in a process that is gone: it never ends."""
        for one in self.running.values():
            group = self.live[_key(one.trajectory, one.group)]
            group.running -= 1
            if group.let_go:
                continue
            group.attempts.remove(one)
            self.held -= 1 + len(one.children)
        self.running.clear()
        for name in [key for key in self.live if isinstance(key, str)]:
            self._settle(name, self.live[name], Fate("abandoned", now_ns))
        for key, group in [pair for pair in self.live.items() if pair[1].fate is not None]:
            assert group.fate is not None
            self._settle(key, group, group.fate)


def _key(trajectory: str, group: int | None) -> int | str:
    """Return what a trajectory's group is kept under; an evaluation's is the name before the slash."""
    return trajectory.partition("/")[0] if group is None else group
