"""What workers on other machines tell, brought home about once a second and published as events.

Every worker is followed by a task of its own, so one that hangs keeps no other from being heard, and nothing in the
run waits for any of it. The clocks of two machines differ; each question measures by how much, as NTP does.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import ValidationError

from ...events.types import (
    DeviceSampled,
    EngineSampled,
    Event,
    Origin,
    TelemetryDegraded,
    TelemetryDropped,
    WorkerLogged,
)
from ..launching import Reporting
from ..worker import RemoteError, WorkerGone

EVERY_S = 1.0
DEADLINE_S = 5.0
"""How long a worker may take to answer one question."""
ROUNDS_KEPT = 30
"""Round trips of which the shortest one says how the clocks differ: they drift by some microseconds a second."""
SILENCES_MAX = 3
"""Questions in a row without an answer after which the log is told."""

TOLD: dict[str, type[DeviceSampled] | type[EngineSampled] | type[WorkerLogged]] = {
    "device_sampled": DeviceSampled,
    "engine_sampled": EngineSampled,
    "worker_logged": WorkerLogged,
}


@dataclass(frozen=True, slots=True)
class Round:
    """One question and its answer: by how much the clocks differ, and how far that may be wrong."""

    offset_ns: int
    """To be added to the worker's time to have the controller's."""
    error_ns: int

    @classmethod
    def measured(cls, sent_ns: int, asked_ns: int, answered_ns: int, received_ns: int) -> Round:
        """Return the round of which the first and last instant are of the controller's clock (RFC 5905, section 8)."""
        offset_ns = ((sent_ns - asked_ns) + (received_ns - answered_ns)) // 2
        trip_ns = (received_ns - sent_ns) - (answered_ns - asked_ns)
        return cls(offset_ns, max(0, trip_ns) // 2)


async def collect(
    workers: Callable[[], Iterable[Reporting]],
    publish: Callable[[Event], None],
    *,
    now_ns: Callable[[], int] = time.time_ns,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Follow each of `workers()`, also those that come later, and publish what they tell. Never returns.

    Cancelled, it leaves what has not come home where it is.
    """
    followed: set[Reporting] = set()
    async with asyncio.TaskGroup() as group:
        while True:
            there = set(workers())
            for worker in sorted(there - followed, key=lambda one: one.name):
                group.create_task(_follow(worker, publish, now_ns, sleep), name=f"reports of {worker.name}")
            followed = there
            await sleep(EVERY_S)


async def _follow(
    worker: Reporting,
    publish: Callable[[Event], None],
    now_ns: Callable[[], int],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Ask one worker again and again, until it has ended."""
    rounds: deque[Round] = deque(maxlen=ROUNDS_KEPT)
    received, silences = 0, 0
    while worker.alive:
        sent_ns = now_ns()
        try:
            answer = await worker.reports(received, DEADLINE_S)
        except WorkerGone:
            return
        except (TimeoutError, RemoteError) as error:
            silences += 1
            if silences == SILENCES_MAX:
                publish(_silent(worker, error))
        else:
            silences = 0
            asked_ns, answered_ns, first, items = msgspec.msgpack.decode(answer)
            rounds.append(Round.measured(sent_ns, asked_ns, answered_ns, now_ns()))
            if first > received:
                lost = first - received
                publish(TelemetryDropped(signal="workers", reason="queue_full", count=lost))
            received = first + len(items)
            best = min(rounds, key=lambda one: one.error_ns)
            _publish(worker, best, items, publish)
        await sleep(EVERY_S)


def _publish(
    worker: Reporting, clocks: Round, items: list[tuple[int, dict[str, Any]]], publish: Callable[[Event], None]
) -> None:
    refused = 0
    for at_ns, fields in items:
        origin = Origin(
            worker=worker.name,
            node=worker.node,
            at_ns=at_ns,
            offset_ns=clocks.offset_ns,
            error_ns=clocks.error_ns,
        )
        try:
            publish(TOLD[fields["kind"]].model_validate({**fields, "origin": origin}))
        except (KeyError, ValidationError):  # of another version of eventrain
            refused += 1
    if refused:
        publish(TelemetryDropped(signal="workers", reason="refused", count=refused))


def _silent(worker: Reporting, error: Exception) -> TelemetryDegraded:
    why = f"no answer within {DEADLINE_S:g} s" if isinstance(error, TimeoutError) else str(error)
    return TelemetryDegraded(
        part="workers", missing=f"reports of {worker.name}: {why}", works="the run, and the reports of other workers"
    )
