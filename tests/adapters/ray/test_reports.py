"""How reports of workers come home: with real outboxes, behind links that delay, lose and hang."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from eventrain.adapters.launching import Reporting
from eventrain.adapters.ray.outbox import Outbox, OutboxHandler
from eventrain.adapters.ray.own_use import OwnUse
from eventrain.adapters.ray.reports import DEADLINE_S, SILENCES_MAX, Round, collect
from eventrain.adapters.simulated.virtual_time import run_virtual
from eventrain.adapters.worker import WorkerGone
from eventrain.events.types import DeviceSampled, Event, TelemetryDegraded, TelemetryDropped, WorkerLogged

HOUR_NS = 3600 * 10**9


def controller_ns() -> int:
    """Return the controller's time."""
    return int(asyncio.get_running_loop().time() * 1e9)


class Linked:
    """A worker whose clock is an hour ahead, at the end of a link."""

    node = "10.0.0.7"

    def __init__(self, name: str = "engine-0", items_max: int = 1000) -> None:
        self.name = name
        self.alive = True
        self.outbox = Outbox(items_max, lambda: controller_ns() + HOUR_NS)
        self.there_s: Callable[[], float] = lambda: 0.01
        self.back_s: Callable[[], float] = lambda: 0.01
        self.asked = 0

    async def reports(self, received: int, deadline_s: float) -> bytes:
        """Answer after the delays of the link."""
        self.asked += 1
        async with asyncio.timeout(deadline_s):
            await asyncio.sleep(self.there_s())
            answer = self.outbox.answer(received, self.outbox.now_ns())
            await asyncio.sleep(self.back_s())
        return answer


def told(seconds: float, *workers: Linked, during: Callable[[], None] = lambda: None) -> list[Event]:
    """Collect for so many seconds of virtual time; `during` is called in their middle."""
    events: list[Event] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(seconds / 2, during)
        try:
            async with asyncio.timeout(seconds):
                await collect(lambda: [one for one in workers if one.alive], events.append, now_ns=controller_ns)
        except TimeoutError:
            return

    run_virtual(main())
    return events


