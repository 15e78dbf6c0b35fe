"""The dashboard as a file: Grafana's model as far as it can be held against it without a Grafana server."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from eventrain.adapters.telemetry.shipped import dashboard

DOCS = Path(__file__).parents[4] / "docs" / "dashboards.md"
UNITS = {"none", "percentunit", "s", "bytes"}
"""Of Grafana's own ids: the only ones that are used here."""


@pytest.fixture(name="shipped")
def _shipped() -> dict[str, Any]:
    """Return the file that ships."""
    model: dict[str, Any] = json.loads(dashboard.FILE.read_text(encoding="utf-8"))
    return model


@pytest.fixture(name="panels")
def _panels(shipped: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that show something."""
    return [panel for panel in shipped["panels"] if panel["type"] != "row"]


def test_the_file_is_what_the_table_says() -> None:
    """A change of the table that was not written to the file is found."""
    assert dashboard.FILE.read_text(encoding="utf-8") == dashboard.text()


def test_the_documentation_has_the_same_panels() -> None:
    """The table of panels in the documentation is the dashboard's."""
    assert dashboard.table() in DOCS.read_text(encoding="utf-8")


def test_no_panel_lies_over_another(shipped: dict[str, Any]) -> None:
    """Panels stay within the columns, share no cell, and leave no empty line between rows."""
    taken: dict[tuple[int, int], str] = {}
    for panel in shipped["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= dashboard.COLUMNS
        for cell in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        ):
            assert cell not in taken, f"{panel['title']} lies over {taken.get(cell)}"
            taken[cell] = panel["title"]
    assert {y for _, y in taken} == set(range(max(y for _, y in taken) + 1))


def test_every_line_of_panels_is_full(shipped: dict[str, Any]) -> None:
    """The widths of each line of panels make up the whole width, so that nothing looks forgotten."""
    lines: dict[int, int] = {}
    for panel in shipped["panels"]:
        lines[panel["gridPos"]["y"]] = lines.get(panel["gridPos"]["y"], 0) + panel["gridPos"]["w"]
    assert {y: width for y, width in lines.items() if width != dashboard.COLUMNS} == {}


def test_ids_and_titles_are_unique(shipped: dict[str, Any]) -> None:
    """Panels and rows are told apart by id, and by title."""
    for key in ("id", "title"):
        values = [panel[key] for panel in shipped["panels"]]
        assert len(values) == len(set(values))
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", shipped["uid"])


def test_every_query_asks_the_chosen_server_and_names_its_series(panels: list[dict[str, Any]]) -> None:
    """Each target has the variable as its datasource, a legend, and a letter of its own."""
    for panel in panels:
        assert panel["datasource"] == dashboard.DATASOURCE
        letters = [target["refId"] for target in panel["targets"]]
        assert letters
        assert len(letters) == len(set(letters))
        for target in panel["targets"]:
            assert target["datasource"] == dashboard.DATASOURCE
            assert target["legendFormat"], panel["title"]
            assert target["instant"] is not target["range"]


def test_legends_name_labels_that_the_query_keeps(panels: list[dict[str, Any]]) -> None:
    """A label in a legend is one of those that the query groups by, or adds."""
    for panel in panels:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
            added = set(re.findall(r', "(\w+)", "[^"]*", "", ""\)', target["expr"]))
            assert named <= kept | added, panel["title"]


def test_every_panel_has_a_unit_and_says_its_metric_and_what_to_do(panels: list[dict[str, Any]]) -> None:
    """Units are Grafana's; the description begins with what is shown and is a text of more than a few words."""
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert re.search(r"\brl_\w+|\bup\b|scrape_\w+", panel["description"]), panel["title"]
        assert len(panel["description"].split()) > 5


def test_states_have_a_name_and_a_colour(panels: list[dict[str, Any]]) -> None:
    """Timelines of states map 0, 1, 2, ... to words without a gap."""
    timelines = [panel for panel in panels if panel["type"] == "state-timeline"]
    assert len(timelines) == 4
    for panel in timelines:
        (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
        assert list(mapping["options"]) == [str(place) for place in range(len(mapping["options"]))]
        assert all(shown["text"] and shown["color"] for shown in mapping["options"].values())


def test_every_query_is_about_the_chosen_runs(panels: list[dict[str, Any]]) -> None:
    """Each selector of a metric of a run has the variable, so that no other run is mixed in."""
    for panel in panels:
        for target in panel["targets"]:
            for metric, labels in re.findall(r"\b(rl_\w+)(\{[^}]*\})?", target["expr"]):
                assert 'run=~"$run"' in labels, f"{panel['title']}: {metric}"
