"""What kills a vLLM, or hangs it: every such engine is found to be gone, and leaves no process behind."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm_models import ask

from eventrain.adapters.vllm import guard
from eventrain.adapters.vllm.linked import LinkedEngine
from eventrain.core.ports import EngineError, EngineGone, PortError, Weights

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(360)]

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def start(
    make_engine: Callable[..., LinkedEngine], weights: list[Weights]
) -> Iterator[Callable[[str], tuple[asyncio.Runner, Any]]]:
    """Return a function that starts an engine of a kind, which a test may kill, on an event loop."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())

        def start_one(kind: str) -> tuple[asyncio.Runner, Any]:
            engine = make_engine(kind)
            stack.callback(lambda: runner.run(engine.close()))
            runner.run(engine.start(weights[0]))
            return runner, engine

        yield start_one


def engine_core(pid: int) -> int:
    """Return the process of vLLM's scheduler, below process `pid`."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, children):
        if b"EngineCore" in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    raise AssertionError(f"{pid} has no engine among {children}")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Hold process `pid` up for the length of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def outcome(work: Coroutine[Any, Any, Any]) -> BaseException | None:
    """Return what `work` raises."""
    try:
        await work
    except PortError as error:
        return error
    return None


def ended(pid: int) -> bool:
    """Return whether process `pid` ends within twenty seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 20)[0])
    finally:
        os.close(handle)


@pytest.mark.parametrize("kind", ["vllm", "vllm_server"])
def test_an_engine_whose_scheduler_dies_is_gone_with_all_that_was_asked_of_it(
    kind: str, start: Any, weights: list[Weights]
) -> None:
    """A request in flight and a later call to its workers end, which vLLM may leave unanswered; it starts anew.

    What is left of it ends when it is closed.
    """
    runner, engine = start(kind)

    async def kill() -> list[BaseException | None]:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(outcome(engine.generate(ask("in flight", PROMPT, 1200))))
            await asyncio.sleep(0)
            os.kill(engine_core(engine.pid), signal.SIGKILL)
        return [call.result(), await outcome(engine.begin_update(weights[1], 1))]

    in_flight, update = runner.run(kill())
    assert isinstance(in_flight, EngineGone)
    assert isinstance(update, EngineGone)
    runner.run(engine.start(weights[1]))
    assert runner.run(engine.generate(ask("anew", PROMPT, 4))).version_spans == ((1, 4),)
    pid, core = engine.pid, engine_core(engine.pid)
    runner.run(engine.close())
    assert ended(pid)
    assert ended(core)


