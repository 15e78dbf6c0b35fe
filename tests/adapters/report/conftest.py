"""Logs to report on: simulated scenarios, and short ones that are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from eventrain.adapters.cli.main import commands
from eventrain.adapters.report.reading import Reading, read_run
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.record import Record
from eventrain.events.types import Event, RunStarted

SCENARIOS = Path(__file__).parents[2] / "scenarios"
START_TS = 1_767_268_800_000_000_000  # 2026-01-01 12:00:00 UTC
START_MONO = 5_000_000_000
CONFIG: dict[str, Any] = {
    "run": {"name": "hunt", "steps": 3},
    "model": {"path": "/models/tiny"},
    "data": {"kind": "generated", "size": 100},
    "environment": {"kind": "number_hunt"},
    "rollout": {"group_size": 2},
    "scheduler": {"groups_per_step": 2},
}


class Told:
    """A log that is told event by event, on fixed clocks."""

    def __init__(self, name: str = "hunt", **config: Any) -> None:
        self.records: list[Record] = []
        self.now_ns = 0
        started = RunStarted(
            run=name, config=CONFIG | config, code_version="0.1", seed=0, host="box", pid=7, prompts=100
        )
        self.tell(started, 0)

    def tell(self, event: Event, after_s: float = 0.01, actor: str = "run") -> None:
        """Append `event`, `after_s` seconds after the one before."""
        self.now_ns += round(after_s * 1e9)
        at = (START_TS + self.now_ns, START_MONO + self.now_ns)
        self.records.append(Record(len(self.records), *at, actor, None, "", event))

    def write(self, path: Path, segments: int = 1) -> RunFolder:
        """Write what was told as the log of a new run folder, in as many segments."""
        folder = RunFolder.create(path)
        edges = [len(self.records) * number // segments for number in range(segments + 1)]
        for epoch, (begin, end) in enumerate(pairwise(edges), 1):
            writer = LogWriter(folder.events, run="hunt", epoch=epoch, first_seq=begin, segment_bytes=1 << 20)
            writer.start(lambda _seq: None, lambda _error: None)
            for record in self.records[begin:end]:
                writer.append(record)
            writer.close()
        return folder


def run_command(*arguments: str | Path) -> Result:
    """Run a command line in this process, as ``eventrain`` does."""
    return CliRunner().invoke(commands, [str(argument) for argument in arguments], prog_name="eventrain")


@pytest.fixture(scope="session", name="command")
def _command() -> Callable[..., Result]:
    """Return a function that runs a command line."""
    return run_command


@pytest.fixture(name="told")
def _told() -> Callable[..., Told]:
    """Return the class of logs that are told event by event."""
    return Told


@pytest.fixture(scope="session", name="simulated")
def _simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """Return a function that simulates a scenario, once for all tests, and returns its run folder."""
    made: dict[str, RunFolder] = {}

    def simulate(scenario: str) -> RunFolder:
        if scenario not in made:
            path = tmp_path_factory.mktemp("runs") / scenario
            result = run_command("simulate", SCENARIOS / f"{scenario}.toml", "--log", path)
            assert result.exit_code == 0, result.output
            made[scenario] = RunFolder.open(path)
        return made[scenario]

    return simulate


@pytest.fixture(scope="session", name="reading")
def _reading(simulated: Callable[[str], RunFolder]) -> Callable[[str], Reading]:
    """Return a function that reads the log of a simulated scenario."""
    return lambda scenario: read_run(simulated(scenario))
