"""A controller that dies without a word leaves nothing running, whatever its workers are in the middle of."""

from __future__ import annotations

import pytest
from ray_controllers import ENDED_S, below, controller, wait_ended

pytestmark = [pytest.mark.slow, pytest.mark.ray]


def test_nothing_of_a_ray_of_our_own_is_left() -> None:
    """Killed by SIGKILL, the controller takes its actors and every process of its own Ray along."""
    with controller() as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline().split()[2]) for _ in range(2)]
        pids = below(parent.pid)
        assert set(workers) <= set(pids)
        assert len(pids) > len(workers) + 3  # the store of the cluster's state, the node's daemon, its agents
        parent.kill()
    wait_ended(pids, ENDED_S)
