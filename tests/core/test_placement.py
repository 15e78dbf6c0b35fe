"""Where the workers of a run lie."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventrain.core.placement import GIB, Ask, Node, PlacementImpossible, place

ROLES = ("engine", "learner", "environment")


def asked(role: str, count: int, cpus: float = 1.0, gpus: float = 0.0, **more) -> list[Ask]:
    """Return `count` equal asks."""
    return [Ask(f"{role}-{n}", role, cpus, gpus, **more) for n in range(count)]


def machines(count: int, cpus: float = 16, gpus: int = 8, **more) -> list[Node]:
    """Return `count` equal nodes."""
    return [Node(f"node-{n}", cpus, gpus, **more) for n in range(count)]


ASKS = st.builds(
    lambda engines, tp, ranks, workers, cpus: [
        *asked("engine", engines, 1.0, float(tp)),
        *asked("learner", ranks, cpus, 1.0),
        *asked("environment", workers, cpus),
    ],
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([0.5, 1.0, 2.0]),
)
NODES = st.lists(
    st.builds(lambda cpus, gpus: (float(cpus), gpus), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=3
).map(lambda sizes: [Node(f"node-{n}", cpus, gpus) for n, (cpus, gpus) in enumerate(sizes)])
HOW = st.fixed_dictionaries(
    {"placement": st.sampled_from(["split", "colocated"]), "spread": st.sampled_from(["pack", "spread"])}
)


def exists(asks: list[Ask], nodes: list[Node], colocated: bool) -> bool:
    """Try every assignment of asks to nodes; GPUs are interchangeable, so counts decide."""
    for where in itertools.product(range(len(nodes)), repeat=len(asks)):
        for n, node in enumerate(nodes):
            here = [ask for ask, at in zip(asks, where, strict=True) if at == n]
            gpus = Counter()
            for ask in here:
                gpus[colocated and ask.role == "learner"] += ask.gpus
            if sum(ask.cpus for ask in here) > node.cpus or max(gpus.values(), default=0) > node.gpus:
                break
        else:
            return True
    return False


@settings(max_examples=150, deadline=None)
@given(ASKS, NODES, HOW)
def test_a_placement_is_found_exactly_where_there_is_one(asks, nodes, how):
    """Small cases: what trying everything finds possible is placed, and nothing else; nothing is over capacity."""
    possible = exists(asks, nodes, how["placement"] == "colocated")
    try:
        placed = place(asks, nodes, **how)
    except PlacementImpossible as error:
        assert not possible
        assert error.lines  # noqa: PT017 - whether it is raised is what is compared
        return
    assert possible
    assert [seat.ask for seat in placed.seats] == asks
    for node in nodes:
        seats = placed.on(node.name)
        assert sum(seat.ask.cpus for seat in seats) <= node.cpus
        for gpu in range(node.gpus):
            roles = [seat.ask.role for seat in placed.on(node.name, gpu)]
            allowed = 2 if how["placement"] == "colocated" else 1
            assert len(roles) <= allowed
            assert len(set(roles)) == len(roles)
    for seat in placed.seats:
        assert len(set(seat.gpus)) == math.ceil(seat.ask.gpus)


@settings(max_examples=100, deadline=None)
@given(ASKS, NODES, HOW, st.randoms(use_true_random=False))
def test_names_and_order_decide_nothing(asks, nodes, how, chance: random.Random):
    """Renamed and shuffled, the same asks fill the same nodes in the same way."""

    def shape(asks, nodes):
        try:
            placed = place(asks, nodes, **how)
        except PlacementImpossible:
            return None
        return sorted(
            (node.cpus, node.gpus, sorted(seat.ask.role for seat in placed.on(node.name))) for node in nodes
        )

    other, renamed = list(asks), list(nodes)
    chance.shuffle(other)
    chance.shuffle(renamed)
    other = [Ask(f"x{n}", ask.role, ask.cpus, ask.gpus) for n, ask in enumerate(other)]
    renamed = [Node(f"y{n}", node.cpus, node.gpus) for n, node in enumerate(renamed)]
    assert shape(other, renamed) == shape(asks, nodes)


def test_pack_uses_few_nodes_and_spread_uses_many():
    """Two engines and two ranks fit one node of two; spread gives each node one of both."""
    asks = [*asked("engine", 2, gpus=1.0), *asked("learner", 2, gpus=1.0)]
    packed = place(asks, machines(2), spread="pack")
    assert {seat.node for seat in packed.seats} == {"node-0"}
    spread = place(asks, machines(2), spread="spread")
    for node in ("node-0", "node-1"):
        assert sorted(seat.ask.role for seat in spread.on(node)) == ["engine", "learner"]


def test_a_colocated_rank_lies_on_the_gpu_of_an_engine():
    """Every rank shares a GPU with an engine as long as there is one, also with an engine of several GPUs."""
    placed = place(
        [*asked("engine", 1, gpus=2.0), *asked("learner", 2, gpus=1.0)], machines(1), placement="colocated"
    )
    assert placed.of("engine-0").gpus == (0, 1)
    assert sorted(placed.of(f"learner-{n}").gpus for n in range(2)) == [(0,), (1,)]


def test_a_rank_takes_a_free_gpu_only_where_no_engine_is_left():
    """Six ranks and two engines of three GPUs on two nodes of four: each rank shares, none takes a fourth GPU."""
    asks = [*asked("engine", 2, gpus=3.0), *asked("learner", 6, gpus=1.0)]
    placed = place(asks, machines(2, gpus=4), placement="colocated")
    for seat in placed.seats:
        assert any(other.ask.role == "engine" for gpu in seat.gpus for other in placed.on(seat.node, gpu))


def test_pack_finds_the_few_nodes_that_do():
    """Parts of 4, 4, 3, 3, 3, 3 fill two nodes of 10, although taking them as they come would open a third."""
    asks = [Ask(f"environment-{n}", "environment", float(cpus), 0.0) for n, cpus in enumerate([4, 4, 3, 3, 3, 3])]
    placed = place(asks, machines(3, cpus=10, gpus=0))
    assert {seat.node for seat in placed.seats} == {"node-0", "node-1"}


def test_spread_counts_workers_of_the_same_role():
    """Where only one node has GPUs and so all engines, environments are spread over both all the same."""
    nodes = [Node("gpus", 16, 3), Node("cpus", 16)]
    placed = place([*asked("engine", 3, gpus=1.0), *asked("environment", 2)], nodes, spread="spread")
    assert {placed.of(f"environment-{n}").node for n in range(2)} == {"gpus", "cpus"}


def test_a_large_cluster_is_placed_at_once():
    """Sixty-four nodes with eight engines each, ranks and workers: no search."""
    asks = [
        *asked("engine", 256, gpus=1.0),
        *asked("learner", 256, gpus=1.0),
        *asked("environment", 512),
    ]
    placed = place(asks, machines(64, cpus=32.0), spread="spread")
    assert all(len(placed.on(f"node-{n}")) == 16 for n in range(64))


def gpu_nodes(count: int = 1, gpus: int = 2) -> list[Node]:
    """Return nodes whose GPUs have 80 GiB."""
    return machines(count, gpus=gpus, memory_bytes=100 * GIB, gpu_memory_bytes=80 * GIB)


@pytest.mark.parametrize(
    ("asks", "nodes", "placement", "line"),
    [
        (
            asked("engine", 3, gpus=1.0),
            machines(1, gpus=2),
            "split",
            "engine-2 asks for 1 GPU: node-0 has 2, both taken by engine-0 and engine-1",
        ),
        (
            asked("engine", 1, gpus=16.0),
            machines(2),
            "split",
            "engine-0 asks for 16 GPUs on one machine: node-0 has 8; node-1 has 8",
        ),
        (
            [*asked("engine", 1, gpus=6.0), *asked("engine", 1, gpus=4.0)],
            machines(1),
            "split",
            "engine-0 asks for 4 GPUs on one machine: node-0 has 8, 2 of them free",
        ),
        (asked("learner", 1, gpus=1.0), machines(1, gpus=0), "split", "learner-0 asks for 1 GPU: node-0 has no GPU"),
        (
            asked("environment", 3, cpus=2.0),
            machines(1, cpus=5, gpus=0),
            "split",
            "environment-2 asks for 2 CPUs (cluster.environment_cpus): node-0 has 5 CPUs, 1 of them free",
        ),
        (
            asked("learner", 1, gpus=1.0, gpu_memory_bytes=93 * GIB),
            gpu_nodes(),
            "split",
            "learner-0 asks for 1 GPU with 93 GiB: node-0 has 2 of 80 GiB",
        ),
        (
            [
                *asked("engine", 1, gpus=1.0, gpu_share=0.85),
                *asked("learner", 1, gpus=1.0, gpu_memory_bytes=20 * GIB),
            ],
            gpu_nodes(gpus=1),
            "colocated",
            "learner-0 asks for 1 GPU with 20 GiB: node-0 has 1 of 80 GiB, of which engine-0 holds 68 GiB",
        ),
        (
            asked("learner", 1, memory_bytes=200 * GIB),
            gpu_nodes(),
            "split",
            "learner-0 asks for 200 GiB of memory: node-0 has 100 GiB of memory, 100 GiB of it free",
        ),
        ([*asked("engine", 1)], [], "split", "there is no machine to place anything on"),
    ],
)
def test_a_refusal_says_what_was_asked_and_what_each_node_has(asks, nodes, placement, line):
    """What does not fit is said in one line: who asks, for what, and what is there."""
    with pytest.raises(PlacementImpossible) as caught:
        place(asks, nodes, placement=placement)
    assert caught.value.lines == (line,)
