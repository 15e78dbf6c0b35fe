"""The trade-off of a run's scheduling: what each policy would come to with the latencies in the run's own log.

What is read from the log: how long groups take from dispatch until they are whole, without the queue at the engines
(censored where a group was given up or is still in flight), how long training and weight sync of a step take, and how
many groups the engines' slots hold at once. A simulated run goes through these in the order in which they came, from
a place that its seed chooses: groups that start together often take equally long, and early ones longer than late
ones, and both matter to who waits for whom. What is assumed: times do not depend on how many groups are in flight, nor
on the policy.
"""

from __future__ import annotations

import bisect
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import get_args

from pydantic import ValidationError

from ...core.config import RunConfig, SchedulerSection
from ...core.projections.pace import Survival, survival
from ...events.bus import Projection
from ...events.record import Record
from ...events.types import (
    BatchTaken,
    EngineUp,
    GroupBuffered,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    PhaseEntered,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrajectoryCompleted,
)
from .cluster import Cluster, Row, Tally, measure, settings

POLICIES: tuple[str, ...] = get_args(SchedulerSection.model_fields["policy"].annotation)
STALENESS = (0, 1, 2, 4)
"""Values of max_staleness that are tried, besides the run's own."""
SKIPPED, LAST, COUNTED = 4, 6, 20
"""Steps at the beginning and at the end that do not count, at least, and steps of a simulated run that do."""
COUNTED_MIN, GROUPS_MIN = 4, 30
"""Of a log, for it to say anything."""
PER_STEP_MAX = 64
"""Groups per step of a simulated run at most; a larger run is simulated at a smaller scale."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How long a group was seen: to its end if it became whole, else until it was given up or the log ended."""

    group: int
    seconds: float
    whole: bool


@dataclass
class Latencies:
    """The fold of a run's log into what the simulation needs."""

    config: RunConfig | None = None
    tally: Tally = field(default_factory=Tally)
    ended: bool = False
    groups: list[Seen] = field(default_factory=list)
    """Every group that was dispatched after the first step: before that, much is done for the first time."""
    train_s: list[float] = field(default_factory=list)
    """Converting and training, of each step but the first."""
    sync_s: list[float] = field(default_factory=list)
    """Of the weights before each of these steps."""
    aside_s: list[float] = field(default_factory=list)
    """Evaluation and checkpoint before each of these steps."""
    engine_s: float = 0.0
    """Of all whole groups: seconds that their trajectories held a slot ..."""
    whole_s: float = 0.0
    """... and seconds that they took."""
    _slots: dict[str, int] = field(default_factory=dict)
    _flying: dict[int, int] = field(default_factory=dict)
    _held_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    _queue_s: dict[int, float] = field(default_factory=dict)
    _taken_ns: int | None = None
    _phase: tuple[str, int] = ("starting", 0)
    _between_s: Counter[str] = field(default_factory=Counter)
    _last_ns: int = 0

    @classmethod
    def of(cls, records: Iterable[Record]) -> Latencies:
        """Fold `records`; groups in flight at their end count as not whole yet."""
        latencies = cls()
        for record in records:
            latencies.apply(record)
        for group in list(latencies._flying):
            latencies._end(group, latencies._last_ns, whole=False)
        latencies.groups.sort(key=lambda seen: seen.group)
        return latencies

    @property
    def steps(self) -> int:
        """Steps that count towards what was measured, after the first ones."""
        return len(self.tally.ends_ns)

    @property
    def seen_whole(self) -> int:
        """Groups that were seen to their end."""
        return sum(seen.whole for seen in self.groups)

    @property
    def places(self) -> float:
        """Groups that the engines' slots hold at once, by what a group held in the mean."""
        return max(1.0, sum(self._slots.values()) * self.whole_s / self.engine_s) if self.engine_s else 1.0

    def apply(self, record: Record) -> None:
        """Fold one record."""
        self.tally.apply(record)
        self._last_ns = record.mono
        match record.event:
            case RunStarted() as event:
                self.config = RunConfig.model_validate(event.config)
            case RunResumed() as event:
                if event.config is not None:
                    self.config = RunConfig.model_validate(event.config)
                self._flying.clear()
                self._taken_ns, self._phase, self.ended = None, ("starting", record.mono), False
                self._between_s.clear()
            case RunFinished() | RunFailed():
                self.ended = True
            case EngineUp() as event:
                self._slots[event.engine] = event.slots
            case GroupDispatched() as event if event.version > 0:
                self._flying[event.group] = record.mono
            case TrajectoryCompleted(group=int(group)) as event:
                self._held_s[group] += event.llm_s
                self._queue_s[group] = event.queue_s  # of the one that ends last, when the group is whole
            case GroupBuffered() | GroupFiltered() as event:
                self._end(event.group, record.mono, whole=True)
            case GroupEvicted() | GroupFailed() | GroupDiscarded() as event:
                self._end(event.group, record.mono, whole=False)
            case BatchTaken() as event:
                self._take(record, event.step)
            case StepCompleted() as event if self._taken_ns is not None and event.step > 0:
                self.train_s.append((record.mono - self._taken_ns) / 1e9)
            case PhaseEntered() as event:
                name, since_ns = self._phase
                self._between_s[name] += (record.mono - since_ns) / 1e9  # type: ignore[assignment]
                self._phase = (event.phase, record.mono)

    def _take(self, record: Record, step: int) -> None:
        between_s, self._between_s = self._between_s, Counter()
        if self._taken_ns is not None and step > 0:
            self.sync_s.append(between_s["weight_sync"])
            self.aside_s.append(between_s["eval"] + between_s["checkpoint"])
        self._taken_ns = record.mono

    def _end(self, group: int, now_ns: int, *, whole: bool) -> None:
        since_ns, held_s = self._flying.pop(group, None), self._held_s.pop(group, 0.0)
        queue_s = self._queue_s.pop(group, 0.0)
        if since_ns is None:
            return
        took_s = max(0.0, (now_ns - since_ns) / 1e9 - queue_s)
        self.groups.append(Seen(group, took_s, whole))
        if whole:
            self.engine_s += held_s
            self.whole_s += took_s

    def lacks(self) -> str:
        """Return in words what the log lacks to say anything, empty when nothing."""
        if self.config is None:
            return "the log is empty: the run has not begun yet"
        skipped, last = counted_off(self.config.scheduler.max_staleness)
        need = skipped + (last if self.ended else 0) + COUNTED_MIN
        if self.steps < need or self.seen_whole < GROUPS_MIN:
            return (
                f"too early to say anything: {self.steps} steps and {self.seen_whole} whole groups; "
                f"at least {need} steps and {GROUPS_MIN} groups are needed"
            )
        return ""

    def measured(self) -> Row:
        """Return what the run itself came to."""
        assert self.config is not None
        skipped, last = counted_off(self.config.scheduler.max_staleness)
        return self.tally.row(skipped, last if self.ended else 0)


