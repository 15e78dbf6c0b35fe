"""Which GPUs a process is shown, and what it calls them; with real children and a double of NVML."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from eventrain.adapters import wire
from eventrain.adapters.gpus import environment_of, known_device
from eventrain.adapters.launching import LOCAL, Launcher, LauncherRefused, LocalLauncher
from eventrain.core.config import RunConfig

ENV = {"PYTHONPATH": str(Path(__file__).parent)}


def configured(**sections: dict[str, object]) -> RunConfig:
    """Return a small run with these settings besides."""
    base: dict[str, dict[str, object]] = {
        "run": {"steps": 1, "name": "small"},
        "model": {"path": "none"},
        "data": {"kind": "generated", "size": 100},
        "environment": {"kind": "none"},
        "scheduler": {"groups_per_step": 2},
    }
    keys = {**base, **sections}
    return RunConfig.model_validate({key: {**base.get(key, {}), **sections.get(key, {})} for key in keys})


def on(monkeypatch: pytest.MonkeyPatch, count: int, config: RunConfig, *, torch_on_gpus: bool = True) -> Launcher:
    """Return the launcher of `config` on a machine with `count` GPUs, which PyTorch can use or not."""
    monkeypatch.setattr(wire, "_torch_on_gpus", lambda: torch_on_gpus)
    return on_double(monkeypatch, count, config)


def on_double(monkeypatch: pytest.MonkeyPatch, count: int, config: RunConfig) -> Launcher:
    """Return the launcher of `config` where NVML tells of `count` GPUs."""
    pytest.importorskip("pynvml")
    from nvml_double import Gpu, Nvml

    monkeypatch.setitem(sys.modules, "pynvml", Nvml(*(Gpu(f"GPU-{n}") for n in range(count))))
    return wire.launcher_of(config, Path())


def seen_by(launcher: Launcher, *names: str) -> list[str | None]:
    """Start workers, and return the CUDA_VISIBLE_DEVICES of each."""

    async def main() -> list[str | None]:
        seen = []
        for name in names:
            worker = await launcher.start(
                "worker_target:make", {}, name=name, log_path=None, deadline_s=30, env=ENV
            )
            try:
                seen.append(await worker.call("visible"))
            finally:
                await worker.close(5)
        return seen

    return asyncio.run(main())


def test_a_process_is_shown_the_gpus_that_this_one_knows_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers go through the list that is set already; None changes nothing, and no GPUs hide all."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment_of((2, 3)) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7, GPU-ab,0")
    assert environment_of((1, 2)) == {"CUDA_VISIBLE_DEVICES": "GPU-ab,0"}
    assert environment_of(()) == {"CUDA_VISIBLE_DEVICES": ""}
    assert environment_of(None) == {}


def test_a_device_of_a_process_has_the_number_that_this_one_knows_it_by() -> None:
    """The first GPU of a process that was given 4 and 5 is 4 here; the CPU, and what was not given, stays."""
    assert [known_device((4, 5), device) for device in ("cuda", "cuda:0", "cuda:1", "cpu")] == [
        "cuda:4",
        "cuda:4",
        "cuda:5",
        "cpu",
    ]
    assert known_device(None, "cuda:1") == "cuda:1"


def test_every_worker_sees_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines and two ranks have the four GPUs of the list, each one; an environment sees what the run sees."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2,1,0")
    launcher = on(monkeypatch, 4, configured(engine={"count": 2}, learner={"ranks": 2}, environment={"workers": 1}))
    names = ("engine-0", "engine-1", "learner-0", "learner-1", "environment-0")
    assert seen_by(launcher, *names) == ["3", "2", "1", "0", "3,2,1,0"]


def test_a_rank_that_is_alone_shares_its_engines_gpu_where_that_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colocated, the worker `learner` has the GPU of engine-0, and a worker of CPUs sees what the run sees."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    launcher = on(monkeypatch, 2, configured(cluster={"placement": "colocated"}))
    assert seen_by(launcher, "engine-0", "learner") == ["0", "0"]
    launcher = on(monkeypatch, 2, configured(learner={"device": "cpu"}))
    assert seen_by(launcher, "engine-0", "learner") == ["0", None]


def test_an_engine_of_several_gpus_has_them_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor parallel engines have two each, and the rank the one that is left."""
    launcher = on(monkeypatch, 5, configured(engine={"count": 2, "kind": "vllm", "tensor_parallel": 2}))
    assert isinstance(launcher, LocalLauncher)
    assert [launcher.gpus_of(name) for name in ("engine-0", "engine-1", "learner")] == [(0, 1), (2, 3), (4,)]


