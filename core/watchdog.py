"""The watchdog: publishes a verdict when it becomes true, and its end when an event ends it.

A deadlock is reported at the very event after which nothing can move, without a timer. What needs time is looked at
again when the oldest effect would be overdue; while nothing is outstanding no timer runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ..events.record import Record
from ..events.types import TELEMETRY, Event, InvariantBroken, RunResumed, StallCleared, StallDetected
from . import collector, engine_pool, environment_pool, trainer
from .config import RunConfig
from .failures import RunFailure
from .policies import Policy
from .ports import PromptSource
from .projections import View
from .projections.accounting import Ledger
from .stalls import ASLEEP_S, Stall, limits_s, livelock, nothing_moves, unheard, verdict
from .waits import Waiter

_ASIDE: tuple[type[Event], ...] = (StallDetected, StallCleared, InvariantBroken, *TELEMETRY)
"""Events that tell of a run and do not move it."""
_ABORTS = ("deadlock", "livelock", "silent_loss")


@dataclass(slots=True)
class Standing:
    """A stall that was reported."""

    number: int
    stall: Stall
    reported_ns: int
    ended_by: int | None = None


class Watch:
    """The fold behind the watchdog: reported stalls, and the event that ended each.

    Registered after `view`, so that it asks the state that the record made. Also folds a log afterwards.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.standing: dict[str, Standing] = {}
        self.reported = 0

    def apply(self, record: Record) -> None:
        """Note which standing stalls `record` ends."""
        event = record.event
        if type(event) is StallDetected:
            self.reported = max(self.reported, event.stall + 1)
        elif type(event) is RunResumed:
            self.standing.clear()  # they ended with the process that reported them
        if not self.standing:
            return
        for standing in self.standing.values():
            if standing.ended_by is None and self._ends(record, standing.stall):
                standing.ended_by = record.seq

    def _ends(self, record: Record, stall: Stall) -> bool:
        if stall.kind == "deadlock":
            return not isinstance(record.event, _ASIDE)
        if stall.kind == "overdue":
            effects = self.view.outstanding.open
            return not any(key in effects and effects[key].seq == seq for key, seq in stall.late)
        if stall.kind == "livelock":
            return self.view.movement.progress_seq != stall.first_cause
        if stall.kind == "degraded":
            return self.view.engines.low_since_ns != stall.since_ns
        return False  # what is lost stays lost

    def add(self, stall: Stall, now_ns: int) -> Standing:
        """Take up a stall that is being reported."""
        standing = Standing(self.reported, stall, now_ns)
        self.reported += 1
        self.standing[stall.key] = standing
        return standing

    def take_ended(self) -> list[Standing]:
        """Return the stalls that an event has ended, once."""
        ended = [standing for standing in self.standing.values() if standing.ended_by is not None]
        for standing in ended:
            del self.standing[standing.stall.key]
        return ended


def due_actors(
    view: View, config: RunConfig, policy: Policy, source: PromptSource, engines: int
) -> list[str]:
    """Return who of the waiting has something to decide in this state, and so moves once it runs."""
    asks: dict[str, Callable[[], object]] = {
        "trainer": lambda: trainer.decide(view, config, policy) is not None,
        "collector": lambda: collector.step(view, config, policy, source),
        "engine_pool": lambda: engine_pool.step(view, config, engines),
    }
    workers = view.environment_workers.count
    if workers:
        asks["environment_pool"] = lambda: environment_pool.step(view, config, workers)
    due = []
    for actor, ask in asks.items():
        try:
            if ask():
                due.append(actor)
        except RunFailure:
            due.append(actor)  # it will end the run
    routes = {
        "engine_available": engine_pool.route(view.engines),
        "environment_available": environment_pool.route(view.environment_workers),
    }
    due += [
        waiter
        for waiter, wait in view.waits.by_waiter.items()
        if "/" in waiter and routes.get(wait.edge) is not None
    ]
    return due