def counted_off(staleness: int) -> tuple[int, int]:
    """Return how many steps at the beginning and at the end of a run do not count."""
    return max(SKIPPED, staleness + 2), max(LAST, staleness + 2)


@dataclass(frozen=True)
class Draws:
    """Latencies in the order in which they were seen, from a place that the seed chooses. Picklable."""

    groups: tuple[Seen, ...]
    per_step: int
    curve: Survival
    """Of the groups' seconds: how long those may have taken that were not seen to their end."""
    train_s: tuple[float, ...]
    sync_s: tuple[float, ...]
    aside_s: tuple[float, ...]

    def group(self, seed: int, group: int) -> float:
        """Return the seconds of a group."""
        steps = max(1, len(self.groups) // self.per_step)
        begin = int(_place(seed) * steps) * self.per_step
        seen = self.groups[(begin + group) % len(self.groups)]
        return seen.seconds if seen.whole else self._beyond(seen, random.Random(f"{seed}:{group}").random())

    def train(self, seed: int, step: int) -> float:
        """Return the seconds of converting and training a batch."""
        return _in_turn(self.train_s, seed, step)

    def sync(self, seed: int, version: int) -> float:
        """Return the seconds of a weight sync."""
        return _in_turn(self.sync_s, seed, version)

    def aside(self, seed: int, version: int) -> float:
        """Return the seconds of the evaluation and the checkpoint of a version."""
        return _in_turn(self.aside_s, seed, version)

    def mean_step_s(self) -> float:
        """Return the mean seconds that the trainer is busy in a step."""
        return sum(statistics.fmean(part) for part in (self.train_s, self.sync_s, self.aside_s))

    def mean_group_s(self) -> float:
        """Return the mean seconds of a group."""
        return statistics.fmean(
            seen.seconds if seen.whole else self._beyond(seen, random.Random(seen.group).random())
            for seen in self.groups
        )

    def _beyond(self, seen: Seen, drawn: float) -> float:
        """Return how long a group took that was seen for so long, by the curve; at least as long as it was seen."""
        share = drawn * self.curve.beyond(seen.seconds)
        place = bisect.bisect_left(self.curve.shares, -share, key=lambda share: -share)
        longest_s = max(other.seconds for other in self.groups)
        return max(seen.seconds, self.curve.times_s[place] if place < len(self.curve.times_s) else longest_s)


def _place(seed: int) -> float:
    """Return where in the log a simulated run begins, 0 to 1; seeds in a row are spread evenly over it."""
    return seed * (math.sqrt(5) - 1) / 2 % 1


def _in_turn(seen_s: Sequence[float], seed: int, number: int) -> float:
    return seen_s[(int(_place(seed) * len(seen_s)) + number) % len(seen_s)]


@dataclass(frozen=True)
class Setting:
    """One simulated run: a policy and its bound, with everything that is needed to simulate it."""

    policy: str
    staleness: int
    own: bool
    draws: Draws
    places: float
    config: RunConfig

    def simulate(self, seed: int, *also: Projection) -> Row:
        """Return what one run with `seed` comes to; the projections `also` fold its log."""
        skipped, last = counted_off(self.staleness)
        config = self.config.model_copy(update={"run": self.config.run.model_copy(update={"seed": seed})})
        cluster = Cluster(self.places, self.draws.group, self.draws.train, self.draws.sync, self.draws.aside)
        return measure(cluster, config, skipped=skipped, last=last, also=also)


@dataclass(frozen=True)
class Point:
    """What a setting comes to: the mean of several seeds, and the largest lag of any token that was trained."""

    policy: str
    staleness: int
    own: bool
    step_s: float
    step_sd_s: float
    lag_max: int
    lag_mean: float
    waste: float
    """Work given up, groups and masked tokens, per work trained."""
    best: bool = False
    """Whether no other setting is better in efficiency, mean lag and waste together."""

    @classmethod
    def of(cls, setting: Setting, rows: Sequence[Row]) -> Point:
        """Return the point of `rows`, one a seed."""
        steps_s = [row.step_s for row in rows]
        return cls(
            setting.policy,
            setting.staleness,
            setting.own,
            statistics.fmean(steps_s),
            statistics.pstdev(steps_s),
            max(row.token_lag_max for row in rows),
            statistics.fmean(row.lag_mean for row in rows),
            statistics.fmean(row.given_up for row in rows),
        )


class Model:
    """The cluster that a log describes, and the settings to try on it."""

    def __init__(self, latencies: Latencies) -> None:
        assert latencies.config is not None
        self.config = latencies.config
        scheduler = self.config.scheduler
        self.scale = max(1.0, scheduler.groups_per_step / PER_STEP_MAX)
        """By how much larger the run is than what is simulated."""
        self.places = latencies.places
        self.draws = Draws(
            tuple(latencies.groups),
            scheduler.groups_per_step,
            survival((seen.seconds, seen.whole) for seen in latencies.groups),
            tuple(latencies.train_s),
            tuple(latencies.sync_s),
            tuple(latencies.aside_s),
        )
        self.ideal_s = max(
            self.draws.mean_step_s(),
            scheduler.groups_per_step * self.draws.mean_group_s() / self.places,
        )
        """Seconds of a step if nobody waited who need not."""

    def settings(self) -> Iterator[Setting]:
        """Yield every policy at every bound; at 0 all are synchronous, and only the run's own is taken."""
        own, bound = self.config.scheduler.policy, self.config.scheduler.max_staleness
        for staleness in sorted({*STALENESS, bound}):
            for policy in POLICIES if staleness else (own,):
                setting = self._setting(policy, staleness, own=(policy, staleness) == (own, bound))
                if setting is not None:
                    yield setting

    def changed(self, config: RunConfig, *, own: bool) -> Setting | None:
        """Return the run with the scheduler and the engines of `config`; None if the policy does not take them."""
        model, was = copy(self), self.config.engine
        model.config = config
        model.places = max(
            1.0, self.places * (config.engine.engines * config.engine.slots) / (was.engines * was.slots)
        )
        return model._setting(config.scheduler.policy, config.scheduler.max_staleness, own=own)

    def _setting(self, policy: str, staleness: int, *, own: bool) -> Setting | None:
        scheduler, per_step = self.config.scheduler, self._scaled(self.config.scheduler.groups_per_step)
        window, (skipped, last) = per_step * (staleness + 1), counted_off(staleness)
        table = settings(policy, per_step, staleness, skipped + COUNTED + last, 0)
        table["checkpoint"]["every_steps"] = 1  # in whose place stands what the run does aside
        if scheduler.permits is not None:
            permits = self._scaled(scheduler.permits)
            table["scheduler"]["permits"] = min(permits, window) if policy == "capacity" else permits
        if scheduler.buffer_groups is not None:
            table["scheduler"]["buffer_groups"] = max(per_step, self._scaled(scheduler.buffer_groups))
        if scheduler.oversample_groups and policy == "targeted":
            table["scheduler"]["oversample_groups"] = self._scaled(scheduler.oversample_groups)
        try:
            config = RunConfig.model_validate(table)
        except ValidationError:
            return None  # a policy that does not take these numbers
        return Setting(policy, staleness, own, self.draws, self.places / self.scale, config)

    def _scaled(self, count: float) -> int:
        return max(1, round(count / self.scale))


def marked(points: Sequence[Point]) -> list[Point]:
    """Return `points` with the best ones marked; a hundredth of efficiency, lag or waste is no difference."""

    def beaten(point: Point, by: Point) -> bool:
        differences = (
            (point.step_s - by.step_s) / by.step_s,
            point.lag_mean - by.lag_mean,
            point.waste - by.waste,
        )
        return min(differences) >= -0.01 and max(differences) > 0.01

    return [replace(point, best=not any(beaten(point, other) for other in points)) for point in points]
