"""Weights on their way to another machine of a cluster: whole, once, again if they are lost, and gone afterwards.

Each test is carried out by a controller in a process of its own, which is this file: see `played`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from ray_clusters import two_nodes
from ray_controllers import ENDED_S, HERE, TARGETS, configured, ended, wait_ended

from eventrain.adapters.launching import Worker
from eventrain.adapters.ray import RayLauncher, couriers
from eventrain.adapters.worker import RemoteError

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(240)]

SIZE = couriers.PART_BYTES * (couriers.PARTS + 2) + 17
"""More parts than are on their way at a time, and one of them short."""
TRIES = 2000
SHORT_S = 10.0
"""Enough to start two couriers, and to bring a small file."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Start two nodes; give the address."""
    with two_nodes() as (address, _):
        yield address


def played(scene: Scene, address: str, folder: Path) -> str:
    """Return what a controller says that plays `scene`, which has to go well."""
    done = subprocess.run(
        [sys.executable, __file__, scene.__name__, address, str(folder)],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def courier_of(copy: str) -> int:
    """Return the process that holds a copy."""
    found = re.fullmatch(r"/proc/(\d+)/fd/\d+", copy)
    assert found is not None, copy
    return int(found[1])


def written(folder: Path, size: int = SIZE) -> Path:
    """Return a new file with bytes of which no two parts are alike."""
    path = folder / "v000001.safetensors"
    path.write_bytes(b"".join(number.to_bytes(8, "little") for number in range(size // 8 + 1))[:size])
    return path


def content(path: str | Path) -> bytes:
    """Return what a file or a copy holds."""
    return Path(path).read_bytes()


def copies(courier: int, path: Path) -> list[Path]:
    """Return the descriptors of the copies of `path`, whole or not."""
    links = Path(f"/proc/{courier}/fd").iterdir()
    return [link for link in links if os.path.lexists(link) and path.name in str(link.readlink())]


async def until(condition: Callable[[], object]) -> None:
    """Return once `condition` holds: of a call that is not waited for, Ray tells nobody that it is done."""
    for _ in range(TRIES):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never held")


# What a controller does, with a worker beside the file and one on the other machine


async def brought(launcher: RayLauncher, near: Worker, away: Worker, folder: Path) -> None:
    """Ask twice at once: one copy is made, and outlives the file; forgotten, it is gone."""
    path = written(folder)
    wanted = content(path)
    assert await near.reach(str(path)) == str(path)
    one, other = await asyncio.gather(away.reach(str(path)), away.reach(str(path)))
    assert one == other
    assert content(one) == wanted
    assert await away.call("size_of", path=one) == SIZE
    path.unlink()
    assert await away.reach(str(path)) == one
    launcher.forget(str(path))
    await until(lambda: not os.path.lexists(one))
    assert not ended(courier_of(one))


async def lost(launcher: RayLauncher, near: Worker, away: Worker, folder: Path) -> None:
    """Kill the courier: its copies go with it, and who asks next has a new one."""
    path = written(folder)
    one = await away.reach(str(path))
    os.kill(courier_of(one), signal.SIGKILL)
    assert ended(courier_of(one), ENDED_S)
    again = await away.reach(str(path))
    assert courier_of(again) != courier_of(one)
    assert content(again) == content(path)


async def cancelled(launcher: RayLauncher, near: Worker, away: Worker, folder: Path) -> None:
    """Stop waiting in the middle: half a copy is not taken for whole, and leaves nothing."""
    small, path = folder / "small", written(folder)
    small.write_bytes(b"small")
    courier = courier_of(await away.reach(str(small)))
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(away.reach(str(path)))
        await until(lambda: copies(courier, path))
        asking.cancel()
    await until(lambda: not copies(courier, path))
    assert content(await away.reach(str(path))) == content(path)


async def refused(launcher: RayLauncher, near: Worker, away: Worker, folder: Path) -> None:
    """Ask for a file that is not there, and a courier that hangs: one line says what is wrong, and another is made."""
    path = written(folder, 1000)
    copy = await away.reach(str(path))
    for what, wanted in ((folder / "none", "FileNotFoundError: "), (path, f"within {SHORT_S:g} s")):
        if what == path:
            launcher.forget(str(path))
            await until(lambda: not os.path.lexists(copy))
            os.kill(courier_of(copy), signal.SIGSTOP)
        try:
            await away.reach(str(what))
        except RemoteError as error:
            (line,) = error.message.splitlines()
            assert line.startswith(f"{what} could not be brought to another machine"), line
            assert wanted in line, line
        else:
            raise AssertionError(f"{what} was brought")
    assert content(await away.reach(str(path))) == content(path)


async def killed(launcher: RayLauncher, near: Worker, away: Worker, folder: Path) -> None:
    """Die with a copy."""
    print(json.dumps([courier_of(await away.reach(str(written(folder))))]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


Scene = Callable[[RayLauncher, Worker, Worker, Path], Awaitable[None]]
SCENES: dict[str, Scene] = {scene.__name__: scene for scene in (brought, lost, cancelled, refused, killed)}


@pytest.mark.parametrize("scene", [brought, lost, cancelled, refused])
def test_a_file_reaches_another_machine(scene: Scene, address: str, tmp_path: Path) -> None:
    """Each scene says of itself what holds."""
    played(scene, address, tmp_path)


def test_no_copy_outlives_a_controller_that_is_killed(address: str, tmp_path: Path) -> None:
    """The couriers end with it, and what they held in memory with them."""
    with pytest.raises(AssertionError, match=r"\[\d+\]") as died:
        played(killed, address, tmp_path)
    wait_ended(json.loads(str(died.value).splitlines()[0]), ENDED_S)


async def main(scene: Scene, address: str, folder: Path) -> None:
    """Play `scene` in the cluster at `address`."""
    config = configured(address=address, engine_cpus=0.9, environment_cpus=0.9, learner_cpus=0)
    if scene is refused:
        config = config.model_copy(
            update={"deadlines": config.deadlines.model_copy(update={"weight_sync_s": SHORT_S})}
        )
    launcher = RayLauncher(config, modules=TARGETS)
    try:
        workers = [
            await launcher.start("worker_target:make", {}, name=name, log_path=None, deadline_s=60)
            for name in ("engine-0", "environment-0")
        ]
        near, away = sorted(workers, key=lambda worker: worker.node != "")
        assert away.node
        await scene(launcher, near, away, folder)
    finally:
        await launcher.close()


if __name__ == "__main__":
    asyncio.run(main(SCENES[sys.argv[1]], sys.argv[2], Path(sys.argv[3])))