class Watchdog:
    """The shell: asks for the verdict when the state or the time may have changed it."""

    def __init__(
        self,
        watch: Watch,
        ledger: Ledger,
        config: RunConfig,
        due: Callable[[], list[str]],
        waiter: Waiter,
    ) -> None:
        self.watch = watch
        self.view = watch.view
        self.ledger = ledger
        self.config = config
        self.due = due
        self.waiter = waiter
        self._breaches = len(ledger.breaches)  # those of a log that is resumed have been reported
        self._asleep_after = -1  # newest event when somebody was due and nothing else could move
        self._timer = False
        self._due_since: dict[str, tuple[int, int]] = {}  # seq of the wait, and when it was first seen due in it

    async def run(self) -> None:
        """Watch until cancelled. Cancelling says of a stall that has ended that it has, and nothing else.

        Raises `RunFailure` with the chain of a stall that `watchdog.on_stall` makes the end of the run.
        """
        try:
            while True:
                self._report()
                wake_s = self._wake_s()
                self._timer = wake_s is not None
                try:
                    async with asyncio.timeout(wake_s):
                        await self.waiter.bus.watch(self._changed)
                except TimeoutError:
                    continue
        except asyncio.CancelledError:
            self._clear()
            raise

    def _clear(self) -> None:
        now_ns = self.waiter.clock.mono_ns()
        for standing in self.watch.take_ended():
            assert standing.ended_by is not None
            seconds = (now_ns - standing.reported_ns) / 1e9
            self.waiter.publish(
                StallCleared(stall=standing.number, by=standing.ended_by, seconds=seconds),
                cause=standing.ended_by,
            )

    def _report(self) -> None:
        self.waiter.bus.fold()
        now_ns = self.waiter.clock.mono_ns()
        self._clear()
        breaches = self.ledger.breaches[self._breaches :]
        self._breaches += len(breaches)
        due = self.due() if nothing_moves(self.view) or self.view.engines.low_since_ns is not None else []
        slept = self._slept(due, now_ns)
        for stall in verdict(self.view, self.config, now_ns, due=due, slept=slept, breaches=breaches):
            if stall.key not in self.watch.standing:
                self._tell(stall, now_ns)
        self.waiter.bus.fold()

    def _slept(self, due: list[str], now_ns: int) -> list[str]:
        """Return those of `due` who were due `ASLEEP_S` ago, in the same wait; others may only not have run yet."""
        since, waits = self._due_since, self.view.waits.by_waiter
        seen = {actor: (waits[actor].seq, now_ns) for actor in due if actor in waits}
        self._due_since = {
            actor: since[actor] if actor in since and since[actor][0] == new[0] else new
            for actor, new in seen.items()
        }
        return [actor for actor, (_, at) in self._due_since.items() if now_ns - at >= ASLEEP_S * 1e9]

    def _tell(self, stall: Stall, now_ns: int) -> None:
        standing = self.watch.add(stall, now_ns)
        told = self.waiter.publish(
            StallDetected(
                stall=standing.number,
                stall_kind=stall.kind,
                chain=stall.chain,
                sentence=stall.sentence,
                first_cause=stall.first_cause,
            ),
            cause=stall.first_cause if stall.first_cause is not None else self.view.last_seq,
        )
        if self.config.watchdog.on_stall == "abort" and stall.kind in _ABORTS:
            cause = stall.first_cause if stall.first_cause is not None else told.seq
            raise RunFailure(stall.kind, stall.sentence, cause)

    def _changed(self) -> bool:
        """Return whether a verdict may have begun or ended; asked in every tick, so it is cheap while all is well."""
        view, standing = self.view, self.watch.standing
        if len(self.ledger.breaches) > self._breaches:
            return True
        if standing and any(one.ended_by is not None for one in standing.values()):
            return True
        if view.outstanding.open and not self._timer:
            return True
        if "deadlock" not in standing and nothing_moves(view):
            if not self.due() and not unheard(view):
                return True
            if self._asleep_after != view.last_seq:
                return True  # to set the timer after which a waiter that is due counts as asleep
        return "livelock" not in standing and livelock(view, self.config, view.last_mono) is not None

    def _wake_s(self) -> float | None:
        """Return the seconds after which time alone may change the verdict; None while it cannot."""
        view, now_ns = self.view, self.waiter.clock.mono_ns()
        if "deadlock" not in self.watch.standing and nothing_moves(view):
            self._asleep_after = view.last_seq
            return ASLEEP_S
        if not view.outstanding.open:
            return None
        limits = limits_s(view, self.config)
        told = {pair for one in self.watch.standing.values() for pair in one.stall.late}
        times = [
            effect.since_ns + limits[effect.kind] * 1e9
            for key, effect in view.outstanding.open.items()
            if effect.kind in limits and (key, effect.seq) not in told
        ]
        # Effects that begin meanwhile: none of them can be overdue before the shortest limit has passed.
        times.append(now_ns + min(limits.values()) * 1e9)
        if view.engines.low_since_ns is not None:
            long_ns = view.engines.low_since_ns + self.config.watchdog.degraded_s * 1e9
            times.append(long_ns)
            if long_ns <= now_ns and "degraded" not in self.watch.standing:
                times += [at + ASLEEP_S * 1e9 for _, at in self._due_since.values()]
        ahead = [at for at in times if at > now_ns]
        return max(1e-3, (min(ahead) - now_ns) / 1e9) if ahead else None
