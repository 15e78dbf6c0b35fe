"""plan, as its users see it: the shipped placements, what is impossible, and where figures come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eventrain.adapters.planning.nodes import this_machine

ROOT = Path(__file__).resolve().parents[3]
PLACEMENTS = ROOT / "examples/placements"
LOG = ROOT / "examples/incidents/weight_sync"


def lay(table: dict, node: str) -> dict[int | str, list[str]]:
    """Return the workers on each device of `node`; ``"cpu"`` has those without a GPU."""
    devices: dict[int | str, list[str]] = {}
    for worker in table["workers"]:
        if worker["node"] == node:
            for device in worker["gpus"] or ["cpu"]:
                devices.setdefault(device, []).append(worker["worker"])
    return devices


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("one_gpu", {"node-0": {0: ["engine-0", "learner-0"]}}),
        ("two_gpus", {"node-0": {0: ["engine-0"], 1: ["learner-0"]}}),
        (
            "eight_gpus",
            {
                "node-0": {
                    **{n: [f"engine-{n}"] for n in range(4)},
                    **{n + 4: [f"learner-{n}"] for n in range(4)},
                    "cpu": [f"environment-{n}" for n in range(16)],
                }
            },
        ),
        (
            "two_nodes_16_gpus",
            {
                "node-0": {n: [f"engine-{n // 2}"] for n in range(8)},
                "node-1": {
                    **{n: [f"learner-{n}"] for n in range(8)},
                    "cpu": [f"environment-{n}" for n in range(32)],
                },
            },
        ),
        (
            "four_nodes_32_gpus",
            {
                "node-0": {
                    **{n: [f"engine-{n}"] for n in range(8)},
                    "cpu": [f"environment-{n}" for n in range(88)],
                },
                "node-1": {
                    **{n: [f"engine-{n + 8}"] for n in range(8)},
                    "cpu": [f"environment-{n}" for n in range(88, 128)],
                },
                "node-2": {n: [f"learner-{n}"] for n in range(8)},
                "node-3": {n: [f"learner-{n + 8}"] for n in range(8)},
            },
        ),
    ],
)
def test_a_shipped_placement_is_what_its_file_says(command, name, nodes):
    """Each example lies as its first lines promise, and within the memory of its GPUs, a tenth of them free."""
    result = command("plan", PLACEMENTS / f"{name}.toml", "--json")
    assert result.exit_code == 0, result.output
    table = json.loads(result.output)
    assert table["possible"]
    assert table["pace"] is None
    assert {node["node"]: lay(table, node["node"]) for node in table["nodes"]} == nodes
    taken: dict[tuple[str, int], int] = {}
    for worker in table["workers"]:
        for gpu in worker["gpus"]:
            device = (worker["node"], gpu)
            taken[device] = taken.get(device, 0) + sum(worker["memory_bytes"].values())
    for node in table["nodes"]:
        for gpu in range(node["gpus"]):
            assert 0 < taken[node["node"], gpu] < 0.9 * node["gpu_memory_bytes"]


def test_every_placement_is_tested():
    """No example of a placement is without its test."""
    (marks,) = test_a_shipped_placement_is_what_its_file_says.pytestmark
    assert {name for name, _ in marks.args[1]} == {path.stem for path in PLACEMENTS.glob("*.toml")}


def test_a_person_reads_devices_memory_and_what_is_unknown(command):
    """Node by node and device by device, then the parts of each estimate, then how to learn the step time."""
    lines = command("plan", PLACEMENTS / "one_gpu.toml").output.splitlines()
    assert lines[0] == "one-gpu  a model of 494 M parameters; 1 engine, 1 learner rank"
    assert "1 GPU of 80 GiB (cluster.nodes); cluster.kind 'local', colocated, pack" in lines[1]
    (device,) = (line for line in lines if "cuda:0" in line)
    assert device.split()[2:] == ["70", "GiB", "80", "GiB", "engine-0,", "learner-0"]
    (engine,) = (line for line in lines if line.startswith("engine: "))
    assert engine.startswith("engine: 40 GiB = weights 0.9 GiB + KV cache 39 GiB; room for ")
    assert engine.endswith(" contexts of 1,024")
    (learner,) = (line for line in lines if line.startswith("learner: "))
    assert "moments 3.7 GiB" in learner
    assert "step time: unknown: give --like RUN, or --tokens-per-s and --train-tokens-per-s" in lines


IMPOSSIBLE = [
    (
        "two_gpus",
        ["engine.count=3"],
        "engine-2 asks for 1 GPU: node-0 has 2, both taken by engine-0 and engine-1",
    ),
    (
        "two_nodes_16_gpus",
        ["engine.tensor_parallel=14"],
        "engine-0 asks for 14 GPUs on one machine: node-0 has 8; node-1 has 8",
    ),
    (
        "eight_gpus",
        ["engine.tensor_parallel=3"],
        "engine.tensor_parallel = 3 does not divide the model's 28 attention heads",
    ),
    ("eight_gpus", ["learner.ranks=1", "engine.count=1"], "learner: a rank takes 143 GiB (weights 28 GiB"),
    ("eight_gpus", ["learner.micro_batch_tokens=8192"], "learner.micro_batch_tokens = 2048 would do"),
    (
        "one_gpu",
        ["engine.memory_share=0.85"],
        "a learner rank takes 30 GiB, and a GPU has 80 GiB: engine.memory_share = 0.62 would do",
    ),
    ("one_gpu", ["engine.memory_share=0.01"], "engine: weights and the KV cache of one context of 1024 tokens take"),
    (
        "two_nodes_16_gpus",
        ["cluster.kind=local", "cluster.address=''"],
        "cluster.kind = 'local' starts everything on one machine, and there are 2: use 'ray'",
    ),
    (
        "two_gpus",
        ["cluster.environment_cpus=20", "environment.workers=2"],
        "environment-1 asks for 20 CPUs (cluster.environment_cpus): node-0 has 32 CPUs, 10 of them free",
    ),
    (
        "eight_gpus",
        ["cluster.nodes=[{cpus=96, gpus=8, memory_gib=100, gpu_memory_gib=80}]"],
        "learner-3 asks for 28 GiB of memory: node-0 has 100 GiB of memory, 15 GiB of it free",
    ),
    ("two_gpus", ["deadlines.buffer_wait_s=0.01"], "no step can be trained"),
    (
        "two_nodes_16_gpus",
        ["cluster.placement=colocated", "engine.memory_share=0.2"],
        "learner-0 cannot share an engine's 2 GPUs in Ray, which divides one alone",
    ),
]


@pytest.mark.parametrize(("name", "sets", "line"), IMPOSSIBLE, ids=[sets[0] for _, sets, _ in IMPOSSIBLE])
def test_what_is_impossible_is_one_line(command, name, sets, line):
    """Exit code 2 and a line that says what, where, and what would do; with --json the same in a table."""
    path, changes = PLACEMENTS / f"{name}.toml", [part for one in sets for part in ("--set", one)]
    result = command("plan", path, *changes)
    assert result.exit_code == 2, result.output
    said = result.output.splitlines()
    assert all(one.startswith(f"{name.replace('_', '-')}: impossible: ") for one in said)
    assert line in said[0]
    table = json.loads(command("plan", path, *changes, "--json").output)
    assert table["possible"] is False
    assert [f"{table['run']}: impossible: {one}" for one in table["impossible"]] == said


def test_what_is_advised_is_possible(command):
    """The memory share and the micro-batch that a refusal names are taken."""
    share = command("plan", PLACEMENTS / "one_gpu.toml", "--set", "engine.memory_share=0.62")
    assert share.exit_code == 0, share.output
    tokens = command("plan", PLACEMENTS / "eight_gpus.toml", "--set", "learner.micro_batch_tokens=2048")
    assert tokens.exit_code == 0, tokens.output


@pytest.mark.slow
def test_times_come_from_another_run(command):
    """With --like the simulator has the recorded times of that run, and says so."""
    table = json.loads(command("plan", PLACEMENTS / "two_gpus.toml", "--like", LOG, "--json").output)
    pace = table["pace"]
    assert pace["step_s"] >= 0.95 * max(pace["training_s"], pace["generation_s"])
    assert pace["bound"] == "learner"
    assert pace["source"].endswith(str(LOG))


@pytest.mark.slow
def test_rough_figures_give_a_rough_time(command):
    """An engine of 1,000 tokens/s makes 256 answers of 512 tokens in 131 s, which is then the step."""
    rates = ["--tokens-per-s", "1000", "--train-tokens-per-s"]
    path = PLACEMENTS / "two_gpus.toml"
    pace = json.loads(command("plan", path, *rates, "100000", "--json").output)["pace"]
    assert pace["generation_s"] == pytest.approx(131.072)
    assert pace["training_s"] == pytest.approx(2.62144)
    assert pace["step_s"] == pytest.approx(131.072, rel=0.1)
    assert pace["bound"] == "engines"
    twice = json.loads(command("plan", path, *rates, "100000", "--set", "engine.count=2", "--json", "--set",
                               "cluster.nodes=[{cpus=8, gpus=3, memory_gib=99}]").output)["pace"]  # fmt: skip
    assert twice["generation_s"] == pytest.approx(131.072 / 2)
    slow = json.loads(command("plan", path, *rates, "1000", "--json").output)["pace"]
    assert slow["bound"] == "learner"
    assert slow["step_s"] == pytest.approx(262.144, rel=0.1)


def test_a_run_that_says_too_little_leaves_the_time_unknown(command, tmp_path):
    """The plan stands, and says what the log lacks."""
    empty = tmp_path / "run"
    for part in ("events", "payloads"):
        (empty / part).mkdir(parents=True)
    result = command("plan", PLACEMENTS / "two_gpus.toml", "--like", empty)
    assert result.exit_code == 0
    assert f"step time: unknown: {empty}: the log is empty: the run has not begun yet" in result.output


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--tokens-per-s", "1"], "--tokens-per-s and --train-tokens-per-s: a step takes both, give them together"),
        (
            ["--like", "run", "--tokens-per-s", "1", "--train-tokens-per-s", "1"],
            "--like RUN has the times already: give it, or --tokens-per-s and --train-tokens-per-s",
        ),
        (["--live"], "--live asks a Ray cluster: it needs cluster.kind = 'ray' and cluster.address"),
        (["--set", "model.path=nowhere"], "config.json: no such file: a model folder has one"),
        (["--like", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_options_that_cannot_be_used_are_one_line(command, options, line):
    """Exit code 2, and what would be right."""
    result = command("plan", PLACEMENTS / "two_gpus.toml", *options)
    assert result.exit_code == 2, result.output
    (said,) = result.output.splitlines()
    assert line in said


def test_without_nodes_it_is_this_machine(command, tmp_path):
    """A configuration that describes no machine is planned on the one at hand."""
    text = (PLACEMENTS / "two_gpus.toml").read_text().split("[[cluster.nodes]]")[0]
    config = tmp_path / "config.toml"
    config.write_text(text.replace('"models/', f'"{PLACEMENTS}/models/').replace("8192", "1"))
    sets = ["--set", "rollout.context_tokens=2", "--set", "rollout.max_tokens=1", "--set", "learner.device=cpu"]
    result = command("plan", config, *sets, "--set", "engine.device=cpu", "--json")
    table = json.loads(result.output)
    here = this_machine()
    if table["possible"]:
        assert table["nodes_from"] == "this machine"
        assert [node["node"] for node in table["nodes"]] == [here.name]
    else:  # too small a machine: it is named all the same
        assert all(here.name in line for line in table["impossible"])
