"""Runs to look at: one that stalled, one with everything in it, and a folder of its own for the snapshots."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
from legacy import hole_behind_the_window

from eventrain.adapters.simulated.faults import Fault
from eventrain.adapters.simulated.scenario import Scenario, Surroundings
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.record import Record


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch) -> None:
    """Keep the snapshots of a test out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture(scope="session", name="stalled")
def _stalled() -> list[Record]:
    """Return the log of the over-long prompt: a deadlock at seq 982, two hours before its end at seq 988."""
    return hole_behind_the_window(legacy=True).go().log


@pytest.fixture(scope="session", name="busy")
def _busy() -> list[Record]:
    """Return the log of a run with slow environments, hanging ones, retries, evaluations and checkpoints."""
    scenario = Scenario(
        config={
            "run": {"steps": 6},
            "data": {"size": 100},
            "scheduler": {"groups_per_step": 2, "max_staleness": 1},
            "rollout": {"group_size": 3, "max_turns": 3},
            "deadlines": {"env_step_s": 2.0},
            "checkpoint": {"every_steps": 2},
        },
        world=Surroundings(engines=2, spread=4.0),
        fault=(Fault(where="environment.step", what="hang", prompt=2),),
    )
    return simulate(scenario, Tape(1)).records


class Growing:
    """A log that grows, written as a run writes it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.count = folder, 0
        self._writer = LogWriter(folder.events, run="run", epoch=1, first_seq=0, segment_bytes=1 << 14)
        self._durable: queue.Queue[int] = queue.Queue()
        self._writer.start(self._durable.put, lambda _error: None)

    def append(self, records: list[Record]) -> None:
        """Write `records`, in a frame or two for every 100 of them, and return when they are on disk."""
        for place in range(0, len(records), 100):
            part = records[place : place + 100]
            for record in part:
                self._writer.append(record)
            while self._durable.get(timeout=30) < part[-1].seq:
                pass
        self.count += len(records)

    def close(self) -> None:
        self._writer.close()


@pytest.fixture(name="growing")
def _growing(tmp_path: Path):
    """Return a function that begins the log of a run."""

    def begin(folder: RunFolder | None = None) -> Growing:
        return Growing(folder or RunFolder.create(tmp_path / "run"))

    return begin


@pytest.fixture(name="write_log")
def _write_log(tmp_path: Path):
    """Return a function that writes records to a run folder, and returns it."""

    def write(records: list[Record], name: str = "run") -> RunFolder:
        log = Growing(RunFolder.create(tmp_path / name))
        log.append(records)
        log.close()
        return log.folder

    return write
