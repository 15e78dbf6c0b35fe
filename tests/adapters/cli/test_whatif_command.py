"""whatif, as its users see it: on a run in virtual time, where what the other setting comes to can be run as well."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from worlds import World, config

from eventrain.adapters.simulated.whatif import CAUSES, Idle, Log
from eventrain.core.ports import GenerateRequest
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.record import Record


def write_log(path: Path, records: list[Record]) -> None:
    """Write `records` as the log of a new run folder."""
    folder = RunFolder.create(path)
    writer = LogWriter(folder.events, run="run", epoch=1, first_seq=0, segment_bytes=1 << 26)
    writer.start(lambda _seq: None, lambda _error: None)
    for record in records:
        writer.append(record)
    writer.close()


def ran(staleness: int = 1, slots: int = 16, train_s: float = 0.6) -> World:
    """Return a run whose groups take 0.2 to 2 s: two trajectories each, equally long, in `slots` slots."""
    world = World(
        config(
            run={"steps": 40},
            scheduler={"groups_per_step": 4, "max_staleness": staleness},
            rollout={"group_size": 2, "max_turns": 1},
            engine={"slots": slots},
        )
    )

    def seconds(request: GenerateRequest) -> float:
        return min(2.0, random.Random(request.request.split("/")[0]).lognormvariate(-0.6, 0.6))

    async def take_weights(_: int) -> None:
        await world.clock.sleep(0.1)

    engine = world.pool[0]
    engine.seconds, engine.slots, engine.on_load = seconds, slots, take_weights
    world.learner.seconds = train_s
    return world.go()


@pytest.fixture(scope="module", name="one")
def _one() -> World:
    """Return the run with max_staleness 1."""
    return ran()


def table_of(command, path: Path, *arguments: str) -> dict[str, dict]:
    """Return the settings of the JSON output by name, and the error."""
    result = command("whatif", path, *arguments, "--json")
    assert result.exit_code == 0, result.output
    table = json.loads(result.output)
    return {row["setting"]: row for row in table["settings"]} | {"error": table["model_error"]}


def test_another_bound_comes_to_what_a_run_with_it_comes_to(tmp_path: Path, one: World, command) -> None:
    """max_staleness 0 and 2, from the log of 1: step time and lag of real runs with them, within a tenth."""
    write_log(tmp_path / "run", one.log)
    rows = table_of(command, tmp_path / "run", "--sweep", "scheduler.max_staleness=0,2", "--seeds", "2")
    assert abs(rows["error"]) < 0.05
    for staleness in (0, 2):
        real = Log.of(ran(staleness).log, 1).measured()
        said = rows[f"scheduler.max_staleness={staleness}"]
        assert said["step_s"] == pytest.approx(real.step_s, rel=0.1)
        assert said["lag_mean"] == pytest.approx(real.lag_mean, abs=0.1)
        assert said["groups_per_hour"] == pytest.approx(4 * 3600 / said["step_s"])
        assert said["tokens_per_hour"] == pytest.approx(4 * 2 * 3 * 3600 / said["step_s"], rel=1e-3)
        assert said["idle_s"]["learner: no batch"] == pytest.approx(real.idle_s["learner: no batch"], abs=0.15)


def test_fewer_slots_are_a_slower_run(tmp_path: Path, one: World, command) -> None:
    """engine.slots changes how many groups are generated at once: step time of a real run with so few."""
    write_log(tmp_path / "run", one.log)
    rows = table_of(command, tmp_path / "run", "--set", "engine.slots=4", "--seeds", "2")
    real = Log.of(ran(slots=4).log, 1).measured()
    assert rows["engine.slots=4"]["step_s"] == pytest.approx(real.step_s, rel=0.15)
    assert rows["engine.slots=4"]["step_s"] > 1.2 * rows["measured"]["step_s"]


def test_the_lines_say_how_well_the_model_fits_and_what_is_modelled(tmp_path: Path, one: World, command) -> None:
    """Measured first, then the recorded settings modelled, then what was asked for."""
    write_log(tmp_path / "run", one.log)
    result = command("whatif", tmp_path / "run", "--set", "scheduler.permits=4", "--seeds", "1")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line[:20].strip() for line in lines[1:4]] == ["measured", "as recorded", "scheduler.permits=4"]
    assert "engines: no permit" in lines[5]
    assert any(line.startswith("the model's step is ") and "off for the recorded settings" in line for line in lines)
    assert any(line.startswith("all rows but the first are modelled, 1 seeds each") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "nothing to try"),
        (("--set", "learner.lr=1"), "learner.lr: the model does not know what it does to a run"),
        (("--sweep", "scheduler.permits"), "must be section.key=a,b,c"),
        (("--set", "scheduler.max_staleness=-1"), "max_staleness"),
    ],
)
def test_what_cannot_be_modelled_is_refused(tmp_path: Path, one: World, command, arguments, says: str) -> None:
    """One line and exit code 2."""
    write_log(tmp_path / "run", one.log)
    result = command("whatif", tmp_path / "run", *arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_a_log_that_is_too_short_says_so(tmp_path: Path, one: World, command) -> None:
    """Exit code 1, as for frontier."""
    write_log(tmp_path / "run", one.log[:200])
    result = command("whatif", tmp_path / "run", "--set", "engine.count=2")
    assert result.exit_code == 1
    assert "too early to say anything" in result.output


def test_idle_seconds_are_counted_by_what_was_waited_for(one: World) -> None:
    """Learner: the step less what it works; engines: between nothing and all of the step; nothing is negative."""
    idle = Idle(1)
    for record in one.log:
        idle.apply(record)
    per_step = idle.per_step(4, 6)
    measured = Log.of(one.log, 1).measured()
    learner = sum(per_step[cause] for cause in CAUSES if cause.startswith("learner"))
    assert learner == pytest.approx(measured.step_s - 0.6, abs=0.01)
    assert per_step["learner: weight sync"] == pytest.approx(0.1)
    engines = sum(per_step[cause] for cause in CAUSES if cause.startswith("engines"))
    assert 0 < engines < measured.step_s
    assert min(per_step.values()) >= 0
