"""From a configuration to ports: the one place that knows which adapter serves which setting."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..core.config import RunConfig, require_enough_prompts
from ..core.ports import Engine, Ports
from ..core.projections.environment_workers import worker_name
from ..core.rollout import derived_seed
from ..events.folder import RunFolder
from ..events.record import Record
from .artifacts import FolderArtifacts, keep_weights_at
from .clock import SystemClock
from .data import eval_prompt_source, prompt_source
from .engine_setup import EngineSetup
from .environments import environment_factory
from .environments.crossing import pack_item
from .environments.workers import WorkerEnvironments
from .launching import LOCAL, Launcher, LocalLauncher
from .renderer import HuggingFaceRenderer
from .torch.engine import TorchEngine
from .torch.learner import TorchLearner
from .vllm.engine import VllmEngine
from .vllm.installed import require_vllm
from .wording import require


def launcher_of(config: RunConfig, base: Path) -> Launcher:
    """Return where the workers of `config` are started. Nothing is started, and no cluster joined.

    Raises `LauncherRefused` where this machine has too few GPUs for them.
    """
    if config.cluster.kind == "ray":
        from .ray import RayLauncher

        return RayLauncher(config, modules=base.resolve())
    return _local_launcher(config)


def _local_launcher(config: RunConfig) -> Launcher:
    """Return one that gives workers GPUs of their own, where this machine has any that can be told apart."""
    from .planning.local_gpus import local_gpus, wants_gpus
    from .planning.nodes import NodesUnknown, this_machine

    if not wants_gpus(config):
        return LOCAL
    try:
        machine = this_machine()
    except NodesUnknown:  # slices of a GPU: CUDA shows a process one of them
        return LOCAL
    if not machine.gpus:
        return LOCAL
    return LocalLauncher(local_gpus(config, machine, torch_on_gpus=_torch_on_gpus()))


def _torch_on_gpus() -> bool:
    import torch  # seconds; only where there is a GPU

    return torch.cuda.is_available()


def build(
    config: RunConfig,
    folder: RunFolder,
    base: Path,
    *,
    after: Record | None = None,
    launcher: Launcher = LOCAL,
) -> Ports:
    """Return the ports that `config` asks for. Nothing is started yet.

    Relative paths start at `base`. `launcher` starts what works elsewhere. `after` is the last record of the log that
    a resumed run goes on with. Raises ValueError with one line when the data, the environment or the model folder
    cannot be used, when there are too few prompts, when this machine has no device of that name, or when the first
    prompt does not fit the context.
    """
    model_path = (base / config.model.path).resolve()
    engines = _engines(config, model_path, folder, launcher)
    _require_vllm(config, engines, launcher)
    prompts = prompt_source(config.data, config.run.seed, base)
    require_enough_prompts(config, len(prompts))
    seed, evaluation = config.run.seed, config.eval
    ports = Ports(
        clock=SystemClock(after),
        engines=engines,
        learner=TorchLearner(
            model_path,
            config.model,
            config.learner,
            config.algorithm,
            seed,
            config.run.steps,
            config.rollout.temperature,
            folder.logs / "learner.log",
            config.deadlines,
            launcher,
        ),
        environments=environment_factory(config.environment, config.rollout, base),
        environment_workers=_environment_workers(config, folder, base, launcher),
        prompts=prompts,
        renderer=HuggingFaceRenderer(model_path),
        artifacts=FolderArtifacts(folder.path, launcher.forget),
        eval_prompts=eval_prompt_source(config.data, evaluation, seed, base)
        if evaluation.every_steps
        else None,
        facts={
            "code_version": code_version(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "base": str(base.resolve()),
        },
    )
    if isinstance(launcher, LocalLauncher):  # elsewhere are other devices
        _require_devices(config)
    asyncio.run(_require_room(config, ports))
    if config.learner.weights_folder is not None:
        keep_weights_at(folder.weights, base / config.learner.weights_folder)
    return ports


def _environment_workers(
    config: RunConfig, folder: RunFolder, base: Path, launcher: Launcher
) -> list[WorkerEnvironments]:
    return [
        WorkerEnvironments(
            name,
            launcher,
            config.environment,
            config.rollout,
            base,
            folder.logs / f"{name}.log",
            config.deadlines,
        )
        for name in map(worker_name, range(config.environment.workers))
    ]


def _engines(config: RunConfig, model_path: Path, folder: RunFolder, launcher: Launcher) -> list[Engine]:
    """Return the engines that `config` asks for, each with a log of its own in the run folder."""
    section = config.engine
    setups = [
        EngineSetup(name, model_path, section, config.rollout, folder.logs / f"{name}.log", config.deadlines)
        for name in (f"engine-{number}" for number in range(section.engines))
    ]
    match section.kind:
        case "torch":
            return [TorchEngine(setup, launcher) for setup in setups]
        case "vllm":
            return [VllmEngine(setup, launcher) for setup in setups]
        case "vllm_server":
            require("aiohttp", "remote")
            from .vllm.server import VllmServerEngine

            urls = section.urls or [None] * section.count
            local = launcher if isinstance(launcher, LocalLauncher) else LOCAL  # they are never of a cluster
            return [
                VllmServerEngine(setup, url, local.gpus_of(setup.name))
                for setup, url in zip(setups, urls, strict=True)
            ]


def _require_vllm(config: RunConfig, engines: Sequence[Engine], launcher: Launcher) -> None:
    """Raise ValueError, a line for each of them, for servers at URLs and Pythons that cannot serve this run."""
    section = config.engine
    if section.urls:
        asyncio.run(_require_servers(engines))
    elif section.kind == "vllm_server" or (section.kind == "vllm" and not config.cluster.address):
        actors = section.kind == "vllm" and not isinstance(launcher, LocalLauncher)
        require_vllm(section.python, section.options, ray=actors)


async def _require_servers(engines: Sequence[Engine]) -> None:
    from .vllm.checking import Unusable
    from .vllm.server import VllmServerEngine

    async def refusal(engine: Engine) -> str | None:
        assert isinstance(engine, VllmServerEngine)
        try:
            await engine.require_usable()
        except Unusable as error:
            return f"{engine.name}: {error}"
        return None

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(refusal(engine)) for engine in engines]
    lines = [line for task in asked if (line := task.result()) is not None]
    if lines:
        raise ValueError("; ".join(lines))


def code_version() -> str:
    """Return the installed version of eventrain."""
    try:
        return version("eventrain")
    except PackageNotFoundError:
        return "unknown"


def _require_devices(config: RunConfig) -> None:
    """Raise ValueError when an engine or the learner is to run where this machine has nothing."""
    from .torch.weights import resolve_device  # torch, which the renderer's library has loaded by now

    devices = {"learner.device": config.learner.device}
    if config.engine.kind == "torch":  # vLLM has a PyTorch of its own, and may be elsewhere
        devices["engine.device"] = config.engine.device
    for key, device in devices.items():
        try:
            resolve_device(device)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error


async def _require_room(config: RunConfig, ports: Ports) -> None:
    """Raise ValueError when the first prompt leaves no room to answer."""
    _, item = ports.prompts.item(0, 0)
    limit_s, context = config.deadlines.env_reset_s, config.rollout.context_tokens
    if config.environment.workers:
        try:
            pack_item(item)
        except TypeError as error:
            raise ValueError(f"environment.workers = {config.environment.workers}: {error}") from error
    try:
        async with asyncio.timeout(limit_s):
            messages = await ports.environments().reset(item, derived_seed(config.run.seed, "check"))
    except TimeoutError:
        raise ValueError(
            f"environment '{config.environment.kind}': no opening within {limit_s:g} s"
        ) from None
    except Exception as error:
        raise ValueError(f"environment '{config.environment.kind}' cannot begin: {error}") from error
    length = len(ports.renderer.opening(messages))
    if length >= context:
        raise ValueError(
            f"rollout.context_tokens = {context}: the first prompt has {length} tokens and leaves no room to answer; "
            f"at least {length + config.rollout.max_tokens} would do"
        )
