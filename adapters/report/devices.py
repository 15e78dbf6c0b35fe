"""What devices did: their use over time by pool, and their seconds by pool and phase, and by what they idled for."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .curves import Curve, Interval

CAUSE_OF_PHASE = {
    "starting": "starting",
    "generating": "buffer_starvation",
    "waiting_for_buffer": "buffer_starvation",
    "converting": "converting",
    "weight_sync": "weight_sync",
    "eval": "eval",
    "checkpoint": "checkpoint",
    "training": "low_use",
}
"""Why a device of the learner idles, by the trainer's phase."""
TOGETHER_NS = 50_000_000
"""Samples that are no further apart are of one look at all devices."""


@dataclass
class Seconds:
    """Device-seconds of one pool in one phase."""

    there: float = 0.0
    busy: float = 0.0

    @property
    def use(self) -> float:
        """Share of the seconds in which the devices were busy."""
        return self.busy / self.there if self.there else 0.0


@dataclass
class _Look:
    """The samples of one pool that were taken together."""

    at_ns: int
    use: list[float]


@dataclass
class Devices:
    """Device use, from samples that each tell of a window in the past.

    A window that contains several phases is split at their boundaries, in proportion to the overlap.
    """

    use: dict[str, Curve] = field(default_factory=dict)
    """Mean use (0 to 1) of the devices of each pool."""
    seconds: dict[tuple[str, str], Seconds] = field(default_factory=dict)
    """By pool and phase."""
    idle_s: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By pool and cause."""
    names: dict[str, set[str]] = field(default_factory=dict)
    """The devices of each pool."""
    sources: set[str] = field(default_factory=set)
    """Where the samples came from, as far as they say."""
    _looks: dict[str, _Look] = field(default_factory=dict)

    def sample(
        self,
        *,
        device: str,
        source: str,
        pool: str,
        use: float,
        window: tuple[int, int],
        phases: Iterable[Interval],
        engine_causes: Iterable[Interval],
    ) -> None:
        """Count one sample: `device` was busy for the share `use` of `window` (from, to; nanoseconds)."""
        self.names.setdefault(pool, set()).add(device)
        if source:
            self.sources.add(source)
        look = self._looks.get(pool)
        if look is None or window[1] - look.at_ns > TOGETHER_NS:
            self._finish(pool)
            look = self._looks[pool] = _Look(window[1], [])
        look.use.append(use)
        for name, length_s in _overlaps(phases, window):
            seconds = self.seconds.setdefault((pool, name), Seconds())
            seconds.there += length_s
            seconds.busy += length_s * use
            if pool != "engine":
                self._idle(pool, CAUSE_OF_PHASE.get(name, "low_use"), length_s * (1 - use))
        if pool == "engine":
            for cause, length_s in _overlaps(engine_causes, window):
                self._idle(pool, cause, length_s * (1 - use))

    def finish(self) -> None:
        """Draw what the last look at each pool saw."""
        for pool in self._looks:
            self._finish(pool)
        self._looks.clear()

    def _finish(self, pool: str) -> None:
        look = self._looks.get(pool)
        if look is not None:
            self.use.setdefault(pool, Curve()).add(look.at_ns, sum(look.use) / len(look.use))

    def _idle(self, pool: str, cause: str, seconds: float) -> None:
        totals: dict[tuple[str, str], float] = self.idle_s  # type: ignore[assignment]  # a Counter's values are ints
        totals[pool, cause] = totals.get((pool, cause), 0.0) + seconds


class Recent:
    """The intervals of one kind, the open one included, and those that the next samples can still tell of."""

    def __init__(self, kept: Callable[[Interval], None] | None = None) -> None:
        self._kept = kept
        self._ended: deque[Interval] = deque(maxlen=512)
        self.name = ""
        self.step = -1
        self.since_ns = 0

    def enter(self, name: str, at_ns: int, step: int = -1) -> None:
        """End what holds and begin `name`."""
        self.leave(at_ns)
        self.name, self.step, self.since_ns = name, step, at_ns

    def leave(self, at_ns: int) -> None:
        """End what holds."""
        if self.name and at_ns > self.since_ns:
            ended = Interval(self.name, self.since_ns, at_ns, self.step)
            self._ended.append(ended)
            if self._kept is not None:
                self._kept(ended)
        self.name = ""

    def newest_first(self, now_ns: int) -> Iterable[Interval]:
        """Yield what holds now, and then what held before."""
        if self.name:
            yield Interval(self.name, self.since_ns, now_ns, self.step)
        yield from reversed(self._ended)


def _overlaps(newest_first: Iterable[Interval], window: tuple[int, int]) -> Iterable[tuple[str, float]]:
    for one in newest_first:
        if one.to_ns <= window[0]:
            return
        overlap = min(one.to_ns, window[1]) - max(one.from_ns, window[0])
        if overlap > 0:
            yield one.name, overlap / 1e9
