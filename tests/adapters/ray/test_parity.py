"""A worker is a worker: what holds for a process of this machine holds for an actor of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eventrain.adapters.launching import Launcher, LocalLauncher, Worker
from eventrain.adapters.worker import RemoteError, WorkerFailed, WorkerGone

pytestmark = [pytest.mark.slow, pytest.mark.ray]

ENV = {"PYTHONPATH": str(Path(__file__).parent.parent), "WORKER_VARIABLE": "41"}
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["local", "ray"])
def place(request: pytest.FixtureRequest) -> Launcher:
    """Give a launcher of each kind."""
    return LocalLauncher() if request.param == "local" else request.getfixturevalue("launcher")


async def started(
    place: Launcher, make: str = "make", log_path: Path | None = None, deadline_s: float = 60, **settings: Any
) -> Worker:
    """Start a worker with an object of worker_target.py."""
    return await place.start(
        f"worker_target:{make}", settings, name="engine-0", log_path=log_path, deadline_s=deadline_s, env=ENV
    )


@asynccontextmanager
async def worker(place: Launcher, **settings: Any) -> AsyncIterator[Worker]:
    """Give a worker for the length of a block."""
    one = await started(place, **settings)
    try:
        yield one
    finally:
        await one.close(5)


async def until(one: Worker, method: str, value: int) -> None:
    """Return once `method` answers `value`: calls of an actor may begin in another order than they were made in."""
    async with asyncio.timeout(30):
        while await one.call(method) != value:
            pass


async def gone(one: Worker, method: str, **params: Any) -> str:
    """Return the text of the WorkerGone that the call raises."""
    with pytest.raises(WorkerGone) as caught:
        await one.call(method, **params)
    return str(caught.value)


def test_values_go_both_ways_and_errors_keep_their_class(place: Launcher, run: Run) -> None:
    """Settings, parameters and bytes arrive as they went; what a method raises keeps its class name and text."""

    async def main() -> None:
        async with worker(place, depth=3) as one:
            answer = await one.call("echo", raw=b"\x00\xff" * 500_000, text="ü", many=[1, 2.5])
            assert answer == {
                "settings": {"depth": 3}, "raw": b"\x00\xff" * 500_000, "text": "ü", "many": [1, 2.5],
            }  # fmt: skip
            with pytest.raises(RemoteError, match=r"^Refused: not this one$") as caught:
                await one.call("refuse")
            assert (caught.value.kind, caught.value.message) == ("Refused", "not this one")
            with pytest.raises(RemoteError, match="result cannot be sent"):
                await one.call("unsendable")
            with pytest.raises(RemoteError, match="'_secret' is not public"):
                await one.call("_secret")
            with pytest.raises(TypeError):
                await one.call("echo", thing=object())
            assert (await one.call("ids"))["variable"] == 41
            assert one.pid is not None
            assert one.node == ""

    run(main())


def test_calls_run_side_by_side_and_can_be_cancelled(place: Launcher, run: Run) -> None:
    """A computing method keeps no coroutine waiting; an expired and a cancelled call both end in the worker."""

    async def main() -> None:
        async with worker(place) as one, asyncio.TaskGroup() as group:
            slow = group.create_task(one.call("block", seconds=0.5))
            assert await one.call("cancellations") == 0
            assert not slow.done()
            assert await slow == "worker_0"
            with pytest.raises(TimeoutError):
                await one.call("hang", deadline_s=1)
            await until(one, "cancellations", 1)
            hanging = group.create_task(one.call("hang"))
            await until(one, "under_way", 1)
            hanging.cancel()
            await until(one, "cancellations", 2)

    run(main())


def test_many_calls_hang_and_one_is_answered(place: Launcher, run: Run) -> None:
    """A worker with a thousand calls under way still answers, and hears of each that it is cancelled."""

    async def main() -> None:
        async with worker(place) as one:
            async with asyncio.TaskGroup() as group:
                hanging = [group.create_task(one.call("hang")) for _ in range(1200)]
                await until(one, "under_way", 1200)
                assert await one.call("cancellations") == 0
                for task in hanging:
                    task.cancel()
            await until(one, "under_way", 0)

    run(main())


def test_it_says_why_it_did_not_start(place: Launcher, run: Run) -> None:
    """An error while the object is made, a wrong target and a late start raise WorkerFailed in one line."""

    async def main() -> None:
        with pytest.raises(
            WorkerFailed, match=r"^engine-0 did not start: FileNotFoundError: no model there$"
        ) as caught:
            await started(place, fail="no model there")
        assert caught.value.kind == "FileNotFoundError"
        with pytest.raises(WorkerFailed, match="has no attribute 'no_such'"):
            await started(place, "no_such")
        with pytest.raises(WorkerFailed, match=r"^engine-0 was not up within 1 s"):
            await started(place, "make_slowly", deadline_s=1, seconds=60)
        async with worker(place) as one:  # its place is free again
            assert await one.call("cancellations") == 0

    run(main())


def test_a_worker_that_ends_itself_fails_every_call(place: Launcher, run: Run, tmp_path: Path) -> None:
    """Pending and later calls raise WorkerGone with the same line, in which its last words stand."""

    async def main() -> None:
        one = await started(place, log_path=tmp_path / "logs" / "one.log")
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(gone(one, "hang"))
            dying = group.create_task(gone(one, "die", words="out of luck"))
            watching = group.create_task(one.wait_gone())
        said = watching.result()
        assert said.startswith(f"engine-0 (pid {one.pid}")
        assert "ended" in said
        assert "out of luck" in said
        assert "\n" not in said
        assert hanging.result() == dying.result() == said == await gone(one, "echo") == await one.wait_gone()
        assert not one.alive
        await one.close(5)

    run(main())
    assert "out of luck" in (tmp_path / "logs" / "one.log").read_text()


def test_a_killed_worker_is_noticed_and_can_be_replaced(place: Launcher, run: Run) -> None:
    """SIGKILL ends every pending call, and another worker of that name can be started."""

    async def main() -> None:
        async with worker(place) as one:
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(gone(one, "hang")) for _ in range(10)]
                await one.call("cancellations")
                assert one.pid is not None
                os.kill(one.pid, signal.SIGKILL)
            assert len({call.result() for call in calls}) == 1
        async with worker(place) as another:
            assert await another.call("cancellations") == 0

    run(main())


def test_close_ends_it_and_what_is_pending(place: Launcher, run: Run) -> None:
    """Close is idempotent, ends pending calls in WorkerGone, and ends a stubborn worker as well."""

    async def main() -> None:
        one = await started(place)
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(gone(one, "hang"))
            await one.call("cancellations")
            await one.close(10)
        assert "engine-0" in hanging.result()
        assert not one.alive
        await one.close(10)
        stubborn = await started(place, "make_stubborn")
        await stubborn.close(0.5)
        assert not stubborn.alive
        with pytest.raises(ProcessLookupError):
            os.kill(stubborn.pid or 0, 0)

    run(main())
