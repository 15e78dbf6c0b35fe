"""Whole runs with every real part: torch engine and learner processes, the log on disk, and what kills them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventrain.adapters.cli.config_file import load_config
from eventrain.adapters.cli.demo_command import CONFIG_FILE, with_own_model
from eventrain.adapters.simulated.reproduce import reproduce
from eventrain.adapters.wire import build
from eventrain.core.ports import Ports
from eventrain.core.projections import View
from eventrain.core.projections.accounting import Ledger
from eventrain.core.replay.check import check
from eventrain.core.replay.verdict import Agreement
from eventrain.core.run import Run, RunOutcome
from eventrain.events.bus import Bus
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.payload import PayloadStore
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.trajectory import decode_trajectory, int32_list
from eventrain.events.types import (
    EngineLost,
    EngineRestarted,
    EngineUp,
    EnvironmentWorkerLost,
    EnvironmentWorkerRestarted,
    EnvironmentWorkerUp,
    EnvStepStarted,
    EvalCompleted,
    RunFailed,
    StepCompleted,
    SyncAcknowledged,
    TrajectoryCompleted,
    TrajectoryFailed,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SMALL = ["run.steps=6", "rollout.group_size=4", "scheduler.groups_per_step=3", "checkpoint.at_end=false"]


def run_demo(
    path: Path, *settings: str, on_record: Callable[[Record, Ports], None] = lambda record, ports: None
) -> tuple[RunOutcome, list[Record]]:
    """Run the demo's work in `path`; `on_record` sees every record as it happens. Return the log as read back."""
    folder = RunFolder.create(path)
    config = with_own_model(load_config(CONFIG_FILE, [*SMALL, *settings], check_paths=False), folder)
    ports = build(config, folder, CONFIG_FILE.parent)

    async def main() -> RunOutcome:
        with folder.lock() as epoch:
            payloads = PayloadStore(folder.payloads)
            writer = LogWriter(
                folder.events,
                run="demo",
                epoch=epoch,
                first_seq=0,
                segment_bytes=config.log.segment_bytes,
                before_commit=[payloads.sync],
            )
            bus = Bus(ports.clock, writer)
            run = Run(config, ports, bus, payloads)
            records = bus.subscribe("test")

            async def watch() -> None:
                async for batch in records:
                    for record in batch:
                        on_record(record, ports)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(watch())
                outcome = await run.conduct(asyncio.Event())
                bus.close()
            writer.close()
            payloads.close()
            return outcome

    outcome = asyncio.run(main())
    log = list(LogReader(folder.events).records())
    ledger = Ledger()
    for record in log:
        ledger.apply(record)
    assert ledger.breaches == []
    return outcome, log


def of(log: list[Record], kind: type) -> list:
    """Return the events of one kind."""
    return [record.event for record in log if isinstance(record.event, kind)]