def test_an_engine_that_is_wedged_is_gone_though_its_health_is_fine(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose scheduler is stopped answers its health check with 200; what it does not do is process tokens."""
    monkeypatch.setattr(guard, "LOOK_S", 0.2)
    runner, engine = start("vllm_server")
    engine._link._stalled_s = 3.0
    with stopped(engine_core(engine.pid)):
        runner.run(engine._link._link.check_alive())  # it sees nothing wrong
        with pytest.raises(EngineGone, match="1 requests in flight and has not processed a token"):
            runner.run(engine.generate(ask("stuck", PROMPT, 1200)))


def test_a_call_that_hangs_expires_and_the_engine_is_gone(start: Any, weights: list[Weights]) -> None:
    """Every call has a deadline, at which the engine is given up, with what else is asked of it."""
    runner, engine = start("vllm")
    engine._link._call_s = 2.0
    runner.run(engine.pause("pause"))
    with stopped(engine_core(engine.pid)):
        with pytest.raises(EngineGone, match="has not answered 'eventrain_begin' for 2 s"):
            runner.run(engine.begin_update(weights[1], 1))
        with pytest.raises(EngineGone, match="has not answered"):
            runner.run(engine.generate(ask("later", PROMPT)))


def test_a_server_that_runs_already_belongs_to_the_run_that_started_last(
    start: Any, make_engine: Callable[..., LinkedEngine], weights: list[Weights], tmp_path: Path
) -> None:
    """A server at a URL is checked against the model, taken over, and left running; its former owner is refused.

    Neither does that one take it back when it is started again.
    """
    runner, first = start("vllm_server")
    url = first._process.url
    other = make_engine("vllm_server", url, model=tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 65}')
    with pytest.raises(EngineGone, match=r"serves another model: its vocab_size is 64, that of .* is 65"):
        runner.run(other.start(weights[1]))
    second = make_engine("vllm_server", url)
    runner.run(second.start(weights[1]))
    assert runner.run(second.generate(ask("taken over", PROMPT, 4))).version_spans == ((1, 4),)
    runner.run(first.pause("pause"))
    with pytest.raises(EngineError, match="another run has taken this engine over"):
        runner.run(first.begin_update(weights[0], 5))
    runner.run(first.resume())
    runner.run(second.close())
    assert runner.run(second.start(weights[0])).slots == 8  # as after a loss of its own
    assert runner.run(second.generate(ask("still up", PROMPT, 4))).version_spans == ((0, 4),)
    with pytest.raises(EngineGone, match="another one has taken it over"):
        runner.run(first.generate(ask("taken away", PROMPT, 4)))
    first._url, process, first._process = url, first._process, None
    try:
        with pytest.raises(EngineGone, match="did not start: another run has taken this engine over"):
            runner.run(first.start(weights[1]))
    finally:
        first._process = process
    assert runner.run(second.generate(ask("left alone", PROMPT, 4))).version_spans == ((0, 4),)
    runner.run(second.close())


@pytest.mark.parametrize("kind", ["vllm", "vllm_server"])
def test_no_process_outlives_a_controller_that_is_killed(
    kind: str, model_path: Path, weights: list[Weights], tmp_path: Path
) -> None:
    """Whatever the run has started of vLLM ends with the run, however that ends."""
    program = f"""
        import asyncio, os
        from pathlib import Path
        from eventrain.adapters.engine_setup import EngineSetup
        from eventrain.adapters.launching import LocalLauncher
        from eventrain.adapters.vllm.engine import VllmEngine
        from eventrain.adapters.vllm.server import VllmServerEngine
        from eventrain.core.config import DeadlineSection, EngineSection, RolloutSection
        from eventrain.core.ports import Weights

        async def main():
            section = EngineSection(kind="{kind}", python=os.environ["EVENTRAIN_VLLM_PYTHON"], device="cpu")
            rollout = RolloutSection(context_tokens=2048, max_tokens=8)
            log, deadlines = Path("{tmp_path}/engine.log"), DeadlineSection()
            setup = EngineSetup("engine-0", Path("{model_path}"), section, rollout, log, deadlines)
            engine = VllmEngine(setup, LocalLauncher()) if section.kind == "vllm" else VllmServerEngine(setup)
            await engine.start({weights[0]!r})
            print(engine.pid, flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE
    ) as controller:
        assert controller.stdout is not None
        pid = int(controller.stdout.readline())
        core = engine_core(pid)
        controller.kill()
        assert ended(pid)
        assert ended(core)


def test_a_server_that_hangs_at_its_start_is_given_up(
    make_engine: Callable[..., LinkedEngine], weights: list[Weights], tmp_path: Path
) -> None:
    """A server that does not come up within its deadline is killed, in whatever state it is."""
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    engine: Any = make_engine("vllm_server", start_s=1.0, python=str(sleeper))
    since_s = time.monotonic()
    with pytest.raises(EngineGone, match="did not answer within 1 s"):
        asyncio.run(engine.start(weights[0]))
    assert engine.pid is None
    assert time.monotonic() - since_s < 30


@pytest.mark.parametrize("kind", ["vllm", "vllm_server"])
def test_an_option_that_vllm_does_not_have_is_refused_by_name(
    make_engine: Callable[..., LinkedEngine], weights: list[Weights], kind: str
) -> None:
    """One line says which one it is."""
    engine = make_engine(kind, options={"max_num_batched_token": 512})
    with pytest.raises(EngineGone, match=r"max.num.batched.token\b") as refused:
        asyncio.run(engine.start(weights[0]))
    assert "\n" not in str(refused.value)


def test_an_option_of_vllm_is_handed_on(
    make_engine: Callable[..., LinkedEngine], weights: list[Weights]
) -> None:
    """What eventrain has no setting for can be set all the same; what it says itself cannot be set twice."""
    with pytest.raises(ValueError, match=r"engine\.options\.max_num_seqs.*said by engine\.slots"):
        make_engine("vllm", options={"max_num_seqs": 3})
    arguments = make_engine("vllm", options={"enable_prefix_caching": False})._arguments  # type: ignore[attr-defined]
    assert arguments["enable_prefix_caching"] is False
