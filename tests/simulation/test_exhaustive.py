"""Every order of messages of tiny worlds: the shipped decisions never stall, and doubles that stall are found."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from legacy import ClearsBeforeSleep, CountsTheFiltered, WindowBehind, watchdog_of_flights

from eventrain.adapters.cli.scenario_file import load_scenario
from eventrain.adapters.simulated.exhaustive import Searched, search, successors
from eventrain.adapters.simulated.judge import judge
from eventrain.adapters.simulated.message_fork import SharedLedger, SharedView
from eventrain.adapters.simulated.message_key import key
from eventrain.adapters.simulated.message_world import MessageWorld, Setting, setting
from eventrain.adapters.simulated.scenario import Scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.core.policies import Policy
from eventrain.core.projections import View

FOLDER = Path(__file__).parent.parent / "scenarios" / "tiny"
REFUSED = {"where": "engine.generate", "what": "refuse", "times": 1}
GONE = {"where": "engine.generate", "what": "gone", "times": 1}
ERROR = {"where": "environment.step", "what": "error", "times": 1}
POLICIES = ["targeted", "capacity", "windowed"]


def tiny(
    policy: str = "targeted",
    *,
    steps: int = 2,
    per_step: int = 1,
    staleness: int = 1,
    engines: int = 1,
    faults: tuple[dict[str, Any], ...] = (),
    rewards: str = "mixed",
    double: Policy | None = None,
    fine: bool = False,
    **sections: dict[str, Any],
) -> Setting:
    """Return a world of groups of two, with data for three groups more than are trained."""
    settings: dict[str, dict[str, Any]] = {
        "run": {"steps": steps},
        "data": {"size": steps * per_step + 3},
        "scheduler": {"policy": policy, "groups_per_step": per_step, "max_staleness": staleness},
        "rollout": {"group_size": 2, "max_turns": 1},
        "failures": {"share_max": 1.0, "attempts_max": 2},
        "algorithm": {"drop_zero_variance": rewards != "mixed"},
        "checkpoint": {"at_end": False},
    }
    for name, values in sections.items():
        settings[name] = {**settings.get(name, {}), **values}
    world = {"engines": engines, "rewards": rewards}
    scenario = Scenario.model_validate({"config": settings, "world": world, "fault": faults})
    return setting(scenario, policy=double, fine=fine)


def sound(searched: Searched) -> None:
    """Demand that every order was seen, and that none broke a law."""
    assert searched.found is None, (searched.found.how, searched.found.moves)
    assert searched.whole
    assert searched.outcomes["completed"] >= 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("fault", [REFUSED, ERROR], ids=["refused", "retried"])
def test_no_order_stalls_when_an_attempt_fails(policy: str, staleness: int, fault: dict[str, Any]) -> None:
    """Whichever attempt fails, for good or for a while, every order of messages completes the run."""
    searched = search(tiny(policy, staleness=staleness, faults=(fault,)), outcomes=("completed",))
    sound(searched)
    assert searched.states > 100


@pytest.mark.parametrize("mode", ["in_flight", "pause"])
def test_no_order_stalls_when_an_engine_dies(mode: str) -> None:
    """Whatever an engine holds when it dies, in a weight sync too, every order completes the run."""
    load = {"where": "engine.finish_update", "what": "lose_reply", "times": 1}
    world = tiny(staleness=0, engines=2, faults=(GONE, load), engine={"sync_mode": mode})
    sound(search(world, outcomes=("completed",)))


def test_no_order_stalls_with_evaluations_checkpoints_and_a_stop() -> None:
    """The run may be told to stop at any moment, and a checkpoint may fail; it ends in order all the same."""
    stop = {"where": "run", "what": "stop", "at_event": 0, "times": 1}
    checkpoint = {"where": "learner.checkpoint", "what": "error", "times": 1}
    world = tiny(
        staleness=0,
        faults=(stop, checkpoint),
        eval={"every_steps": 1, "prompts": 2},
        checkpoint={"at_end": True, "every_steps": 1},
    )
    searched = search(world, outcomes=("completed", "interrupted"))
    sound(searched)
    assert searched.outcomes["interrupted"] > 1


def test_a_run_without_engines_fails_and_does_not_stall() -> None:
    """When the only engine dies for good, every order ends with that cause."""
    searched = search(tiny(staleness=0, faults=(GONE,), engine={"restarts_max": 0}))
    assert searched.found is None
    assert set(searched.outcomes) == {"completed", "failed (no_engine_left)"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_a_tiny_scenario_holds_in_every_order(path: Path) -> None:
    """It holds in every order of messages, and under some seeds of the whole system."""
    scenario = load_scenario(path)
    sound(search(setting(scenario), outcomes=scenario.expect.outcome))
    for tape in map(Tape, range(3)):
        assert judge(simulate(scenario, tape)) is None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "world",
    [
        {"per_step": 2, "staleness": 1},
        {"per_step": 2, "staleness": 0, "faults": (GONE,)},
        {"staleness": 1, "faults": (GONE,), "engines": 1},
        {"staleness": 2, "steps": 3, "faults": (REFUSED,)},
        {"staleness": 1, "steps": 3, "rewards": "any"},
        {"staleness": 1, "faults": (REFUSED, ERROR)},
    ],
    ids=lambda world: "-".join(f"{name}{len(v) if isinstance(v, tuple) else v}" for name, v in world.items()),
)
def test_no_order_stalls_in_larger_worlds(policy: str, world: dict[str, Any]) -> None:
    """The same for two groups a step, two faults and longer windows."""
    sound(search(tiny(policy, **world), outcomes=("completed", "data_exhausted")))


# It can fail


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_hole_behind_the_window_is_found(staleness: int) -> None:
    """S1: the legacy window stalls in some order, told with its chain; the shipped one never does."""
    world = {"steps": 3, "staleness": staleness, "faults": (REFUSED,)}
    sound(search(tiny(**world)))
    found = search(tiny(**world, double=WindowBehind())).found
    assert found is not None
    assert found.law == "never stalls"
    assert found.stall is not None
    chain = [link for link in found.stall.chain if not link.startswith("prompt")]
    assert chain == [
        "trainer waits buffer_ready(1)", "target 1 short by 1", "collector waits version(2)", "trainer"
    ]  # fmt: skip
    if staleness:
        assert "prompt 1 failed, permanent: refused" in found.stall.chain
        assert found.moves[-1] == "collector looks"
        assert sum("engine.generate refuse" in move for move in found.moves) == 1


def test_the_counterexample_is_a_shortest_one() -> None:
    """No search of fewer states finds the stall: the way has as many moves as the search was deep."""
    searched = search(tiny(steps=3, faults=(REFUSED,), double=WindowBehind()))
    assert searched.found is not None
    assert len(searched.found.moves) == searched.depth


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_count_that_keeps_what_was_filtered_is_found(staleness: int) -> None:
    """S8: with the legacy count some filtered groups starve the trainer; with the shipped one none do."""
    world = {"policy": "capacity", "staleness": staleness, "rewards": "any"}
    sound(search(tiny(**world), outcomes=("completed", "data_exhausted")))
    found = search(tiny(**world, double=CountsTheFiltered())).found
    assert found is not None
    assert "filtered: zero variance" in found.how
    assert sum("rewards of its group are equal" in move for move in found.moves) == 1 + staleness


def test_a_stall_with_nothing_in_flight_is_reported() -> None:
    """S18: later targets are full and nothing is in flight: the legacy watchdog is silent, the verdict is not."""
    found = search(tiny(steps=3, faults=(REFUSED,), double=WindowBehind())).found
    assert found is not None
    view = View()
    for record in found.log:
        view.apply(record)
    assert set(view.groups.buffered_by_target) == {2}
    assert view.trainer.step == 1
    assert not watchdog_of_flights(view)
    assert found.stall is not None
    assert found.stall.kind == "deadlock"


def test_a_wakeup_that_gets_lost_is_found() -> None:
    """S2: whoever clears the flag after the look sleeps through an event in between; who is asked again does not."""
    sound(search(tiny()))
    found = search(tiny(), attention=ClearsBeforeSleep()).found
    assert found is not None
    assert found.stall is not None
    assert found.stall.chain[-1] == (
        "collector asleep although its decision is due: predicate true, waiter asleep"
    )


def test_a_broken_law_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that reaches a step too far trains a group that is too old in some order, and the ledger says so."""

    class TooFar(WindowBehind):
        def window(self, view, config) -> range:
            version = view.engines.generation_version
            last = config.run.steps - 1
            return range(0) if version is None else range(view.trainer.step, min(version + 1, last) + 1)

    found = search(tiny(staleness=0, double=TooFar(), scheduler={"permits": 2, "buffer_groups": 2})).found
    assert found is not None
    assert found.law == "ledger"
    assert found.how.startswith("lag: ")


