"""The one way to wait: named, logged, with a deadline, and without a lost wakeup."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventrain.adapters.simulated.virtual_time import Stalled, VirtualClock, run_virtual
from eventrain.core.ports import PortError
from eventrain.core.projections import View
from eventrain.core.waits import Edge, Expired, Waiter
from eventrain.events.bus import Bus
from eventrain.events.types import (
    Blocked,
    DeadlineExpired,
    Event,
    LearnerUp,
    StopRequested,
    Unblocked,
    WeightsPublished,
)

EDGE = Edge("version", "version 1", "version 0")


class Scene:
    """A bus with a view, a waiter, and everything that was published."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.bus = Bus(self.clock)
        self.view = self.bus.register(View())
        self.waiter = Waiter(self.bus, self.clock, "trainer")
        self.seen: list[Event] = []
        self.bus_publish = self.bus.publish

        def publish(actor: str, event: Event, **envelope: object):  # type: ignore[no-untyped-def]
            self.seen.append(event)
            return self.bus_publish(actor, event, **envelope)  # type: ignore[arg-type]

        self.bus.publish = publish  # type: ignore[method-assign,assignment]

    def version(self, at_least: int) -> bool:
        return self.view.trainer.version >= at_least

    def up(self, version: int) -> None:
        self.bus.publish("other", LearnerUp(version=version, parameters=1, device=""))


def test_a_wait_that_is_over_before_it_begins_is_not_logged() -> None:
    """No Blocked event when the predicate holds already, also if the event for it was published just now."""

    async def main() -> None:
        scene = Scene()
        scene.up(1)
        assert await scene.waiter.until(lambda: scene.version(1), lambda: EDGE)
        assert [type(event) for event in scene.seen] == [LearnerUp]

    run_virtual(main())


def test_a_wait_is_in_the_log_while_it_lasts() -> None:
    """Blocked says who needs what and what there is; Unblocked says how long it took."""

    async def main() -> None:
        scene = Scene()
        asyncio.get_running_loop().call_later(7, scene.up, 1)
        await scene.waiter.until(lambda: scene.version(1), lambda: EDGE)
        blocked, _, unblocked = scene.seen
        assert blocked == Blocked(waiter="trainer", edge="version", awaited="version 1", present="version 0")
        assert unblocked == Unblocked(waiter="trainer", edge="version", blocked=0, outcome="ready", seconds=7)

    run_virtual(main())


def test_a_wait_expires_with_an_event_and_an_exception() -> None:
    """After its deadline: DeadlineExpired, Unblocked(expired), Expired."""

    async def main() -> None:
        scene = Scene()
        with pytest.raises(Expired, match=r"wait of version\(version 1\): no end within 5 s"):
            await scene.waiter.until(lambda: scene.version(1), lambda: EDGE, deadline_s=5)
        assert [type(event) for event in scene.seen] == [Blocked, DeadlineExpired, Unblocked]
        assert scene.seen[2].outcome == "expired"  # type: ignore[attr-defined]
        assert asyncio.get_running_loop().time() == 5

    run_virtual(main())


def test_a_cancelled_wait_says_so() -> None:
    """Cancelling ends the wait with Unblocked(cancelled)."""

    async def main() -> None:
        scene = Scene()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(scene.waiter.until(lambda: scene.version(1), lambda: EDGE))
            await asyncio.sleep(0)
            task.cancel()
        assert scene.seen[-1].outcome == "cancelled"  # type: ignore[attr-defined]

    run_virtual(main())


def test_a_timeout_of_the_work_itself_is_not_taken_for_the_deadline() -> None:
    """A TimeoutError that an adapter raises passes through as what it is."""

    async def main() -> None:
        scene = Scene()

        async def work() -> None:
            raise TimeoutError("of the socket")

        with pytest.raises(TimeoutError, match="of the socket"):
            await scene.waiter.bounded("llm_call", "57/3/0", 5, work())
        assert scene.seen == []

    run_virtual(main())


