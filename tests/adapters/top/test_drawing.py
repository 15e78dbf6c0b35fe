"""The panels fit the room that they are given, and say in words what they say in colour."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eventrain.adapters.cli.run_facts import RunFacts
from eventrain.adapters.top.drawing import (
    device_lines,
    engine_lines,
    flying_lines,
    group_lines,
    part_lines,
    percent,
    reward_lines,
    stacked,
    stall_lines,
    trainer_lines,
    wrapped,
)
from eventrain.adapters.top.model import Device, Shown, shown
from eventrain.adapters.top.plot import area, columns
from eventrain.adapters.top.recent import Recent
from eventrain.adapters.top.widgets import head, keys
from eventrain.events.record import Record

PANELS = (trainer_lines, reward_lines, group_lines, engine_lines, flying_lines, part_lines, stall_lines)


def states(records: list[Record], every: int) -> list[Shown]:
    facts, recent, found = RunFacts(), Recent(), []
    for record in records:
        facts.apply(record)
        recent.apply(record)
        if record.seq % every == 0:
            found.append(shown(facts, recent))
    return found


@pytest.mark.parametrize(("width", "height"), [(37, 4), (46, 3), (70, 12)])
def test_no_panel_is_wider_than_its_room(busy, stalled, width: int, height: int) -> None:
    """At 80x24 and above nothing is clipped, whatever the state."""
    for now in states(busy, 29) + states(stalled, 51):
        for panel in PANELS:
            lines = panel(now, width, height)
            wide = [line.text.plain for line in lines if line.text.cell_len > width]
            allowed = (
                1 if panel is stall_lines and not now.stalls else 0
            )  # the wait is cut where there is no stall
            assert len(wide) <= allowed, (panel.__name__, wide)


def test_panels_that_do_not_scroll_keep_to_their_height(busy) -> None:
    """They leave out what matters least."""
    for now in states(busy, 29):
        for panel in (trainer_lines, reward_lines, group_lines, part_lines):
            for height in range(1, 9):
                assert len(panel(now, 36, height)) <= height


@pytest.mark.parametrize("width", [34, 36, 47, 60])
@pytest.mark.parametrize("name", ["cuda:0", "cpu:controller", "10.0.0.7/gpu0"])
def test_a_device_keeps_to_its_line(busy, name: str, width: int) -> None:
    """Use and memory are whole at every width; all memory there is, and whose it is, where there is room."""
    device = Device(name, "controller", 1.0, 472_000_000, 25_000_000_000, 0.0)
    now = replace(states(busy, 29)[-1], devices=(device,))
    (line,) = device_lines(now, width)
    assert line.cell_len <= max(width, len(name) + 32)
    assert "100 % 472 MB" in line.plain
    assert line.plain.count("controller") == 1 or name != "cpu:controller"


def test_shares_of_a_bar_fill_it_and_are_told_apart_without_colours() -> None:
    """Rounding loses no cell, and plain bars use another character for each part."""
    shares = [(0.333, "red"), (0.333, "green"), (0.334, "blue")]
    assert stacked(shares, 20).plain == "█" * 20
    assert stacked(shares, 9, plain=True).plain == "███▓▓▓▒▒▒"
    assert [percent(share) for share in (0, 0.001, 0.5, 1)] == ["0 %", "<1 %", "50 %", "100 %"]


def test_a_curve_has_its_room_and_its_extremes() -> None:
    """It takes exactly the lines there are, and names the highest and the lowest mean."""
    assert columns([1.0, 2.0], 4) == [1, 1, 2, 2]
    assert columns([1.0, 3.0, 5.0, 7.0], 2) == [2, 6]
    lines = [line.plain for line in area([0.0, 0.5, 1.0], 20, 4, "green")]
    assert len(lines) == 4
    assert {len(line) for line in lines} == {20}
    assert (lines[0].split()[0], lines[-1].split()[0]) == ("1", "0")
    assert area([], 20, 4, "green") == []


def test_words_are_wrapped_at_the_width() -> None:
    """No line is longer, and none but the first lacks the indent."""
    lines = [line.plain for line in wrapped("one two three four five", 10, "  ", "")]
    assert lines == ["one two", "  three", "  four", "  five"]


def test_the_head_and_the_keys_take_one_line_of_80_columns(busy) -> None:
    """The step, the pace and how to quit are always there."""
    for now in states(busy, 29):
        line = head(now, 78)
        assert line.cell_len <= 78
        assert f"step {now.step}/{now.steps_total}" in line.plain
    assert keys("", 78).cell_len <= 80
    assert "q quit" in keys("", 78).plain
    assert keys("torn", 78).plain == "torn"