def of(kind: type[Event], events: list[Event]) -> list[Event]:
    """Return the events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def test_what_a_worker_logs_comes_home_with_its_place_and_time() -> None:
    """The origin's time and offset give the instant by the controller's clock, an hour of skew notwithstanding."""
    worker = Linked()
    seen: list[int] = []

    def log() -> None:
        seen.append(controller_ns())
        worker.outbox.put("worker_logged", {"level": "error", "line": "no space"})

    (event,) = of(WorkerLogged, told(10.5, worker, during=log))
    assert isinstance(event, WorkerLogged)
    assert (event.level, event.line) == ("error", "no space")
    assert (event.origin.worker, event.origin.node) == ("engine-0", "10.0.0.7")
    assert event.origin.at_ns == seen[0] + HOUR_NS
    assert abs(event.origin.at_ns + event.origin.offset_ns - seen[0]) <= event.origin.error_ns


def test_the_shortest_round_trip_says_how_the_clocks_differ() -> None:
    """A link that is slow in one direction, but for one round, has the offset of that round."""
    worker = Linked()
    worker.there_s = lambda: 0.001 if worker.asked == 3 else 0.4

    def log() -> None:
        worker.outbox.put("worker_logged", {"level": "warning", "line": "late"})

    worker.back_s = lambda: 0.001
    (event,) = of(WorkerLogged, told(16, worker, during=log))
    assert isinstance(event, WorkerLogged)
    assert event.origin.error_ns == pytest.approx(1e6, rel=0.01)
    assert abs(event.origin.offset_ns + HOUR_NS) <= event.origin.error_ns


def test_an_offset_is_half_the_difference_of_both_ways() -> None:
    """With equal ways the offset is exact; what the worker takes to answer is no part of the error."""
    assert Round.measured(1000, 5010, 5110, 1120) == Round(offset_ns=-4000, error_ns=10)


def test_what_does_not_fit_is_counted_and_nothing_else_is_lost() -> None:
    """A full ring loses its oldest items, and their number is told."""
    worker = Linked(items_max=5)

    def log() -> None:
        for number in range(12):
            worker.outbox.put("worker_logged", {"level": "warning", "line": str(number)})

    events = told(10, worker, during=log)
    assert [event.line for event in of(WorkerLogged, events)] == ["7", "8", "9", "10", "11"]  # type: ignore[attr-defined]
    assert of(TelemetryDropped, events) == [TelemetryDropped(signal="workers", reason="queue_full", count=7)]


def test_an_answer_that_is_lost_costs_nothing() -> None:
    """What was on its way when the deadline passed comes with the next answer, once."""
    worker = Linked()

    def log() -> None:
        worker.outbox.put("worker_logged", {"level": "warning", "line": "early"})
        lost = worker.asked + 1
        worker.back_s = lambda: 60 if worker.asked == lost else 0.01

    events = told(40, worker, during=log)
    assert [event.line for event in of(WorkerLogged, events)] == ["early"]  # type: ignore[attr-defined]
    assert not of(TelemetryDropped, events)


def test_a_worker_that_hangs_and_one_that_died_keep_no_other_from_being_heard() -> None:
    """The one that hangs is told of once; the dead one is asked no more."""
    hanging, dead, well = Linked("engine-0"), Linked("engine-1"), Linked("engine-2")
    hanging.there_s = lambda: 1e6

    async def gone(received: int, deadline_s: float) -> bytes:
        dead.asked += 1
        raise WorkerGone("engine-1 ended")

    dead.reports = gone  # type: ignore[method-assign]

    def log() -> None:
        well.outbox.put("worker_logged", {"level": "warning", "line": "here"})

    seconds = 10 * SILENCES_MAX * (DEADLINE_S + 1)
    events = told(seconds, hanging, dead, well, during=log)
    assert [event.line for event in of(WorkerLogged, events)] == ["here"]  # type: ignore[attr-defined]
    (silent,) = of(TelemetryDegraded, events)
    assert isinstance(silent, TelemetryDegraded)
    assert silent.part == "workers"
    assert silent.missing == "reports of engine-0: no answer within 5 s"
    assert dead.asked == 1


def test_what_another_version_tells_is_counted_and_not_believed() -> None:
    """A kind or a field that is not known here is dropped, loudly."""
    worker = Linked()

    def log() -> None:
        worker.outbox.put("run_finished", {"outcome": "completed"})
        worker.outbox.put("worker_logged", {"level": "warning", "line": "x", "colour": "red"})
        worker.outbox.put("worker_logged", {"level": "warning", "line": "known"})

    events = told(10, worker, during=log)
    assert [event.line for event in of(WorkerLogged, events)] == ["known"]  # type: ignore[attr-defined]
    assert of(TelemetryDropped, events) == [TelemetryDropped(signal="workers", reason="refused", count=2)]


def test_warnings_and_errors_are_kept_as_one_line_each() -> None:
    """What is logged as information stays where it is; an exception adds its class and text."""
    outbox = Outbox(now_ns=lambda: 7)
    log = logging.Logger("engine")
    log.addHandler(OutboxHandler(outbox))
    log.info("all is well")
    log.warning("cache is %d %%\nfull", 90)
    try:
        Path("/no/such/file").read_text()
    except OSError:
        log.exception("not written")
    lines: list[Event] = []

    class Here:
        name, node = "engine-0", "n"
        alive = True

        async def reports(self, received: int, deadline_s: float) -> bytes:
            self.alive = received == 0 and not lines
            return outbox.answer(received, 7)

    async def main() -> None:
        here: Reporting = Here()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await collect(lambda: [here], lines.append, now_ns=lambda: 7)

    run_virtual(main())
    assert [(event.level, event.line) for event in lines] == [  # type: ignore[attr-defined]
        ("warning", "engine: cache is 90 % full"),
        ("error", "engine: not written: FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'"),
    ]


def test_a_worker_measures_what_it_uses_itself() -> None:
    """CPU seconds over the window and its threads are the utilisation; memory is what lies in the machine's."""
    now, used = iter([10.0, 12.0, 13.0]), iter([3.0, 4.0, 14.0])
    use = OwnUse("environment-3", "10.0.0.7", 2.0, now=lambda: next(now), used_s=lambda: next(used))
    (first,), (second,) = use.sample(), use.sample()
    event = DeviceSampled.model_validate(first)
    assert (event.device, event.pool) == ("10.0.0.7/cpu:environment-3", "shared")
    assert (event.utilization, event.window_s, event.source) == (0.25, 2.0, "process")
    assert event.memory_bytes > 1_000_000
    assert second["utilization"] == 1.0


def test_what_came_since_the_last_answer_is_kept_when_that_is_acknowledged() -> None:
    """Only what the controller says it has is forgotten."""
    outbox = Outbox(now_ns=lambda: 7)
    outbox.put("worker_logged", {"line": "a"})
    assert msgspec.msgpack.decode(outbox.answer(0, 3)) == [3, 7, 0, [[7, {"kind": "worker_logged", "line": "a"}]]]
    outbox.put("worker_logged", {"line": "b"})
    assert msgspec.msgpack.decode(outbox.answer(1, 3))[2:] == [1, [[7, {"kind": "worker_logged", "line": "b"}]]]
    assert msgspec.msgpack.decode(outbox.answer(2, 3))[2:] == [2, []]
