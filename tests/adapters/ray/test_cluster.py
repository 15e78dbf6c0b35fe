"""A cluster of two nodes that others have started: what it refuses, what is far away, and what dies with whom."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_clusters import end, free_port, two_nodes
from ray_controllers import ENDED_S, controller, said_by, wait_ended

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(240)]


SMALL_MODEL = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}
PLANNED = """\
[run]
name = "small"
steps = 4
[model]
path = "model"
[data]
kind = "generated"
size = 1000
[environment]
kind = "number_hunt"
[scheduler]
groups_per_step = 2
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start two nodes; give the address, and the process of the second."""
    with two_nodes() as started:
        yield started


def plan_live(folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """Plan a run of a small model on a cluster's machines."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(SMALL_MODEL))
    (folder / "run.toml").write_text(PLANNED)
    command = [sys.executable, "-m", "eventrain.adapters.cli", "plan", str(folder / "run.toml"), "--live", "--json"]
    return subprocess.run(
        [*command, *(part for setting in settings for part in ("--set", setting))],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def drivers_alive(address: str) -> list[str]:
    """Return the names of the drivers that are connected to a cluster; the one that asks is one of them."""
    script = (
        "import sys, json, ray; ray.init(address=sys.argv[1], log_to_driver=False)\n"
        "from ray._private.state import state\n"
        "mine = ray.get_runtime_context().get_job_id()\n"
        "alive = [job['JobID'] for job in state.job_table() if not job['IsDead']]\n"
        "print(json.dumps(['asking' if job == mine else job for job in alive]))"
    )
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    told = subprocess.run(
        [sys.executable, "-c", script, address], env=env, check=True, capture_output=True, text=True
    )
    return list(json.loads(told.stdout.splitlines()[-1]))


def test_what_does_not_fit_is_refused_with_what_each_node_has(nodes: tuple[str, subprocess.Popen[bytes]]) -> None:
    """More than the cluster has, and more on one machine than any has, are refused before anything is started."""
    address, _ = nodes
    (line,) = said_by(controller(address, engine_cpus=1.5)).splitlines()
    assert re.fullmatch(
        rf"the Ray cluster at '{address}': engine-0 asks for 1\.5 CPUs \(cluster\.engine_cpus\): "
        r"\S+ has 1 CPU, 1 of it free; \S+ has 1 CPU, 1 of it free",
        line,
    )
    assert "environment-0 asks for 0.1 CPUs (cluster.environment_cpus)" in said_by(
        controller(address, engine_cpus=1, learner_cpus=1)
    )


def test_a_plan_reckons_with_the_machines_of_a_running_cluster(
    nodes: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Both nodes have a name, a CPU and memory; what does not fit is refused; no driver is left there."""
    address, _ = nodes
    settings = [f"cluster.address={address}", "cluster.kind=ray", "cluster.engine_cpus=0.5"]
    told = plan_live(tmp_path, *settings)
    assert told.returncode == 0, told.stderr
    plan = json.loads(told.stdout)
    assert plan["nodes_from"] == f"the Ray cluster at {address}"
    assert len({node["node"] for node in plan["nodes"]}) == 2
    assert [(node["cpus"], node["gpus"]) for node in plan["nodes"]] == [(1, 0), (1, 0)]
    assert all(node["memory_bytes"] > 2**20 for node in plan["nodes"])
    refused = plan_live(tmp_path, *settings, "cluster.learner_cpus=1.5")
    assert refused.returncode == 2
    (line,) = json.loads(refused.stdout)["impossible"]
    assert line.startswith("learner-0 asks for 1.5 CPUs (cluster.learner_cpus): ")
    assert set(drivers_alive(address)) == {"asking"}


def test_a_cluster_that_is_not_there_cannot_be_planned_with(tmp_path: Path) -> None:
    """One line says where nobody listens, with the exit code of bad input."""
    address = f"127.0.0.1:{free_port()}"
    told = plan_live(tmp_path, f"cluster.address={address}", "cluster.kind=ray")
    assert told.returncode == 2
    (line,) = told.stderr.splitlines()
    assert f"the Ray cluster at '{address}' cannot be reached: " in line


def test_a_worker_of_another_node_is_far_away_and_dies_with_it(
    nodes: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """It has a node and no process here, tells of itself, and its node's death ends its calls in one line.

    Killed, the controller takes its actors along, and their places are free.
    """
    address, second = nodes
    first = controller(address, engine_cpus=0.9, environment_cpus=0.9, learner_cpus=0)
    with first:
        assert first.stdout is not None
        told = [first.stdout.readline().split() for _ in range(2)]
        by_home = {home == "home": (int(pid), rest) for _, home, pid, *rest in told}
        assert set(by_home) == {True, False}
        assert "WorkerLogged" in by_home[False][1]
        assert "DeviceSampled" in by_home[False][1]
        assert "DeviceSampled" not in by_home[True][1]
        full = said_by(controller(address, engine_cpus=0.9, connect_s=6))
        assert "no place for 1 engine, 1 learner rank and 1 environment worker within cluster.connect_s = 6 s" in full
        first.kill()
    wait_ended([pid for pid, _ in by_home.values()], ENDED_S)
    again = controller(address, engine_cpus=0.9, environment_cpus=0.9, learner_cpus=0)
    with again:
        assert again.stdout is not None
        for _ in range(2):
            assert again.stdout.readline()
        end(second)
        gone = again.stdout.readline()
        again.kill()
    assert "ended" in gone
    assert "node" in gone


def test_an_address_that_nobody_listens_at_is_refused_at_once() -> None:
    """So are Ray Client's addresses; each says what would do."""
    port = free_port()
    assert said_by(controller(f"127.0.0.1:{port}")).startswith(
        f"the Ray cluster at '127.0.0.1:{port}' cannot be reached: "
    )
    assert "Ray Client cannot carry a run" in said_by(controller("ray://127.0.0.1:10001"))
    assert "this is not the address of a Ray head" in said_by(controller("http://127.0.0.1:8265"))
    assert said_by(controller("127.0.0.1:abc")) == (
        "cluster.address = '127.0.0.1:abc': 'abc' is no port; the head's host:port would do"
    )


def test_something_else_that_listens_there_is_refused_in_time() -> None:
    """It takes connections and says nothing; the line says what it should be."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        address = f"127.0.0.1:{one.getsockname()[1]}"
        line = said_by(controller(address, connect_s=3)).splitlines()[-1]
    assert line.startswith(f"the Ray cluster at '{address}': no answer within cluster.connect_s = 3 s; ")
    assert "is it a Ray head" in line


def test_a_cluster_that_does_not_answer_in_time_is_refused() -> None:
    """The deadline covers a Ray of our own too; what was begun of it is not waited for."""
    assert said_by(controller(connect_s=0.3)) == (
        "Ray on this machine: no answer within cluster.connect_s = 0.3 s"
    )
