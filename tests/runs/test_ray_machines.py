"""A run over two machines that share no folder for weights: the one with the engine cannot see the run's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_clusters import two_nodes

from eventrain.adapters.demo.model import build_model_folder
from eventrain.events.reader import LogReader
from eventrain.events.types import EngineLost, EngineUp, StepCompleted, SyncRetried, SyncVerified

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(400)]

STEPS = 3
HIDE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"')
"""Starts a command for which the folder that is named next is empty."""


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """Return a folder that can be hidden from a process, or skip: not every machine lets its users do so."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "here").touch()
    try:
        told = subprocess.run([*HIDE, folder, "ls", folder], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if told.returncode:
        pytest.skip(f"no mount namespaces: {told.stderr.decode().strip()}")
    assert told.stdout == b""
    return folder


@pytest.fixture
def address(hidden: Path) -> Iterator[str]:
    """Start two nodes, of which the second, with room for the engine, does not see `hidden`; give the address."""
    with two_nodes("--num-cpus=2", within=[*HIDE, str(hidden)]) as (address, _):
        yield address


def test_an_engine_gets_the_weights_of_a_learner_whose_files_it_cannot_see(
    hidden: Path, address: str, tmp_path: Path
) -> None:
    """Every version arrives whole and at the first attempt, from the one that the engine starts with."""
    run, model = hidden / "run", tmp_path / "model"
    build_model_folder(model)
    settings = [
        f"run.steps={STEPS}",
        f"model.path={model}",
        "rollout.group_size=4",
        "scheduler.groups_per_step=3",
        "checkpoint.at_end=false",
        "cluster.kind=ray",
        f"cluster.address={address}",
        "cluster.engine_cpus=1.5",
        "cluster.learner_cpus=0.9",
    ]
    command = [sys.executable, "-m", "eventrain.adapters.cli", "demo", "--run-dir", str(run)]
    done = subprocess.run(
        [*command, *(part for setting in settings for part in ("--set", setting))],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    events = [record.event for record in LogReader(run / "events").records()]
    assert [event.step for event in events if isinstance(event, StepCompleted)] == list(range(STEPS))
    assert [event.version for event in events if isinstance(event, EngineUp)] == [0]
    assert {event.version for event in events if isinstance(event, SyncVerified)} >= set(range(1, STEPS))
    assert not [event for event in events if isinstance(event, EngineLost | SyncRetried)]
