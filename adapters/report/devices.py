"""What devices did: their use over time, and their seconds by pool, phase and cause as the metrics count them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from ...events.types import DeviceSampled
from ..telemetry.metrics.snapshot import Snapshot
from .curves import Curve

TOGETHER_NS = 50_000_000
"""Samples that are no further apart are of one look at all devices."""
GPUS = ("engine", "learner", "shared")
"""Pools whose idle seconds count as lost; the controller's processor is no device that waits for anything."""


@dataclass
class Seconds:
    """Device-seconds of one pool in one phase."""

    there: float = 0.0
    busy: float = 0.0

    @property
    def use(self) -> float:
        """Share of the seconds in which the devices were busy."""
        return self.busy / self.there if self.there else 0.0


def seconds_by_phase(snapshot: Snapshot) -> dict[tuple[str, str], Seconds]:
    """Return the device-seconds of a snapshot by pool and phase, over all devices of the pool."""
    table: dict[tuple[str, str], Seconds] = {}
    for (pool, phase, _), there in snapshot.values.get("rl_gpu_allocated_seconds_total", {}).items():
        table.setdefault((pool, phase), Seconds()).there += there
    for (pool, phase, _), busy in snapshot.values.get("rl_gpu_busy_seconds_total", {}).items():
        table.setdefault((pool, phase), Seconds()).busy += busy
    return table


def idle_by_cause(snapshot: Snapshot) -> dict[tuple[str, str], float]:
    """Return the idle device-seconds of a snapshot by pool and cause, those that there are."""
    idle = snapshot.values.get("rl_gpu_idle_seconds_total", {})
    return {(pool, cause): spent for (pool, cause), spent in idle.items() if spent > 0}


@dataclass
class _Look:
    """The samples of one pool that were taken together."""

    at_ns: int
    use: list[float]


@dataclass
class Devices:
    """The use of devices over time, from samples that each tell of a window in the past."""

    use: dict[str, Curve] = field(default_factory=dict)
    """Mean use (0 to 1) of the devices of each pool."""
    idle: Curve = field(default_factory=Curve)
    """Idle device-seconds of all GPUs since the start."""
    names: dict[str, set[str]] = field(default_factory=dict)
    """The devices of each pool."""
    sources: set[str] = field(default_factory=set)
    """Where the samples came from, as far as they say."""
    _looks: dict[str, _Look] = field(default_factory=dict)
    _idle_s: float = 0.0

    def sample(self, event: DeviceSampled, now_ns: int) -> None:
        """Take the sample of a window that ends at `now_ns`."""
        pool, use = event.pool, min(1.0, max(0.0, event.utilization))
        self.names.setdefault(pool, set()).add(event.device)
        if event.source:
            self.sources.add(event.source)
        look = self._looks.get(pool)
        if look is None or now_ns - look.at_ns > TOGETHER_NS:
            self._draw(pool)
            look = self._looks[pool] = _Look(now_ns, [])
        look.use.append(use)
        if pool in GPUS:
            self._idle_s += event.window_s * (1 - use)
            self.idle.set(now_ns, self._idle_s)

    def finish(self) -> None:
        """Draw what the last look at each pool saw."""
        for pool in self._looks:
            self._draw(pool)
        self._looks.clear()

    def idle_s(self, from_ns: int, to_ns: int) -> float:
        """Return the idle device-seconds of all GPUs in that time, as exact as the samples are long."""
        return self._idle_until(to_ns) - self._idle_until(from_ns)

    def _idle_until(self, at_ns: int) -> float:
        at, values = self.idle.at_ns, self.idle.values
        after = bisect_right(at, at_ns)
        if after in (0, len(at)):
            return values[-1] if after else 0.0
        since, until = at[after - 1], at[after]
        share = (at_ns - since) / (until - since)
        return values[after - 1] + share * (values[after] - values[after - 1])

    def _draw(self, pool: str) -> None:
        look = self._looks.get(pool)
        if look is not None:
            self.use.setdefault(pool, Curve()).add(look.at_ns, sum(look.use) / len(look.use))
