"""frontier, as its users see it: on runs in virtual time, where it can be exact, and on logs that say too little."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from worlds import World, config

from eventrain.adapters.simulated.frontier import POLICIES, Latencies, Model, Point, marked
from eventrain.core.ports import GenerateRequest
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.record import Record
from eventrain.events.types import GroupDispatched

TRAIN_S, SYNC_S = 0.6, 0.1


def write_log(path: Path, records: list[Record]) -> None:
    """Write `records` as the log of a new run folder."""
    folder = RunFolder.create(path)
    writer = LogWriter(folder.events, run="run", epoch=1, first_seq=0, segment_bytes=1 << 26)
    writer.start(lambda _seq: None, lambda _error: None)
    for record in records:
        writer.append(record)
    writer.close()


def ran(policy: str = "targeted", staleness: int = 1, steps: int = 40, slots: int = 16) -> World:
    """Return a run whose groups take 0.2 to 2 s: two trajectories each, equally long, in `slots` slots."""
    world = World(
        config(
            run={"steps": steps},
            scheduler={"policy": policy, "groups_per_step": 4, "max_staleness": staleness},
            rollout={"group_size": 2, "max_turns": 1},
            eval={"every_steps": 5, "prompts": 2},
        )
    )

    def seconds(request: GenerateRequest) -> float:
        return min(2.0, random.Random(request.request.split("/")[0]).lognormvariate(-0.6, 0.6))

    async def take_weights(_: int) -> None:
        await world.clock.sleep(SYNC_S)

    engine = world.pool[0]
    engine.seconds, engine.slots, engine.on_load = seconds, slots, take_weights
    world.learner.seconds = TRAIN_S
    return world.go()


@pytest.fixture(scope="module", name="finished")
def _finished() -> World:
    """Return a whole run."""
    return ran()


def test_the_table_has_every_policy_and_the_runs_place_in_it(tmp_path: Path, finished: World, command) -> None:
    """One row per policy and bound, the measured row below the run's own, the plot, and what was assumed."""
    write_log(tmp_path / "run", finished.log)
    result = command("frontier", tmp_path / "run", "--seeds", "1")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    for policy in POLICIES:
        assert sum(line[3:].startswith(policy) for line in lines) == 3
    (own,) = (n for n, line in enumerate(lines) if line.endswith("<- the run's own setting"))
    assert lines[own][3:].split()[:2] == ["targeted", "1"]
    assert lines[own + 1].split()[:2] == ["measured", "1"]
    assert any("@" in line for line in lines[own:] if "|" in line)
    assert any(line.startswith("assumed: ") for line in lines)


def test_the_model_meets_the_run_where_its_assumptions_hold(tmp_path: Path, finished: World, command) -> None:
    """Its step is within 5 % of the measured one, and lag and ideal are those of the run."""
    write_log(tmp_path / "run", finished.log)
    table = json.loads(command("frontier", tmp_path / "run", "--seeds", "2", "--json").output)
    assert abs(table["model_error"]) < 0.05
    (own,) = (row for row in table["settings"] if row["own"])
    assert own["lag_max"] == table["measured"]["lag_max"] == 1
    assert own["lag_mean"] == pytest.approx(table["measured"]["lag_mean"], abs=0.1)
    assert table["ideal_step_s"] > TRAIN_S + SYNC_S
    assert 8 < table["places"] < 10  # 16 slots for two trajectories each, and some time goes to the environment
    assert any(row["best"] for row in table["settings"])
    waste = {row["policy"]: row["waste"] for row in table["settings"] if row["max_staleness"] == 1}
    assert waste["windowed"] > 0
    assert waste["targeted"] == 0


@pytest.mark.parametrize(("policy", "staleness", "slots"), [("windowed", 1, 16), ("capacity", 2, 4)])
def test_the_model_meets_runs_of_other_policies(policy: str, staleness: int, slots: int) -> None:
    """With groups given up, and with a queue at the engines, the own setting comes out as it was."""
    latencies = Latencies.of(ran(policy, staleness, slots=slots).log)
    assert latencies.lacks() == ""
    model, measured = Model(latencies), latencies.measured()
    (own,) = (setting for setting in model.settings() if setting.own)
    point = Point.of(own, [own.simulate(seed) for seed in range(3)])
    assert point.step_s == pytest.approx(measured.step_s, rel=0.12)
    assert point.lag_mean == pytest.approx(measured.lag_mean, abs=0.35)
    assert (point.waste > 0) == (measured.waste > 0) == (policy == "windowed")


def test_a_run_that_goes_on_is_drawn_too(finished: World) -> None:
    """A log without an end counts its last steps, and its groups in flight as not whole yet."""
    places = [n for n, record in enumerate(finished.log) if isinstance(record.event, GroupDispatched)]
    latencies = Latencies.of(finished.log[: places[88] + 1])
    assert latencies.lacks() == ""
    assert not latencies.ended
    assert latencies.steps == 21
    assert any(not seen.whole for seen in latencies.groups)


def test_a_log_that_says_too_little_is_one_line(tmp_path: Path, command) -> None:
    """Exit code 1, with how much there is and how much is needed."""
    write_log(tmp_path / "run", ran(steps=6).log)
    result = command("frontier", tmp_path / "run")
    assert result.exit_code == 1
    assert result.output == (
        f"{tmp_path / 'run'}: too early to say anything: 6 steps and 16 whole groups; "
        "at least 14 steps and 30 groups are needed\n"
    )


def test_what_is_no_run_is_bad_input(tmp_path: Path, command) -> None:
    """Like every command that reads a run: exit code 2 and one line."""
    result = command("frontier", tmp_path / "nothing")
    assert result.exit_code == 2
    assert result.output.endswith("nothing: no such folder\n")


def test_the_best_are_those_that_nothing_beats() -> None:
    """A setting is marked unless another is better in one of efficiency, lag and waste and worse in none."""
    points = [
        Point("a", 1, False, 1.0, 0.0, 1, 1.0, 0.0),
        Point("b", 1, False, 1.2, 0.0, 1, 1.0, 0.0),
        Point("c", 1, False, 0.8, 0.0, 1, 1.0, 0.5),
        Point("d", 0, True, 3.0, 0.0, 0, 0.0, 0.0),
    ]
    assert [point.policy for point in marked(points) if point.best] == ["a", "c", "d"]
