"""Worker processes, with real children."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eventrain.adapters.worker import RemoteError, WorkerFailed, WorkerGone, WorkerProcess

HERE = Path(__file__).parent
ENV = {"PYTHONPATH": str(HERE), "WORKER_VARIABLE": "41"}


async def start(make: str = "make", log_path: Path | None = None, **settings: Any) -> WorkerProcess:
    """Start a child with an object of worker_target.py."""
    return await WorkerProcess.start(
        f"worker_target:{make}", settings, name="thing", log_path=log_path, deadline_s=30, env=ENV
    )


@asynccontextmanager
async def worker(**settings: Any) -> AsyncIterator[WorkerProcess]:
    """Give a child for the length of a block."""
    child = await start(**settings)
    try:
        yield child
    finally:
        await child.close(5)


def ended(pid: int, timeout_s: float = 30) -> bool:
    """Return whether process `pid`, a child of ours or not, has ended, waiting for it."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def test_values_and_bytes_go_both_ways_untouched() -> None:
    """Settings and parameters reach the child, and bytes come back as they went."""

    async def main() -> None:
        async with worker(depth=3) as child:
            answer = await child.call("echo", raw=b"\x00\xff" * 100_000, text="ü", none=None, many=[1, 2.5])
            assert answer == {
                "settings": {"depth": 3},
                "raw": b"\x00\xff" * 100_000,
                "text": "ü",
                "none": None,
                "many": [1, 2.5],
            }

    asyncio.run(main())


def test_errors_keep_their_class_and_text() -> None:
    """What a method raises arrives as its class name and its text, in one line."""

    async def main() -> None:
        async with worker() as child:
            with pytest.raises(RemoteError, match=r"^Refused: not this one$") as caught:
                await child.call("refuse")
            assert (caught.value.kind, caught.value.message) == ("Refused", "not this one")
            with pytest.raises(RemoteError, match="result cannot be sent"):
                await child.call("unsendable")
            with pytest.raises(RemoteError, match="'_secret' is not public"):
                await child.call("_secret")
            with pytest.raises(TypeError):
                await child.call("echo", thing=object())
            assert (await child.call("echo", after=1))["after"] == 1

    asyncio.run(main())


def test_a_computing_method_does_not_keep_others_from_answering() -> None:
    """While a plain method runs in the child's thread, its coroutines answer."""

    async def main() -> None:
        async with worker() as child, asyncio.TaskGroup() as group:
            slow = group.create_task(child.call("block", seconds=0.3))
            assert await child.call("cancellations") == 0
            assert not slow.done()
            assert await slow == "worker_0"

    asyncio.run(main())


def test_cancelling_a_call_cancels_it_in_the_child() -> None:
    """A cancelled and an expired call both end in the child, and the worker serves on."""

    async def main() -> None:
        async with worker() as child:
            with pytest.raises(TimeoutError):
                await child.call("hang", deadline_s=0.2)
            assert await child.call("cancellations") == 1
            async with asyncio.TaskGroup() as group:
                hanging = group.create_task(child.call("hang"))
                await child.call("cancellations")
                hanging.cancel()
            assert await child.call("cancellations") == 2

    asyncio.run(main())


def test_the_child_says_why_it_did_not_start() -> None:
    """An error while the object is made, or a wrong target, is raised as WorkerFailed with its text."""

    async def main() -> None:
        with pytest.raises(
            WorkerFailed, match=r"^thing did not start: FileNotFoundError: no model there$"
        ) as caught:
            await start(fail="no model there")
        assert caught.value.kind == "FileNotFoundError"
        with pytest.raises(WorkerFailed, match="ModuleNotFoundError"):
            await WorkerProcess.start("no_such:make", {}, name="x", log_path=None, deadline_s=30)

    asyncio.run(main())


def test_a_child_that_is_late_is_killed() -> None:
    """A start past its deadline raises WorkerFailed and leaves no process, and so does a cancelled one."""

    async def main() -> None:
        before = children()
        with pytest.raises(WorkerFailed, match=r"^thing was not up within 0.2 s$"):
            await WorkerProcess.start(
                "worker_target:make_slowly",
                {"seconds": 60},
                name="thing",
                log_path=None,
                deadline_s=0.2,
                env=ENV,
            )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await start("make_slowly", seconds=60)
        assert children() == before

    asyncio.run(main())