def test_a_device_that_is_named_stays_as_it_is_and_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine on cuda:0 sees all, so its number holds; the learner has the other one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    launcher = on(monkeypatch, 2, configured(engine={"device": "cuda:0"}))
    assert seen_by(launcher, "engine-0", "learner") == [None, "1"]
    with pytest.raises(LauncherRefused) as refused:
        on(monkeypatch, 1, configured(engine={"device": "cuda:0"}, cluster={"placement": "split"}))
    assert refused.value.lines[2:] == ("cuda:0 is left to the engine, whose device it is",)


def test_too_few_gpus_are_refused_with_what_was_asked_and_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line says what was asked, and one what the machine has and who has it."""
    with pytest.raises(LauncherRefused) as refused:
        on(monkeypatch, 2, configured(engine={"count": 2}, cluster={"placement": "split"}))
    asked, there = refused.value.lines
    assert asked == (
        "cluster.placement = 'split': 2 engines and 1 learner rank ask for 3 GPUs; 'colocated' lets them share"
    )
    assert there.startswith("learner-0 asks for 1 GPU: ")
    assert there.endswith(" has 2, both taken by engine-0 and engine-1")


def test_gpus_are_shared_where_there_are_too_few_and_nobody_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU has the engine and the learner, also if one of them is named; more engines than GPUs are refused."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert seen_by(on(monkeypatch, 1, configured()), "engine-0", "learner") == ["0", "0"]
    assert seen_by(on(monkeypatch, 1, configured(engine={"device": "cuda:0"})), "engine-0", "learner") == [None, "0"]
    with pytest.raises(LauncherRefused, match="2 engines and 1 learner rank ask for 3 GPUs"):
        on(monkeypatch, 1, configured(engine={"count": 2}))


@pytest.mark.parametrize(
    ("gpus", "sections"),
    [(0, {}), (1, {"engine": {"device": "cpu"}, "learner": {"device": "cpu"}})],
    ids=["no GPU", "all on CPUs"],
)
def test_where_nothing_runs_on_a_gpu_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, gpus: int, sections: dict[str, dict[str, object]]
) -> None:
    """PyTorch is not asked, which takes seconds to load."""
    config = configured(**sections)
    monkeypatch.setattr(wire, "_torch_on_gpus", lambda: pytest.fail("asked"))
    assert on_double(monkeypatch, gpus, config) is LOCAL


def test_a_pytorch_for_cpus_takes_auto_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU that PyTorch cannot use runs as before; vLLM has a PyTorch of its own."""
    launcher = on(monkeypatch, 1, configured(), torch_on_gpus=False)
    assert isinstance(launcher, LocalLauncher)
    assert [launcher.gpus_of(name) for name in ("engine-0", "learner")] == [None, None]
    launcher = on(monkeypatch, 1, configured(engine={"kind": "vllm"}), torch_on_gpus=False)
    assert isinstance(launcher, LocalLauncher)
    assert [launcher.gpus_of(name) for name in ("engine-0", "learner")] == [(0,), None]


def test_slices_of_a_gpu_are_left_to_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML does not tell what is visible, and the run goes on as if nothing were known."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert on(monkeypatch, 1, configured()) is LOCAL
