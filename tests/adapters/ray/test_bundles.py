"""Which worker lies in which bundle."""

from __future__ import annotations

import pytest

from eventrain.adapters.ray.bundles import ClusterRefused, Place, bundled
from eventrain.core.placement import Ask


def asked(engine_gpus: float, ranks: int = 1) -> list[Ask]:
    """Return the asks of an engine, learner ranks, and a worker that asks for nothing."""
    return [
        Ask("engine-0", "engine", 1, engine_gpus),
        *(Ask(f"learner-{n}", "learner", 2, 1) for n in range(ranks)),
        Ask("environment-0", "environment", 0, 0),
    ]


def test_every_worker_that_asks_for_something_has_a_bundle() -> None:
    """Split, nobody shares; who asks for nothing goes anywhere."""
    places, bundles = bundled(asked(2), colocated=False)
    assert bundles == [(1, 2), (2, 1)]
    assert places == {"engine-0": Place(1, 2, 0), "learner-0": Place(2, 1, 1), "environment-0": Place(0, 0, None)}


def test_a_colocated_rank_has_half_of_its_engines_gpu() -> None:
    """Both lie in one bundle; a rank without an engine of its number has a GPU to itself."""
    places, bundles = bundled(asked(1, ranks=2), colocated=True)
    assert bundles == [(3, 1), (2, 1)]
    assert places["engine-0"] == Place(1, 0.5, 0)
    assert places["learner-0"] == Place(2, 0.5, 0)
    assert places["learner-1"] == Place(2, 1, 1)


def test_gpus_of_an_engine_that_has_several_cannot_be_shared() -> None:
    """Ray divides one GPU, not two: the refusal says what would do."""
    with pytest.raises(ClusterRefused, match=r"learner-0 cannot share an engine's 2 GPUs in Ray.*say 'split'"):
        bundled(asked(2), colocated=True)
