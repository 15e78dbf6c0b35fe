"""What a run asks of the machines, one ask for every process that it starts elsewhere, and where these fit.

Pure arithmetic: who knows the machines (`eventrain plan`, a cluster) gives them as `Node`s. A worker lies on one node
whole, its GPUs too: an engine that is spread over GPUs (tensor parallel) talks between them all the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from .config import RunConfig
from .projections.environment_workers import worker_name

Role = Literal["engine", "learner", "environment"]
GIB = 2**30

TRIED_MAX = 20_000
"""Partial placements that are tried at most; the first try of nearly every real cluster is right."""
NODES_SAID = 4
"""Nodes that a refusal speaks of one by one."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one worker needs."""

    worker: str
    """``engine-0``, ``learner-1``, ``environment-0``: as its launcher knows it."""
    role: Role
    cpus: float
    gpus: float
    """Below 1 where it shares a GPU with another worker."""
    memory_bytes: int = 0
    """Of the machine's memory; 0: not known, and not reckoned with."""
    gpu_memory_bytes: int = 0
    """Of the memory of each of its GPUs; 0: not known, and not reckoned with."""
    gpu_share: float = 0.0
    """Of the memory of each of its GPUs, which it takes in any case."""


def asks(config: RunConfig, *, gpus_there: bool) -> list[Ask]:
    """Return what `config` asks for, engines first, then learner ranks, then environment workers.

    `gpus_there` says whether the machines have GPUs; where they have not, nothing asks for one that does not have to.
    Servers that run already (`engine.urls`) ask for nothing.
    """
    cluster, engine, learner = config.cluster, config.engine, config.learner
    on_gpu = {
        "engine": gpus_there and engine.device != "cpu",
        "learner": gpus_there and learner.device != "cpu",
    }
    default = {
        "engine": float(engine.tensor_parallel if engine.kind != "torch" else 1),
        "learner": 1.0,
    }
    said = {"engine": cluster.engine_gpus, "learner": cluster.learner_gpus}
    gpus = {
        role: float(wanted) if (wanted := said[role]) is not None else default[role] * on_gpu[role]
        for role in on_gpu
    }
    started = 0 if engine.urls else engine.count
    return [
        *(Ask(f"engine-{n}", "engine", cluster.engine_cpus, gpus["engine"]) for n in range(started)),
        *(Ask(f"learner-{n}", "learner", cluster.learner_cpus, gpus["learner"]) for n in range(learner.ranks)),
        *(
            Ask(worker_name(n), "environment", cluster.environment_cpus, 0.0)
            for n in range(config.environment.workers)
        ),
    ]


@dataclass(frozen=True, slots=True)
class Node:
    """A machine."""

    name: str
    cpus: float
    gpus: int = 0
    memory_bytes: int = 0
    """0: not known, and not reckoned with; so is the next."""
    gpu_memory_bytes: int = 0
    """Of each of its GPUs."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one worker lies."""

    ask: Ask
    node: str
    gpus: tuple[int, ...] = ()
    """Numbers of its GPUs on that node, from 0."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where every worker lies, in the order in which they were asked for."""

    seats: tuple[Seat, ...]
    colocated: bool = False
    """Whether learner ranks lie on the GPUs of engines."""

    def of(self, worker: str) -> Seat:
        """Return the seat of `worker`. Raises KeyError."""
        for seat in self.seats:
            if seat.ask.worker == worker:
                return seat
        raise KeyError(worker)

    def on(self, node: str, gpu: int | None = None) -> list[Seat]:
        """Return the seats on `node`, of those that use its GPU number `gpu` if one is given."""
        return [seat for seat in self.seats if seat.node == node and (gpu is None or gpu in seat.gpus)]


