"""Which GPUs of this machine each worker of a run is given where nothing else, such as Ray, decides that.

The same rules as those of `eventrain plan`, but for memory and CPUs: what is estimated stops no run, and CPUs may be
shared.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from ...core.config import RunConfig
from ...core.placement import Node, PlacementImpossible, asks, counted, place
from ..launching import LauncherRefused

BY_TURNS = ("auto", "cuda")
"""Settings of a device that leave open which GPU it is."""


def wants_gpus(config: RunConfig) -> bool:
    """Return whether a worker of `config` is to have a GPU, without saying which one."""
    return any(device in BY_TURNS for device in _devices(config).values())


def local_gpus(config: RunConfig, machine: Node, *, torch_on_gpus: bool) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the GPUs of `machine` that each worker is given; those without are given nothing.

    `torch_on_gpus` says whether our own PyTorch can use them; where not, it takes ``auto`` for the CPU. A device that
    is named, such as ``cuda:1``, is nobody else's, unless GPUs are shared (``colocated``). Raises `LauncherRefused`: a
    line says what was asked, and one for each kind of worker that finds no place what the machine has.
    """
    if not machine.gpus:
        return {}
    config = config if torch_on_gpus else _on_cpus(config)
    if config.cluster.placement != "auto":
        return _given(config, machine, config.cluster.placement)
    try:
        return _given(config, machine, "split")
    except LauncherRefused:
        with suppress(LauncherRefused):
            return _given(config, machine, "colocated")
        raise


def _given(config: RunConfig, machine: Node, placement: Literal["split", "colocated"]) -> dict[str, tuple[int, ...]]:
    devices, colocated = _devices(config), placement == "colocated"
    asked = [
        replace(ask, cpus=0.0)
        for ask in asks(config, gpus_there=True)
        if devices.get(ask.role) in BY_TURNS
    ]
    named = {} if colocated else _named(devices)
    free = [number for number in range(machine.gpus) if number not in named]
    try:
        placed = place(asked, [Node(machine.name, 0.0, len(free))], placement=placement)
    except PlacementImpossible as error:
        gpus = sum(ask.gpus for ask in asked)
        what = f"cluster.placement = '{placement}': {counted(asked)} ask for {gpus:g} GPUs"
        taken = (f"cuda:{number} is left to the {role}, whose device it is" for number, role in named.items())
        both = len({ask.role for ask in asked}) > 1
        instead = "; 'colocated' lets them share" if both and config.cluster.placement == "split" else ""
        raise LauncherRefused(f"{what}{instead}", *error.lines, *taken) from error
    return {seat.ask.worker: tuple(free[number] for number in seat.gpus) for seat in placed.seats}


def _devices(config: RunConfig) -> dict[str, str]:
    """Return the device setting of each role that has workers of this machine."""
    engines = {} if config.engine.urls else {"engine": config.engine.device}
    return {**engines, "learner": config.learner.device}


def _named(devices: dict[str, str]) -> dict[int, str]:
    """Return whose each GPU is that a setting names."""
    numbers = {role: device.removeprefix("cuda:") for role, device in devices.items() if device.startswith("cuda:")}
    return {int(number): role for role, number in numbers.items() if number.isdecimal()}


def _on_cpus(config: RunConfig) -> RunConfig:
    def on_cpu(section: Any) -> Any:
        return section.model_copy(update={"device": "cpu"}) if section.device == "auto" else section

    engine = on_cpu(config.engine) if config.engine.kind == "torch" else config.engine
    return config.model_copy(update={"learner": on_cpu(config.learner), "engine": engine})
