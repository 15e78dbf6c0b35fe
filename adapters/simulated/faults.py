"""Faults by rule: where, when and what goes wrong in a simulated world.

`Injector` stands between the shipped core and the simulated ports. Each call of a port asks it whether a rule
strikes; what is no port call (a stop, a death, a disk) strikes at an event.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

from pydantic import Field, model_validator

from ...core.config import Section
from ...core.ports import (
    CheckpointError,
    EngineError,
    EngineGone,
    EnvironmentWorkerGone,
    LearnerGone,
    PromptRefused,
    PromptTooLong,
)
from ...core.projections import View
from ...events.record import Record
from .tape import Tape

T = TypeVar("T")

Where = Literal[
    "engine.prepare",
    "engine.start",
    "engine.generate",
    "engine.fetch",
    "engine.pause",
    "engine.begin_update",
    "engine.transfer",
    "engine.finish_update",
    "engine.resume",
    "engine.close",
    "learner.start",
    "learner.train",
    "learner.publish",
    "learner.checkpoint",
    "environment.reset",
    "environment.step",
    "environment.reward",
    "environment_worker.start",
    "environment_worker.ping",
    "data.item",
    "engine",
    "environment_worker",
    "disk",
    "run",
]
What = Literal[
    "hang",
    "delay",
    "lose_reply",
    "error",
    "gone",
    "refuse",
    "too_long",
    "defect",
    "duplicate",
    "old_weights",
    "damage",
    "nan",
    "die",
    "slow",
    "full",
    "stop",
    "kill",
]

ANY_CALL = ("hang", "delay", "lose_reply", "error", "defect", "duplicate")
ALLOWED: dict[str, tuple[str, ...]] = {
    "engine": ("die",),
    "environment_worker": ("die",),
    "environment_worker.start": ANY_CALL,
    "environment_worker.ping": ("hang", "delay", "lose_reply"),
    "disk": ("slow", "full"),
    "run": ("stop", "kill"),
    "data.item": ("defect",),
    "engine.start": (*ANY_CALL, "gone", "old_weights"),
    "engine.begin_update": (*ANY_CALL, "gone", "old_weights"),
    "engine.transfer": (*ANY_CALL, "gone", "damage"),
    "engine.finish_update": (*ANY_CALL, "gone", "old_weights"),
    "engine.generate": (*ANY_CALL, "gone", "refuse", "too_long", "die"),
    "environment.reward": (*ANY_CALL, "nan"),
}
"""What can go wrong where; a call that is not listed can go wrong in each way of `ANY_CALL`, and be ``gone``."""


class Fault(Section):
    """One rule: `what` happens `where`, in the calls that all the filters let through."""

    where: Where
    what: What
    engine: str | None = Field(None, description="Only calls of this engine; for where = 'engine', who dies.")
    worker: str | None = Field(
        None, description="Only calls of this worker of environments; for where = 'environment_worker', who dies."
    )
    prompt: int | None = Field(None, ge=0, description="Only calls for this prompt.")
    trajectory: int | None = Field(None, ge=0, description="Only calls for this trajectory of its group.")
    attempt_below: int | None = Field(None, ge=1, description="Only attempts with a lower number than this.")
    version: int | None = Field(None, ge=0, description="Only calls about this weight version.")
    skip: int = Field(0, ge=0, description="Let so many calls through first.")
    times: int | None = Field(None, ge=1, description="Strike so often at most.")
    one_in: int = Field(1, ge=1, description="Strike by chance, in one call of so many.")
    seconds: float = Field(0.0, ge=0, description="Virtual seconds: of a delay, or before an error comes.")
    at_event: int | None = Field(None, ge=0, description="Strike when this event was folded.")

    @model_validator(mode="after")
    def _makes_sense(self) -> Fault:
        allowed = ALLOWED.get(self.where, (*ANY_CALL, "gone"))
        if self.where.startswith("environment") and self.where not in ALLOWED:
            allowed = ANY_CALL
        if self.what not in allowed:
            raise ValueError(
                f"what = '{self.what}' cannot happen to {self.where}; it can: {', '.join(allowed)}"
            )
        at_event = self.where in ("engine", "environment_worker", "run") or self.what == "full"
        if at_event != (self.at_event is not None):
            raise ValueError(
                f"{self.where}: what = '{self.what}' {'needs' if at_event else 'cannot have'} at_event"
            )
        if self.what in ("delay", "slow") and not self.seconds:
            raise ValueError(f"what = '{self.what}' needs seconds")
        if self.where == "engine" and self.engine is None:
            raise ValueError("where = 'engine' needs engine, the one that dies")
        if self.where == "environment_worker" and self.worker is None:
            raise ValueError("where = 'environment_worker' needs worker, the one that dies")
        if self.prompt is not None and self.where not in PROMPT_CALLS:
            raise ValueError(f"a call of {self.where} has no prompt")
        if self.trajectory is not None and self.where != "engine.generate":
            raise ValueError(f"a call of {self.where} does not know its trajectory")
        return self


PROMPT_CALLS = ("engine.generate", "environment.reset", "environment.step", "environment.reward")
assert set(ALLOWED) <= set(get_args(Where))


class Injector:
    """Applies the rules, and counts what struck in `struck`; quiet from `heal_s` virtual seconds on."""

    def __init__(self, faults: Sequence[Fault], tape: Tape, heal_s: float | None = None) -> None:
        self.faults = faults
        self.struck: Counter[str] = Counter()
        self.view: View | None = None
        self.on_stop: Callable[[], None] = lambda: None
        self.on_die: Callable[[str], None] = lambda name: None
        self.on_kill: Callable[[], None] = lambda: None
        self._tape = tape
        self._heal_s = heal_s
        self._seen: Counter[int] = Counter()
        self._fired: Counter[int] = Counter()

    def apply(self, record: Record) -> None:
        """Strike with the rules that are for this event; registered with the bus as a projection."""
        for number, fault in enumerate(self.faults):
            if fault.at_event != record.seq or fault.what == "full" or self._fired[number]:
                continue
            self._fired[number] += 1  # once: a resumed run may come by this seq again
            self._count(fault)
            if fault.what == "stop":
                self.on_stop()
            elif fault.what == "kill":
                self.on_kill()
            elif fault.where == "environment_worker" and fault.worker is not None:
                self.on_die(fault.worker)
            elif fault.engine is not None:
                self.on_die(fault.engine)

    @property
    def full_at(self) -> int | None:
        """Seq of the event that finds the disk full, None if none does."""
        return next((fault.at_event for fault in self.faults if fault.what == "full"), None)

    def disk_s(self) -> float:
        """Return the seconds by which the disk is late with the commit that begins now."""
        fault = self.pick("disk", {})
        return 0.0 if fault is None else fault.seconds

    def pick(self, where: str, about: Mapping[str, object]) -> Fault | None:
        """Return the first rule that strikes this call, None if it is let through."""
        healed = self._heal_s is not None and asyncio.get_running_loop().time() >= self._heal_s
        for number, fault in enumerate(self.faults):
            if fault.where != where or fault.at_event is not None or healed:
                continue
            if fault.times is not None and self._fired[number] >= fault.times:
                continue
            if not _matches(fault, about):
                continue
            self._seen[number] += 1
            if self._seen[number] <= fault.skip or not self._tape.happens("fault", fault.one_in):
                continue
            self._fired[number] += 1
            self._count(fault)
            return fault
        return None

    def _count(self, fault: Fault) -> None:
        self.struck[f"{fault.where} {fault.what}"] += 1

    def check(self, where: str) -> None:
        """Raise what a rule makes of a call that answers at once."""
        fault = self.pick(where, {})
        if fault is not None:
            raise _error(fault, where)

    async def around(
        self, where: str, about: Mapping[str, object], call: Callable[..., Awaitable[T]], args: Sequence[Any]
    ) -> T:
        """Make the call, or what a rule makes of it."""
        fault = self.pick(where, about)
        if fault is None:
            return await call(*args)
        if fault.what == "hang":
            await asyncio.Event().wait()
        if fault.what == "lose_reply":
            await call(*args)
            await asyncio.Event().wait()
        if fault.seconds:
            await asyncio.sleep(fault.seconds)
        if fault.what == "die":
            self.on_die(str(about["engine"]))
        if fault.what == "duplicate":
            await call(*args)
        if fault.what in ("old_weights", "damage"):
            return await _other_weights(where, call, args)
        if fault.what in ("delay", "die", "duplicate"):
            return await call(*args)
        if fault.what == "nan":
            return float("nan")  # type: ignore[return-value]
        raise _error(fault, where)


def _other_weights(where: str, call: Callable[..., Awaitable[T]], args: Sequence[Any]) -> Awaitable[T]:
    """Give the engine others than those that are meant, or have it keep its own and say otherwise."""
    if where == "engine.transfer":
        return call(~args[0], *args[1:])
    if where == "engine.finish_update":
        return call(*args, lies=True)
    return call(replace(args[0], version=args[0].version - 1), *args[1:])


def _error(fault: Fault, where: str) -> Exception:
    words = f"simulated: {where} {fault.what}"
    if fault.what == "refuse":
        return PromptRefused(words)
    if fault.what == "too_long":
        return PromptTooLong(words)
    if where.startswith("environment_worker") and fault.what != "defect":
        return EnvironmentWorkerGone(words)
    if fault.what == "defect" or where.startswith("environment"):
        return RuntimeError(words)
    if where.startswith("learner"):
        if fault.what == "gone":
            return LearnerGone(words)
        return CheckpointError(words)
    return EngineGone(words) if fault.what == "gone" else EngineError(words)


def _matches(fault: Fault, about: Mapping[str, object]) -> bool:
    for name in ("engine", "worker", "prompt", "trajectory", "version"):
        wanted = getattr(fault, name)
        if wanted is not None and about.get(name) != wanted:
            return False
    attempt = about.get("attempt", 0)
    assert isinstance(attempt, int)
    return fault.attempt_below is None or attempt < fault.attempt_below


class FaultyPort:
    """A port with an injector in front of the methods that `about` knows; the rest is passed through."""

    def __init__(
        self,
        port: Any,
        kind: str,
        injector: Injector,
        about: Mapping[str, Callable[..., Mapping[str, object]]],
    ) -> None:
        self._port = port
        self._kind = kind
        self._injector = injector
        self._about = about

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if name not in self._about:
            return method
        where, about, injector = f"{self._kind}.{name}", self._about[name], self._injector

        return lambda *args: _Call(lambda: injector.around(where, about(*args), method, args))


class _Call:
    """An awaitable that begins when it is awaited: a task that is killed before it runs leaves nothing behind."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begin().__await__()
