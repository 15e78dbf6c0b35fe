"""Where the workers of a run would lie, and what each would take of its device: before anything is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...core.config import RunConfig
from ...core.placement import GIB, Ask, Node, Placement, PlacementImpossible, Seat, asks, place
from ..ray.bundles import ClusterRefused, bundled
from .memory import (
    Estimate,
    engine_estimate,
    kv_token_bytes,
    learner_estimate,
    micro_batch_that_fits,
    vllm_dtype_bytes,
)
from .shape import ModelShape


class PlanImpossible(Exception):
    """The run cannot be placed. `lines` say why, one problem each."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)


@dataclass(frozen=True)
class Plan:
    """What would lie where."""

    config: RunConfig
    shape: ModelShape
    nodes: tuple[Node, ...]
    placement: Placement

    def node(self, name: str) -> Node:
        """Return the node called `name`."""
        return next(node for node in self.nodes if node.name == name)

    def estimate(self, seat: Seat) -> Estimate | None:
        """Return what the worker at `seat` takes; None for an environment, of which nothing is known."""
        on_gpu = bool(seat.gpus)
        if seat.ask.role == "engine":
            memory = self.node(seat.node).gpu_memory_bytes if on_gpu else None
            return engine_estimate(self.config, self.shape, gpu_memory_bytes=memory)
        if seat.ask.role == "learner":
            return learner_estimate(self.config, self.shape, on_gpu=on_gpu)
        return None

    def contexts(self, estimate: Estimate) -> float | None:
        """Return how many trajectories of full length an engine's KV cache holds."""
        return None if estimate.kv_tokens is None else estimate.kv_tokens / self.config.rollout.context_tokens


def planned(config: RunConfig, shape: ModelShape, nodes: Sequence[Node]) -> Plan:
    """Return the plan of `config` on `nodes`. Raises `PlanImpossible`."""
    if config.cluster.kind == "local" and len(nodes) > 1:
        raise PlanImpossible(
            [f"cluster.kind = 'local' starts everything on one machine, and there are {len(nodes)}: use 'ray'"]
        )
    wanted = [_with_memory(ask, config, shape) for ask in asks(config, gpus_there=any(node.gpus for node in nodes))]
    lines = list(_misfits(config, shape, wanted, max((node.gpu_memory_bytes for node in nodes), default=0)))
    if lines:
        raise PlanImpossible(lines)
    try:
        placement = place(wanted, nodes, placement=config.cluster.placement, spread=config.cluster.spread)
    except PlacementImpossible as error:
        raise PlanImpossible(error.lines) from error
    if config.cluster.kind == "ray":
        try:
            bundled(wanted, colocated=placement.colocated)
        except ClusterRefused as error:
            raise PlanImpossible(error.lines) from error
    return Plan(config, shape, tuple(nodes), placement)


def _with_memory(ask: Ask, config: RunConfig, shape: ModelShape) -> Ask:
    """Return `ask` with the least memory that it can work with."""
    on_gpu = ask.gpus > 0
    if ask.role == "learner":
        estimate = learner_estimate(config, shape, on_gpu=on_gpu)
        return _holding(ask, estimate, estimate.total_bytes, 0.0)
    if ask.role == "engine":
        estimate = engine_estimate(config, shape, gpu_memory_bytes=0 if on_gpu else None)
        if config.engine.kind == "torch":
            return _holding(ask, estimate, estimate.total_bytes, 0.0)
        return _holding(ask, estimate, _vllm_least(config, shape), config.engine.memory_share)
    return ask


def _holding(ask: Ask, estimate: Estimate, size_bytes: int, share: float) -> Ask:
    if ask.gpus:
        return replace(ask, memory_bytes=estimate.host_bytes, gpu_memory_bytes=size_bytes, gpu_share=share)
    return replace(ask, memory_bytes=size_bytes)


def _vllm_least(config: RunConfig, shape: ModelShape) -> int:
    """Return the bytes of weights and of the keys and values of one context, on each GPU of an engine."""
    weights = shape.parameters * vllm_dtype_bytes(config, shape) // config.engine.tensor_parallel
    return weights + config.rollout.context_tokens * kv_token_bytes(config, shape)


def _misfits(config: RunConfig, shape: ModelShape, wanted: Sequence[Ask], memory_bytes: int) -> Iterator[str]:
    """Yield a line for each kind of worker that fits no GPU, of which the largest has `memory_bytes`; 0: not known."""
    engine, share = config.engine, config.engine.memory_share
    if shape.heads % engine.tensor_parallel:
        yield (
            f"engine.tensor_parallel = {engine.tensor_parallel} does not divide the model's {shape.heads} "
            "attention heads"
        )
        return
    first = {ask.role: ask for ask in reversed(wanted) if ask.gpus}
    engines, ranks = first.get("engine"), first.get("learner")
    fits = True
    if memory_bytes and engines is not None and engines.gpu_share:
        least, room = engines.gpu_memory_bytes, int(share * memory_bytes)
        if least > room:
            fits = False
            yield (
                f"engine: weights and the KV cache of one context of {config.rollout.context_tokens} tokens take "
                f"{_gib(least)} of each GPU, and engine.memory_share = {share:g} leaves {_gib(room)} of "
                f"{_gib(memory_bytes)}: more engine.tensor_parallel would do"
            )
    if memory_bytes and ranks is not None and ranks.gpu_memory_bytes > memory_bytes:
        fits = False
        yield _too_large_a_rank(config, shape, memory_bytes, f"a GPU has {_gib(memory_bytes)}")
    if not (fits and memory_bytes and engines and ranks and config.cluster.placement == "colocated"):
        return
    held = max(engines.gpu_memory_bytes, int(engines.gpu_share * memory_bytes))
    if held + ranks.gpu_memory_bytes > memory_bytes:
        yield _too_much_together(engines, ranks, memory_bytes, held)


def _too_large_a_rank(config: RunConfig, shape: ModelShape, room_bytes: int, room: str) -> str:
    estimate = learner_estimate(config, shape, on_gpu=True)
    parts = ", ".join(f"{part.name} {_gib(part.size_bytes)}" for part in estimate.parts)
    tokens = micro_batch_that_fits(config, shape, room_bytes)
    if tokens >= config.rollout.context_tokens:
        instead = f"learner.micro_batch_tokens = {tokens // 1024 * 1024 or tokens} would do"
    else:
        instead = "more learner.ranks would do"
    return f"learner: a rank takes {_gib(estimate.total_bytes)} ({parts}), and {room}: {instead}"


def _too_much_together(engine: Ask, rank: Ask, memory_bytes: int, held: int) -> str:
    line = (
        f"colocated: an engine holds {_gib(held)} and a learner rank takes {_gib(rank.gpu_memory_bytes)}, and a GPU "
        f"has {_gib(memory_bytes)}"
    )
    left = int((memory_bytes - rank.gpu_memory_bytes) / memory_bytes * 100) / 100
    if engine.gpu_share and left * memory_bytes >= engine.gpu_memory_bytes:
        return f"{line}: engine.memory_share = {left:g} would do"
    return f"{line}: cluster.placement = 'split' gives each GPUs of its own"


def _gib(size_bytes: float) -> str:
    amount = size_bytes / GIB
    return f"{amount:.0f} GiB" if amount >= 9.95 else f"{amount:.2g} GiB"