def children() -> set[str]:
    """Return the pids of this process's children."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_an_ended_child_fails_every_call(tmp_path: Path) -> None:
    """Pending and later calls raise WorkerGone with exit code and last words, which are in the log as well."""

    async def main() -> None:
        child = await start(log_path=tmp_path / "logs" / "thing.log")
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(gone(child, "hang"))
            dying = group.create_task(gone(child, "die", words="out of luck"))
            watching = group.create_task(child.wait_gone())
        expected = f"thing (pid {child.pid}) ended with exit code 7: out of luck"
        assert hanging.result() == dying.result() == watching.result() == expected
        assert await gone(child, "echo") == await child.wait_gone() == expected
        await child.close(5)

    asyncio.run(main())
    assert (tmp_path / "logs" / "thing.log").read_text() == "out of luck\n"


async def gone(child: WorkerProcess, method: str, **params: Any) -> str:
    """Return the text of the WorkerGone that the call raises."""
    with pytest.raises(WorkerGone) as caught:
        await child.call(method, **params)
    return str(caught.value)


def test_a_killed_child_is_noticed_by_all_calls() -> None:
    """SIGKILL ends every pending call, naming the signal."""

    async def main() -> None:
        async with worker() as child:
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(gone(child, "hang")) for _ in range(10)]
                await child.call("cancellations")
                os.kill(child.pid, signal.SIGKILL)
            assert {call.result() for call in calls} == {f"thing (pid {child.pid}) was killed by SIGKILL"}

    asyncio.run(main())


def test_what_a_killed_child_has_started_ends_with_it() -> None:
    """It is of the child's process group, and could hold a GPU that nobody else gets then."""

    async def main() -> int:
        async with worker() as child:
            other: int = await child.call("start_other")
            os.kill(child.pid, signal.SIGKILL)
            await child.wait_gone()
            return other

    assert ended(asyncio.run(main()))


def test_what_is_no_exception_is_an_error_of_its_call_alone() -> None:
    """A panic in a library is answered like an exception, and the child goes on."""

    async def main() -> None:
        async with worker() as child:
            with pytest.raises(RemoteError, match="Panic: not an Exception"):
                await child.call("panic")
            assert await child.call("under_way") == 0

    asyncio.run(main())


def test_close_ends_the_child_and_what_is_pending() -> None:
    """Close is idempotent, ends pending calls in WorkerGone, and a stubborn child is ended by a signal."""

    async def main() -> None:
        child = await start()
        async with asyncio.TaskGroup() as group:
            hanging = group.create_task(gone(child, "hang"))
            await child.call("cancellations")
            await child.close(10)
        assert "ended with exit code 0" in hanging.result()
        await child.close(10)
        stubborn = await start("make_stubborn")
        await stubborn.close(0.2)
        assert "was killed by SIGTERM" in await stubborn.wait_gone()
        assert ended(child.pid)
        assert ended(stubborn.pid)

    asyncio.run(main())


def test_the_child_has_a_session_of_its_own_and_ignores_ctrl_c() -> None:
    """A terminal's interrupt cannot reach it, nor does SIGINT end it; the given environment is set."""

    async def main() -> None:
        async with worker() as child:
            os.kill(child.pid, signal.SIGINT)
            assert await child.call("ids") == {"session": child.pid, "parent": os.getpid(), "variable": 41}

    asyncio.run(main())


ORPHANING = """\
import asyncio, sys
from eventrain.adapters.worker import WorkerProcess

async def main():
    child = await WorkerProcess.start("worker_target:make", {}, name="x", log_path=None, deadline_s=30)
    print(child.pid, flush=True)
    await child.call("block", seconds=600)

asyncio.run(main())
"""


def test_the_child_does_not_outlive_a_killed_parent() -> None:
    """When the parent dies without a word, a child in the middle of a computation ends too."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANING], env={**os.environ, **ENV}, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    assert ended(child)
