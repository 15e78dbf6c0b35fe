"""What actors do for a run: reports, engines, other interpreters, and places that there are not."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import venv
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from ray_controllers import configured

from eventrain.adapters.ray import ClusterRefused, RayCluster, RayLauncher
from eventrain.adapters.ray.reports import collect
from eventrain.adapters.worker import WorkerFailed
from eventrain.events.types import Event, WorkerLogged

pytestmark = [pytest.mark.slow, pytest.mark.ray]

Run = Callable[[Coroutine[Any, Any, None]], None]


def test_a_warning_comes_home_with_its_time(launcher: RayLauncher, run: Run) -> None:
    """It is one line, and on one machine the clocks agree within the error that is said."""

    async def main() -> None:
        worker = await launcher.start(
            "worker_target:make", {}, name="engine-0", log_path=None, deadline_s=60
        )
        home: asyncio.Future[WorkerLogged] = asyncio.get_running_loop().create_future()

        def publish(event: Event) -> None:
            if isinstance(event, WorkerLogged) and not home.done():
                home.set_result(event)

        async with asyncio.TaskGroup() as group:
            collecting = group.create_task(collect(launcher.reporting, publish))
            await worker.call("warn", text="disk is\nalmost full")
            async with asyncio.timeout(20):
                event = await home
            collecting.cancel()
        await worker.close(5)
        assert (event.level, event.line) == ("warning", "target: disk is almost full")
        assert event.origin.worker == "engine-0"
        assert abs(event.origin.offset_ns) <= event.origin.error_ns + 1_000_000

    run(main())


def test_another_interpreter_is_used_and_one_that_is_not_there_is_told(
    launcher: RayLauncher, run: Run, tmp_path: Path
) -> None:
    """An interpreter with the same Ray and eventrain beside it runs the actor; none is one line at the deadline."""
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (tmp_path / "other" / "lib" / version / "site-packages" / "same.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    python = tmp_path / "other" / "bin" / "python"

    async def main() -> None:
        worker = await launcher.start(
            "worker_target:make", {}, name="engine-0", log_path=None, deadline_s=60, python=str(python)
        )
        assert await worker.call("prefix") == str(tmp_path / "other")
        await worker.close(5)
        nowhere = str(tmp_path / "nowhere")
        with pytest.raises(WorkerFailed, match=r"^engine-0 was not up within 3 s; is Ray installed beside "):
            await launcher.start(
                "worker_target:make", {}, name="engine-0", log_path=None, deadline_s=3, python=nowhere
            )

    run(main())


def test_a_worker_that_nobody_asked_for_has_no_place(launcher: RayLauncher, run: Run) -> None:
    """The refusal names those that there are; a second cluster in one process is refused as well."""

    async def main() -> None:
        with pytest.raises(
            WorkerFailed,
            match=r"engine-7 has no place in the cluster; there are: engine-0, learner-0, environment-0$",
        ):
            await launcher.start("worker_target:make", {}, name="engine-7", log_path=None, deadline_s=60)
        with pytest.raises(ClusterRefused, match="connected to a Ray cluster already"):
            await RayCluster(configured()).connect()
        worker = await launcher.start(
            "worker_target:make", {}, name="engine-0", log_path=None, deadline_s=60
        )  # the refused one has taken nothing away
        await worker.close(5)

    run(main())
