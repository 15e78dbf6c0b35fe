"""The seeded loop: other orders, the same ones again, and nothing that asyncio does not allow."""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from seeded_programs import (
    Broken,
    ab_deadlock,
    callbacks_in_order,
    check_then_act,
    lost_wakeup,
    workers,
)

from eventrain.adapters.simulated.seeded_loop import Endless, run_seeded, seeded_loop
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.simulated.virtual_time import Stalled, run_virtual

ROOT = Path(__file__).parent.parent.parent
Program = Callable[[], Coroutine[Any, Any, object]]


def fails(program: Program, tape: Tape) -> bool:
    try:
        run_seeded(program(), tape)
    except (Stalled, Broken):
        return True
    return False


@pytest.mark.parametrize("program", [check_then_act, lost_wakeup, ab_deadlock], ids=lambda p: p.__name__)
def test_a_planted_race_is_found_and_played_back(program: Program) -> None:
    """Asyncio's own order hides the race, some of 100 seeds show it, and their tapes show it again."""
    run_virtual(program())
    assert not fails(program, Tape(0, {}))
    tapes = [Tape(seed) for seed in range(100)]
    found = [tape for tape in tapes if fails(program, tape)]
    assert 1 <= len(found) < 100
    for tape in found:
        assert fails(program, tape.replayed())


def test_code_that_relies_on_the_order_of_call_soon_is_right() -> None:
    """No seed makes correct code fail."""
    assert not any(fails(callbacks_in_order, Tape(seed)) for seed in range(300))


def test_zeros_are_asyncios_own_order() -> None:
    """Under a tape of zeros a program does what it does on the plain loop."""
    assert run_seeded(workers(), Tape(0, {}))[0] == run_virtual(workers())


def test_a_tape_plays_the_same_run_again() -> None:
    """A seed gives one digest, its tape gives the same, other seeds give others."""
    tapes = [Tape(seed) for seed in range(20)]
    digests = [run_seeded(workers(), tape)[1] for tape in tapes]
    assert [run_seeded(workers(), Tape(seed))[1] for seed in range(20)] == digests
    assert [run_seeded(workers(), tape.replayed())[1] for tape in tapes] == digests
    assert len(set(digests)) == 20


def test_timers_fire_late_and_never_early() -> None:
    """A sleep takes at least its time, and at most the jitter longer."""

    async def sleeps() -> list[float]:
        loop, took = asyncio.get_running_loop(), []
        for _ in range(50):
            began = loop.time()
            await asyncio.sleep(1)
            took.append(loop.time() - began)
        return took

    took, _ = run_seeded(sleeps(), Tape(1), jitter_s=0.5)
    assert all(0.999999 <= seconds <= 1.500001 for seconds in took)
    assert len({round(seconds, 6) for seconds in took}) > 2
    assert run_seeded(sleeps(), Tape(1), jitter_s=0.0)[0] == [1.0] * 50


def test_a_stall_names_who_waits() -> None:
    """When nothing can ever run again, the exception says which tasks wait."""

    async def wait() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.Event().wait(), name="sleeper")

    with pytest.raises(Stalled, match="every task waits, and no timer runs: task 0, sleeper"):
        run_seeded(wait(), Tape(0))


def test_what_never_ends_is_ended() -> None:
    """A loop that only spins is stopped after its limit of steps."""

    async def spin() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with (
        seeded_loop(Tape(0), steps_max=1000) as loop,
        pytest.raises(Endless, match="no end after 1,000 steps"),
    ):
        loop.run_until_complete(spin())


def test_threads_are_refused() -> None:
    """A thread would bring real time and real chance in."""

    async def thread() -> None:
        await asyncio.to_thread(len, "")

    with pytest.raises(RuntimeError, match="a simulation has no threads: run_in_executor is refused"):
        run_seeded(thread(), Tape(0))


def test_exceptions_that_nobody_awaits_are_kept() -> None:
    """What asyncio would only print is there to be judged."""

    async def broken() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with seeded_loop(Tape(0)) as loop:
        loop.run_until_complete(broken())
        assert ["ZeroDivisionError" in error for error in loop.errors] == [True]


def pythons() -> list[str]:
    """Return the interpreters of this machine that the project runs on, and which are not the one that runs now."""
    homes = {Path(sys.base_prefix).parent}
    near = itertools.chain.from_iterable(sorted(home.glob("3.*/bin/python3")) for home in homes)
    named = [shutil.which(f"python3.{minor}") for minor in range(11, 15)]
    found: dict[str, str] = {}
    for path in [*map(str, near), *filter(None, named)]:
        said = subprocess.run(
            [path, "-c", "import sys, platform; print(platform.python_version(), sys.version_info >= (3, 11))"],
            capture_output=True, text=True, check=False, timeout=20,
        )  # fmt: skip
        version, _, new_enough = said.stdout.strip().partition(" ")
        if said.returncode == 0 and new_enough == "True":
            found.setdefault(version, path)
    found.pop(platform.python_version(), None)
    return list(found.values())


def digests(python: str, folder: Path, hash_seed: int) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": str(hash_seed)}
    program = ROOT / "tests" / "support" / "seeded_programs.py"
    run = subprocess.run(
        [python, str(program), "30"], capture_output=True, text=True, env=environment, check=True, timeout=60
    )
    return run.stdout


def test_the_digest_depends_on_nothing_but_the_seed(tmp_path: Path) -> None:
    """Every CPython that is installed, under three hash seeds, takes the same 30 schedules."""
    (tmp_path / "eventrain").mkdir()
    (tmp_path / "eventrain" / "adapters").symlink_to(ROOT / "adapters")
    here = digests(sys.executable, tmp_path, 0)
    assert len(here.splitlines()) == 30
    assert {digests(sys.executable, tmp_path, hash_seed) for hash_seed in (1, 777)} == {here}
    for python in pythons():
        assert digests(python, tmp_path, 2) == here, python