def test_work_that_answers_at_once_needs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in the same process costs no deadline's timer; work that waits gets one."""

    async def main() -> None:
        scene, loop, timers = Scene(), asyncio.get_running_loop(), []
        call_at = loop.call_at
        monkeypatch.setattr(loop, "call_at", lambda *args, **kw: timers.append(args) or call_at(*args, **kw))

        async def work(turns: int) -> int:
            for _ in range(turns):
                await asyncio.sleep(0)
            return turns

        assert await scene.waiter.bounded("env_step", "57/3", 5, work(0)) == 0
        assert not timers
        assert await scene.waiter.bounded("env_step", "57/3", 5, work(3)) == 3
        assert len(timers) == 1

    run_virtual(main())


def test_whatever_reaches_the_task_reaches_the_bounded_work() -> None:
    """The work sees results, errors and cancellations of all that it awaits, as if it were awaited without bound."""

    async def main() -> None:
        scene, loop = Scene(), asyncio.get_running_loop()
        seen: list[object] = []
        first, second = loop.create_future(), loop.create_future()

        async def work() -> str:
            seen.append(await first)
            try:
                await second
            except ValueError as error:
                seen.append(str(error))
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                seen.append("cancelled")
                await asyncio.sleep(1)  # cleaning up may wait too
                raise
            return "never"

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(scene.waiter.bounded("llm_call", "57/3/0", 50, work()))
            await asyncio.sleep(0)
            first.set_result(1)
            await asyncio.sleep(1)
            second.set_exception(ValueError("two"))
            await asyncio.sleep(1)
            task.cancel()
        assert seen == [1, "two", "cancelled"]
        assert task.cancelled()
        assert loop.time() == 3

    run_virtual(main())


@pytest.mark.parametrize("waits", [False, True])
def test_a_cancellation_from_within_is_an_error_of_the_port(waits: bool) -> None:
    """Work that raises CancelledError by itself, at once or later, does not end its actor without a trace."""

    async def main() -> None:
        scene = Scene()

        async def work() -> None:
            if waits:
                await asyncio.sleep(1)
            raise asyncio.CancelledError

        with pytest.raises(PortError, match="llm_call of 57/3/0 was cancelled from within"):
            await scene.waiter.bounded("llm_call", "57/3/0", 5, work())

    run_virtual(main())


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 4))
def test_no_wakeup_is_lost_however_events_and_waiters_interleave(pauses: list[int], start: int) -> None:
    """Events land before, between and after the check: a waiter always sees the state that it waits for (S2)."""

    async def main() -> None:
        scene = Scene()

        async def publisher() -> None:
            for version, turns in enumerate(pauses, 1):
                for _ in range(turns):
                    await asyncio.sleep(0)
                scene.up(version)

        async def waiting(version: int) -> None:
            for _ in range(start):
                await asyncio.sleep(0)
            await scene.waiter.until(lambda: scene.version(version), lambda: EDGE)

        async with asyncio.TaskGroup() as tasks:
            for version in range(1, len(pauses) + 1):
                tasks.create_task(waiting(version))
            tasks.create_task(publisher())

    run_virtual(main())


def test_the_virtual_loop_turns_an_endless_wait_into_an_exception() -> None:
    """What would hang in real time raises Stalled, so that the test above can fail."""

    async def main() -> None:
        scene = Scene()
        await scene.waiter.until(lambda: scene.version(1), lambda: EDGE)

    with pytest.raises(Stalled):
        run_virtual(main())


def test_durable_waits_for_the_disk_and_is_named() -> None:
    """Without a writer everything is durable at once, and nothing is logged for it."""

    async def main() -> None:
        scene = Scene()
        record = scene.waiter.publish(StopRequested(reason="interrupted"))
        await scene.waiter.durable(record, deadline_s=1)
        weights = scene.waiter.publish(WeightsPublished(version=0, path="", size_bytes=0, seconds=0))
        await scene.waiter.durable(weights, deadline_s=1)
        assert not [event for event in scene.seen if isinstance(event, Blocked)]

    run_virtual(main())