def test_an_unexpected_end_is_found() -> None:
    """A run that may run out of data is no completed one, if only that is expected."""
    found = search(tiny(rewards="any"), outcomes=("completed",)).found
    assert found is not None
    assert (found.law, found.how) == ("ends as it should", "data_exhausted; expected completed")


# What it leaves out


@pytest.mark.parametrize(
    "world",
    [
        {"staleness": 1, "faults": (REFUSED,)},
        {"staleness": 0, "faults": (GONE,), "engines": 2},
        {"staleness": 1, "policy": "windowed", "faults": (ERROR,)},
        {"policy": "capacity", "staleness": 1, "rewards": "any", "data": {"size": 3}},
    ],
    ids=["refused", "gone", "windowed", "filtered"],
)
def test_states_that_count_as_the_same_go_on_in_the_same_way(world: dict[str, Any]) -> None:
    """Two ways to one key: what can follow has the same keys too, so nothing is missed by going on from one."""
    first = MessageWorld(tiny(**world), view=SharedView(), ledger=SharedLedger())
    follow: dict[bytes, frozenset[bytes]] = {}
    ahead, again = deque([first]), 0
    while ahead:
        now = ahead.popleft()
        after = [] if now.over else [one for _, one in successors(now)]
        keys = frozenset(map(key, after))
        state = key(now)
        if state in follow:
            assert follow[state] == keys
            again += 1
            continue
        follow[state] = keys
        ahead += after
    assert again > 50


@pytest.mark.parametrize("double", [None, WindowBehind()], ids=["shipped", "legacy"])
def test_finer_moves_find_the_same(double: Policy | None) -> None:
    """Start, call and end of an attempt as moves of their own: more states, the same verdict."""
    world = {"steps": 3, "staleness": 0, "faults": (REFUSED,), "double": double}
    coarse, fine = search(tiny(**world)), search(tiny(**world, fine=True))
    assert fine.states > coarse.states
    assert (fine.found is None) == (coarse.found is None) == (double is None)
    if fine.found is not None and coarse.found is not None:
        assert fine.found.how == coarse.found.how


def test_too_large_a_world_is_not_called_sound() -> None:
    """A search that stops at its limit says that it has not seen all."""
    searched = search(tiny(), states_max=50)
    assert not searched.whole
    assert searched.found is None


@pytest.mark.parametrize("where", ["disk", "engine.close"])
def test_a_fault_without_meaning_at_this_level_is_refused(where: str) -> None:
    """What is not part of such a world is said, not ignored."""
    fault = {"where": where, "what": "slow" if where == "disk" else "hang", "seconds": 1.0}
    with pytest.raises(ValueError, match=f"at the level of messages {where} is not part of it"):
        tiny(faults=(fault,))
