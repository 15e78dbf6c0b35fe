"""Answers of another run's weights are never taken for ours, however alike the numbers of the versions are."""

from __future__ import annotations

import pytest

from eventrain.adapters.vllm.ownership import named, version_named
from eventrain.core.ports import EngineGone


def test_a_version_is_known_by_its_owner() -> None:
    """What was named for an owner is read for it, also where the owner's name has colons."""
    assert version_named(named("engine-0:host:1:0:ab12", 17), "engine-0:host:1:0:ab12") == 17


@pytest.mark.parametrize("name", ["17@another", "17", "default", "@ours", "x@ours", ""])
def test_weights_of_others_are_refused(name: str) -> None:
    """Another run's, a server's own and what is no version mean that the engine is not ours any more."""
    with pytest.raises(EngineGone, match="are not this run's: another one has taken it over"):
        version_named(name, "ours")