def test_the_log_of_the_demo_validates_folds_and_accounts_for_everything(tmp_path: Path) -> None:
    """Every event reads back valid, every group, prompt and nanosecond is accounted for, every token is there."""
    command = [sys.executable, "-m", "eventrain.adapters.cli", "demo", "--run-dir", str(tmp_path / "run")]
    ended = subprocess.run(
        [*command, "--set", "run.steps=12"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    folder = RunFolder.open(tmp_path / "run")
    view, ledger = View(), Ledger()
    trajectories: list[TrajectoryCompleted] = []
    for number, record in enumerate(LogReader(folder.events).records()):
        assert record.seq == number
        view.apply(record)
        ledger.apply(record)
        if isinstance(record.event, TrajectoryCompleted):
            trajectories.append(record.event)
    assert ledger.breaches == []
    assert ledger.groups["trained"] == ledger.dispatched == 12 * 12
    assert ledger.prompts["trained"] == ledger.drawn == 12 * 12
    assert ledger.phase_ns == ledger.wall_ns == sum(view.trainer.phase_ns.values())
    store = PayloadStore(folder.payloads, read_only=True)
    for event in trajectories:
        payload = decode_trajectory(store.get(event.payload))
        versions = [version for version in int32_list(payload.versions) if version >= 0]
        assert versions == [version for version, count in event.version_spans for _ in range(count)]
        assert len(versions) == event.completion_tokens
        parts = event.queue_s + event.llm_s + event.env_setup_s + event.env_s + event.reward_s + event.other_s
        assert parts > 0
    store.close()
    assert len(trajectories) == 12 * 12 * 12


def test_the_demo_learns(tmp_path: Path) -> None:
    """From below half of the optimal policy's score to above 85 % of it, first to last ten steps."""
    command = [sys.executable, "-m", "eventrain.adapters.cli", "demo", "--run-dir", str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert ended.returncode == 0, ended.stderr
    found = re.search(r"of optimal +(\d+) % -> (\d+) %", ended.stdout)
    assert found, ended.stdout
    first, last = map(int, found.groups())
    assert first < 50
    assert last > 85


@pytest.mark.parametrize("mode", ["drain", "pause", "in_flight"])
def test_two_engines_take_every_version(tmp_path: Path, mode: str) -> None:
    """Two real engines follow the learner in every sync mode, an evaluation in between, and none is lost."""
    settings = ["engine.count=2", f"engine.sync_mode={mode}", "eval.every_steps=60", "eval.prompts=4"]
    outcome, log = run_demo(tmp_path / "run", *settings, "run.steps=120")
    assert outcome.outcome == "completed", outcome.message
    up = {event.engine: event.version for event in of(log, EngineUp)}  # the second one may come in the middle
    assert set(up) == {"engine-0", "engine-1"}
    for name, version in up.items():
        taken = [event.version for event in of(log, SyncAcknowledged) if event.engine == name]
        assert taken == list(range(version + 1, 121))
    assert [event.version for event in of(log, EvalCompleted)] == [0, 60, 120]
    assert not of(log, EngineLost)


def test_an_engine_that_is_killed_is_replaced_and_the_run_completes(tmp_path: Path) -> None:
    """A kill -9 of an engine in the middle: what it held is tried again, a new process takes its place."""
    killed: list[int] = []

    def kill(record: Record, ports: Ports) -> None:
        if isinstance(record.event, StepCompleted) and record.event.step == 2 and not killed:
            killed.append(ports.engines[0].pid)  # type: ignore[attr-defined]
            os.kill(killed[0], signal.SIGKILL)

    outcome, log = run_demo(tmp_path / "run", on_record=kill)
    assert outcome.outcome == "completed", outcome.message
    assert len(of(log, EngineLost)) == len(of(log, EngineRestarted)) == 1
    assert [e.version for e in of(log, EngineUp)][1] >= 3
    assert {e.blame for e in of(log, TrajectoryFailed)} <= {"engine", "nobody"}
    assert len(of(log, StepCompleted)) == 6


def test_a_worker_of_environments_that_is_killed_is_replaced_and_the_run_completes(tmp_path: Path) -> None:
    """A kill -9 of one of two workers in the middle: its attempts are made again, and a new process takes its place."""
    workers: dict[str, int | None] = {}
    killed: list[str] = []

    def kill(record: Record, ports: Ports) -> None:
        event = record.event
        if isinstance(event, EnvironmentWorkerUp):
            workers[event.worker] = event.pid
        asked = isinstance(event, EnvStepStarted) and event.call == "step" and record.seq > 300
        if asked and len(workers) == 2 and not killed:
            killed.append(event.worker)
            pid = workers[event.worker]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    outcome, log = run_demo(tmp_path / "run", "environment.workers=2", on_record=kill)
    assert outcome.outcome == "completed", outcome.message
    (lost,) = of(log, EnvironmentWorkerLost)
    assert [lost.worker] == killed
    assert "was killed by SIGKILL" in lost.message
    assert [event.worker for event in of(log, EnvironmentWorkerRestarted)] == killed
    fell = [event for event in of(log, TrajectoryFailed) if event.failure != "cancelled"]
    assert {(event.failure, event.blame) for event in fell} == {("env_lost", "infrastructure")}
    assert {event.worker for event in of(log, EnvStepStarted)} == {"environment-0", "environment-1"}
    assert len(of(log, StepCompleted)) == 6
    assert isinstance(check(log), Agreement)
    again = reproduce(lambda: log)
    assert again.difference is None
    for name in workers:
        assert (tmp_path / "run" / "logs" / f"{name}.log").is_file()


def test_an_endless_loop_in_a_reward_costs_one_worker_and_not_the_run(tmp_path: Path) -> None:
    """The worker that it blocks does not answer any more and is replaced, while the other one goes on."""
    (tmp_path / "loops.py").write_text(
        "import os\n"
        "from eventrain.adapters.environments.number_hunt import NumberHunt\n"
        "class Loops(NumberHunt):\n"
        "    async def reward(self):\n"
        f"        try: os.close(os.open({str(tmp_path / 'looped')!r}, os.O_CREAT | os.O_EXCL))\n"
        "        except FileExistsError: return await super().reward()\n"
        "        while True: pass\n"
    )
    from eventrain.adapters.demo.model import build_model_folder

    build_model_folder(tmp_path / "model")
    text = CONFIG_FILE.read_text().replace('"number_hunt"', '"loops:Loops"')
    (tmp_path / "run.toml").write_text(text)
    command = [sys.executable, "-m", "eventrain.adapters.cli", "run", "run.toml", "--run-dir", "run"]
    for setting in (*SMALL, "environment.workers=2", "deadlines.reward_s=2", "deadlines.env_reset_s=2",
                    "deadlines.env_step_s=2", "deadlines.close_s=2", "failures.strikes_max=9"):  # fmt: skip
        command += ["--set", setting]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert ended.returncode == 0, ended.stderr
    log = list(LogReader(tmp_path / "run" / "events").records())
    (lost,) = of(log, EnvironmentWorkerLost)
    assert lost.message == "no answer within 2 s: something in an environment or a reward blocks it"
    assert [event.worker for event in of(log, EnvironmentWorkerRestarted)] == [lost.worker]
    assert len(of(log, StepCompleted)) == 6


def test_a_learner_that_is_killed_ends_the_run_with_its_signal(tmp_path: Path) -> None:
    """A kill -9 of the learner: the run fails at once and says what happened."""

    def kill(record: Record, ports: Ports) -> None:
        if isinstance(record.event, StepCompleted) and record.event.step == 1:
            os.kill(ports.learner.pid, signal.SIGKILL)  # type: ignore[attr-defined]

    outcome, log = run_demo(tmp_path / "run", on_record=kill)
    (failed,) = of(log, RunFailed)
    assert (outcome.outcome, failed.error) == ("failed", "learner_lost")
    assert "SIGKILL" in failed.message or "signal 9" in failed.message


def test_an_environment_that_raises_ends_the_run_as_its_first_cause(tmp_path: Path) -> None:
    """Above the failure share the command exits 1 with one line that names the user's own exception."""
    (tmp_path / "broken.py").write_text(
        "from eventrain.core.ports import Message, StepOutcome\n"
        "class Broken:\n"
        "    async def reset(self, item, seed): return [Message('user', 'guess 1 to 12')]\n"
        "    async def step(self, action): raise ConnectionError('tool server at :9000 refused')\n"
        "    async def reward(self): return 0.0\n"
    )
    from eventrain.adapters.demo.model import build_model_folder

    build_model_folder(tmp_path / "model")
    text = re.sub(r"options = .*", "", CONFIG_FILE.read_text()).replace('"number_hunt"', '"broken:Broken"')
    (tmp_path / "run.toml").write_text(text)
    command = [sys.executable, "-m", "eventrain.adapters.cli", "run", "run.toml", "--run-dir", "run"]
    command += ["--set", "failures.backoff_s=0.01"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "ConnectionError: tool server at :9000 refused" in ended.stderr
    log = list(LogReader(tmp_path / "run" / "events").records())
    (failed,) = of(log, RunFailed)
    assert isinstance(log[failed.first_cause].event, TrajectoryFailed)


def test_no_process_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    """A kill -9 of the controller: engines and learner end by themselves, and the log is readable up to there."""
    command = [sys.executable, "-m", "eventrain.adapters.cli", "demo", "--run-dir", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        steps = (line for line in process.stderr if '"step_completed"' in line)
        next(steps)
        next(steps)  # by now the first one is on disk
        listed = subprocess.run(
            ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True, timeout=20
        )
        children = [int(pid) for pid in listed.stdout.split()]
        assert len(children) == 2
        process.kill()
        process.wait(20)
    for pid in children:
        with pytest.raises(ProcessLookupError):
            wait_for_end(pid)
    log = list(LogReader(tmp_path / "run" / "events").records())
    assert of(log, StepCompleted)


def wait_for_end(pid: int) -> None:
    """Poll `pid` for at most 20 seconds; raises ProcessLookupError once it has ended."""
    subprocess.run(["timeout", "20", "tail", f"--pid={pid}", "-f", "/dev/null"], check=False, timeout=30)
    os.kill(pid, 0)