class PlacementImpossible(ValueError):
    """What was asked for does not fit. `lines` say what was asked, and what each node has."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)


def place(
    asks: Sequence[Ask],
    nodes: Sequence[Node],
    *,
    placement: Literal["auto", "split", "colocated"] = "auto",
    spread: Literal["pack", "spread"] = "pack",
) -> Placement:
    """Return where every one of `asks` lies on `nodes`. Raises `PlacementImpossible`.

    ``auto`` is ``split`` where that is possible, else ``colocated``. With ``split`` no two workers that ask for whole
    GPUs share one. With ``colocated`` learner ranks lie on the GPUs of engines, one rank a GPU, as long as there are
    any, if the memory of both fits. ``pack`` uses as few nodes as it finds to do, the largest first; ``spread`` goes
    to the node that has fewest workers of the same role. Names decide nothing but the order among equals. Many small
    workers of odd sizes may be refused although a placement exists: after `TRIED_MAX` attempts the search ends.
    """
    if placement != "auto":
        return _placed(asks, nodes, placement == "colocated", spread)
    try:
        return _placed(asks, nodes, False, spread)
    except PlacementImpossible:
        try:
            return _placed(asks, nodes, True, spread)
        except PlacementImpossible:
            pass
        raise


def _placed(
    asks: Sequence[Ask], nodes: Sequence[Node], colocated: bool, spread: Literal["pack", "spread"]
) -> Placement:
    ordered = sorted(enumerate(asks), key=lambda one: (_ROLES.index(one[1].role), -one[1].gpus, -one[1].cpus))
    machines = sorted(nodes, key=lambda node: (-node.gpus, -node.cpus, -node.memory_bytes))
    for count in range(1 if spread == "pack" else len(machines), len(machines) + 1):
        if sum(node.cpus for node in machines[:count]) + 1e-9 < sum(ask.cpus for ask in asks):
            continue
        room = [_Room(node, colocated=colocated) for node in machines[:count]]
        seats = _Search(room, [ask for _, ask in ordered], spread == "spread").seats()
        if seats is not None:
            by_place = {place: seat for (place, _), seat in zip(ordered, seats, strict=True)}
            return Placement(tuple(by_place[place] for place in range(len(asks))), colocated)
    room = [_Room(node, colocated=colocated) for node in machines]
    raise PlacementImpossible(list(_why([ask for _, ask in ordered], room, spread == "spread")))


_ROLES: tuple[Role, ...] = ("engine", "learner", "environment")


class _Gpu:
    """What is taken of one GPU. Engines and learner ranks are two layers where they may share it."""

    def __init__(self) -> None:
        self.taken = {0: 0.0, 1: 0.0}
        self.held_bytes = 0.0
        self.holders: list[str] = []

    def state(self) -> tuple[float, ...]:
        return (self.taken[0], self.taken[1], self.held_bytes)


class _Room:
    """What is left of one node."""

    def __init__(self, node: Node, *, colocated: bool) -> None:
        self.node = node
        self.colocated = colocated
        self.cpus = node.cpus
        self.memory_bytes = node.memory_bytes
        self.gpus = [_Gpu() for _ in range(node.gpus)]
        self.workers: list[Ask] = []

    def state(self) -> tuple[object, ...]:
        """Return what decides what else fits; equal for rooms that are interchangeable."""
        gpus = tuple(sorted(gpu.state() for gpu in self.gpus))
        return (self.cpus, self.memory_bytes, gpus, self.node.gpu_memory_bytes)

    def layer(self, ask: Ask) -> int:
        return 1 if self.colocated and ask.role == "learner" else 0

    def holds(self, ask: Ask) -> float:
        """Return the bytes that `ask` holds on each of its GPUs here."""
        return max(ask.gpu_memory_bytes, ask.gpu_share * self.node.gpu_memory_bytes)

    def open_gpus(self, ask: Ask) -> list[int]:
        """Return the GPUs that nobody has whom `ask` would be in the way of, whatever their memory."""
        layer, part = self.layer(ask), min(1.0, ask.gpus)
        return [number for number, gpu in enumerate(self.gpus) if gpu.taken[layer] + part <= 1 + 1e-9]

    def free_gpus(self, ask: Ask) -> list[int]:
        """Return the GPUs that `ask` could use, those first that it would rather share."""
        free = [number for number in self.open_gpus(ask) if self.memory_fits(ask, self.gpus[number])]
        return sorted(free, key=lambda number: -sum(self.gpus[number].taken.values()))

    def memory_fits(self, ask: Ask, gpu: _Gpu) -> bool:
        total = self.node.gpu_memory_bytes
        return not total or gpu.held_bytes + self.holds(ask) <= total

    def fits(self, ask: Ask) -> bool:
        return not self.lacks_cpus(ask) and not self.lacks_memory(ask) and not self.lacks_gpus(ask)

    def lacks_cpus(self, ask: Ask) -> bool:
        return self.cpus + 1e-9 < ask.cpus

    def lacks_memory(self, ask: Ask) -> bool:
        return bool(self.node.memory_bytes) and self.memory_bytes < ask.memory_bytes

    def lacks_gpus(self, ask: Ask) -> bool:
        return len(self.free_gpus(ask)) < math.ceil(ask.gpus)

    def take(self, ask: Ask) -> tuple[int, ...]:
        """Give `ask` its part and return its GPUs; it must fit."""
        gpus = tuple(sorted(self.free_gpus(ask)[: math.ceil(ask.gpus)]))
        self._give(ask, gpus, 1)
        self.workers.append(ask)
        return gpus

    def give_back(self, gpus: tuple[int, ...]) -> None:
        """Undo the last `take`."""
        self._give(self.workers.pop(), gpus, -1)

    def _give(self, ask: Ask, gpus: tuple[int, ...], sign: int) -> None:
        self.cpus -= sign * ask.cpus
        self.memory_bytes -= sign * ask.memory_bytes
        for number in gpus:
            gpu = self.gpus[number]
            gpu.taken[self.layer(ask)] += sign * min(1.0, ask.gpus)
            gpu.held_bytes += sign * self.holds(ask)
            if sign > 0:
                gpu.holders.append(ask.worker)
            else:
                gpu.holders.pop()

    def rank(self, ask: Ask, *, spread: bool) -> tuple[float, ...]:
        """Return how gladly `ask` comes here; the least comes first."""
        shares = any(gpu.taken[0] and self.memory_fits(ask, gpu) and not gpu.taken[1] for gpu in self.gpus)
        alone = float(self.layer(ask) == 1 and not shares)
        if not spread:
            return (alone, -len(self.workers))
        return (alone, sum(other.role == ask.role for other in self.workers), len(self.workers))


class _Search:
    """Depth-first over the asks, each on the node that it likes best, never twice in the same state."""

    def __init__(self, room: list[_Room], asks: Sequence[Ask], spread: bool) -> None:
        self._room = room
        self._asks = asks
        self._spread = spread
        self._dead: set[tuple[object, ...]] = set()

    def seats(self) -> list[Seat] | None:
        """Return a seat for every ask, None where none was found."""
        seats: list[Seat] = []
        # The ways that are still open at each depth: a loop, as there may be more workers than a stack has frames.
        ways = [self._ways(0)]
        taken: list[tuple[_Room, tuple[int, ...]]] = []
        while len(seats) < len(self._asks):
            depth = len(seats)
            room = next(ways[-1], None)
            if room is None:
                self._dead.add(self._state(depth))
                if depth == 0 or len(self._dead) > TRIED_MAX:
                    return None
                ways.pop()
                last, gpus = taken.pop()
                last.give_back(gpus)
                seats.pop()
                continue
            gpus = room.take(self._asks[depth])
            taken.append((room, gpus))
            seats.append(Seat(self._asks[depth], room.node.name, gpus))
            ways.append(self._ways(depth + 1))
        return seats

    def _ways(self, depth: int) -> Iterator[_Room]:
        if depth == len(self._asks) or self._state(depth) in self._dead:
            return
        ask, tried = self._asks[depth], set()
        for room in sorted(self._room, key=lambda room: room.rank(ask, spread=self._spread)):
            state = room.state()
            if state not in tried and room.fits(ask):
                tried.add(state)
                yield room

    def _state(self, depth: int) -> tuple[object, ...]:
        return (depth, *sorted((room.state() for room in self._room), key=repr))


def counted(asked: Sequence[Ask]) -> str:
    """Return ``2 engines, 1 learner rank and 4 environment workers``."""
    words = {"engine": "engine", "learner": "learner rank", "environment": "environment worker"}
    counts = {role: sum(ask.role == role for ask in asked) for role in words}
    parts = [f"{n} {words[role]}{'s' * (n > 1)}" for role, n in counts.items() if n]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


# Why not


def _why(asks: Sequence[Ask], room: Sequence[_Room], spread: bool) -> Iterator[str]:
    """Yield a line for the first worker of each role that finds no place once those before it have theirs."""
    if not room:
        yield "there is no machine to place anything on"
        return
    said: set[str] = set()
    for ask in asks:
        fitting = [one for one in room if one.fits(ask)]
        if fitting:
            min(fitting, key=lambda one: one.rank(ask, spread=spread)).take(ask)
        elif ask.role not in said:
            said.add(ask.role)
            yield f"{ask.worker} asks for {_asked(ask, room)}: {_of_each(ask, room)}"
    if not said:
        yield f"no placement of these {len(asks)} workers was found on {len(room)} nodes"


def _asked(ask: Ask, room: Sequence[_Room]) -> str:
    for one in room:
        if not one.lacks_gpus(ask) and not one.lacks_memory(ask):
            return f"{_cpus(ask.cpus)} (cluster.{ask.role}_cpus)"  # it lacks nothing else there
    if any(one.lacks_gpus(ask) for one in room) and ask.gpus:
        together = " on one machine" if ask.gpus > 1 else ""
        short_of_memory = any(len(one.open_gpus(ask)) >= math.ceil(ask.gpus) > 0 for one in room)
        memory = f" with {_gib(ask.gpu_memory_bytes)}" if short_of_memory else ""
        return f"{ask.gpus:g} {'GPU' if ask.gpus <= 1 else 'GPUs'}{memory}{together}"
    return f"{_gib(ask.memory_bytes)} of memory"


def _of_each(ask: Ask, room: Sequence[_Room]) -> str:
    said = [f"{one.node.name} {_has(ask, one)}" for one in room[:NODES_SAID]]
    more = len(room) - len(said)
    return "; ".join([*said, *([f"so it is with {more} more"] if more else [])])


def _has(ask: Ask, room: _Room) -> str:
    node = room.node
    if room.lacks_gpus(ask):
        return _has_gpus(ask, room)
    if room.lacks_memory(ask):
        return f"has {_gib(node.memory_bytes)} of memory, {_gib(room.memory_bytes)} of it free"
    of = "it" if node.cpus == 1 else "them"
    return f"has {_cpus(node.cpus)}, {room.cpus:g} of {of} free"


def _has_gpus(ask: Ask, room: _Room) -> str:
    count, memory = len(room.gpus), room.node.gpu_memory_bytes
    if not count:
        return "has no GPU"
    if memory and room.holds(ask) > memory:
        return f"has {count} of {_gib(memory)}"
    open_ones = room.open_gpus(ask)
    if len(open_ones) >= ask.gpus:  # it is the memory
        gpu = room.gpus[open_ones[0]]
        return f"has {count} of {_gib(memory)}, of which {_and(gpu.holders)} holds {_gib(gpu.held_bytes)}"
    holders = list(dict.fromkeys(name for gpu in room.gpus for name in gpu.holders))
    if not holders:
        return f"has {count}"
    if open_ones:
        return f"has {count}, {len(open_ones)} of them free"
    every = {1: "", 2: "both "}.get(count, "all ")
    return f"has {count}, {every}taken by {_and(holders)}"


def _and(names: Iterable[str]) -> str:
    listed = list(names)
    if len(listed) > NODES_SAID:
        listed = [*listed[: NODES_SAID - 1], f"{len(listed) - NODES_SAID + 1} more"]
    return " and ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed)


def _cpus(count: float) -> str:
    return f"{count:g} {'CPU' if count == 1 else 'CPUs'}"


def _gib(count_bytes: float) -> str:
    amount = count_bytes / GIB
    return f"{amount:.0f} GiB" if amount >= 9.95 else f"{amount:.1f} GiB"
