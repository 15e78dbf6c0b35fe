"""Write grafana/dashboards/eventrain.json, which is what ships, from the table of panels.

    python -m eventrain.adapters.telemetry.shipped.dashboard           # write it
    python -m eventrain.adapters.telemetry.shipped.dashboard --table   # print the table of docs/dashboards.md

A test compares the file with what this would write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .panels import ROWS, RUN, Kind, Panel, Query, Row

HERE = Path(__file__).resolve().parent
FILE = HERE / "grafana" / "dashboards" / "eventrain.json"
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLORS = {
    "quiet": "transparent", "stalled": "red", "starting": "gray", "generating": "blue",
    "waiting_for_buffer": "orange", "converting": "light-blue", "training": "green", "weight_sync": "purple",
    "eval": "yellow", "checkpoint": "light-purple", "finished": "text", "serving": "green", "draining": "light-orange",
    "syncing": "purple", "idle": "orange", "down": "red", "dispatching": "green", "gated": "orange",
    "out_of_permits": "yellow", "no_engine": "red", "exhausted": "purple", "stopped": "text",
}  # fmt: skip
TYPES: dict[Kind, str] = {
    "timeseries": "timeseries",
    "stacked": "timeseries",
    "stat": "stat",
    "name": "stat",
    "bars": "bargauge",
    "states": "state-timeline",
    "heatmap": "heatmap",
}
OF_ONE_MOMENT: frozenset[Kind] = frozenset({"stat", "name", "bars"})
LATEST = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
OPTIONS: dict[Kind, dict[str, Any]] = {
    "stat": {**LATEST, "colorMode": "value", "graphMode": "none", "textMode": "auto", "justifyMode": "auto"},
    "name": {**LATEST, "colorMode": "value", "graphMode": "none", "textMode": "name", "justifyMode": "auto"},
    "bars": {**LATEST, "displayMode": "basic", "orientation": "horizontal", "showUnfilled": True},
    "states": {
        "mergeValues": True,
        "showValue": "auto",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
    },
    "heatmap": {
        "calculate": False,
        "yAxis": {"axisPlacement": "left", "unit": "none"},
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 32},
        "cellGap": 1,
        "tooltip": {"mode": "single"},
    },
}
GRAPH_OPTIONS = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
    "tooltip": {"mode": "multi", "sort": "desc"},
}


def dashboard() -> dict[str, Any]:
    """Return the whole dashboard as Grafana's JSON model."""
    return {
        "uid": "eventrain",
        "title": "eventrain",
        "description": "A run of asynchronous RL: what it does, what it waits for, and what that costs.",
        "tags": ["eventrain"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "",
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "15s",
        "templating": {"list": [_datasource_variable(), _run_variable()]},
        "annotations": {"list": [_stalls()]},
        "links": [],
        "panels": list(_placed(ROWS)),
    }


def _datasource_variable() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }


def _run_variable() -> dict[str, Any]:
    query = "label_values(rl_run_info, run)"
    return {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "run"},
        "refresh": 2,
        "sort": 2,
        "multi": True,
        "includeAll": False,
    }


def _stalls() -> dict[str, Any]:
    """Return the marks that every graph shows where the run found that it stands still."""
    return {
        "name": "Stalls",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f"max by (run, class) (rl_stall_verdict{{{RUN}}}) == 1",
        "titleFormat": "{{class}}",
        "textFormat": "{{run}}",
        "step": "15s",
    }


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the panels, row below row, each line of a row filled from the left."""
    number, y = 1, 0
    for row in rows:
        yield {
            "id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        }  # fmt: skip
        number, y, x = number + 1, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + row.height
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": row.height})
            number, x = number + 1, x + panel.width
        y += row.height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": TYPES[panel.kind],
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": OPTIONS.get(panel.kind, GRAPH_OPTIONS),
        "targets": [
            _target(query, chr(ord("A") + place), panel.kind) for place, query in enumerate(panel.queries)
        ],
    }


def _target(query: Query, ref: str, kind: Kind) -> dict[str, Any]:
    moment = kind in OF_ONE_MOMENT
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "instant": moment,
        "range": not moment,
        "format": "heatmap" if kind == "heatmap" else "time_series",
    }


def _field(panel: Panel) -> dict[str, Any]:
    field: dict[str, Any] = {"unit": panel.unit, "custom": _custom(panel.kind), "mappings": []}
    if panel.unit == "percentunit":
        field["min"] = None if panel.title == "Timing residual" else 0
    if panel.kind == "bars" and panel.unit == "percentunit":
        field["max"] = 1
    if panel.values:
        field["color"] = {"mode": "fixed", "fixedColor": "text"}
        field["mappings"] = [
            {
                "type": "value",
                "options": {
                    str(place): {"text": name.replace("_", " "), "color": COLORS[name], "index": place}
                    for place, name in enumerate(panel.values)
                },
            }
        ]
    if panel.title == "Last event":
        steps = [("green", None), ("yellow", 60), ("red", 300)]
        field["thresholds"] = {
            "mode": "absolute", "steps": [{"color": color, "value": value} for color, value in steps]
        }  # fmt: skip
    return field


def _custom(kind: Kind) -> dict[str, Any]:
    match kind:
        case "timeseries":
            return {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "never"}
        case "stacked":
            stacking = {"mode": "normal", "group": "A"}
            return {
                "drawStyle": "line",
                "lineWidth": 0,
                "fillOpacity": 70,
                "showPoints": "never",
                "stacking": stacking,
            }
        case "states":
            return {"lineWidth": 0, "fillOpacity": 80}
        case _:
            return {}


def text() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=2) + "\n"


def table() -> str:
    """Return the panels as a table in Markdown: row, panel, queries."""
    lines = ["| row | panel | query |", "|---|---|---|"]
    for row in ROWS:
        for panel in row.panels:
            queries = "<br>".join(f"`{query.expr}`".replace("|", "\\|") for query in panel.queries)
            lines.append(f"| {row.title} | {panel.title} | {queries} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--table" in sys.argv[1:]:
        sys.stdout.write(table())
    else:
        FILE.write_text(text(), encoding="utf-8")
