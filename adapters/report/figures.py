"""Plotly figures as plain tables: panels below each other on one x axis, with keys (legends) that stand outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

GAP_PX = 34
TOP_PX = 14
BOTTOM_PX = 48
LEFT_PX = 62


@dataclass(frozen=True)
class Panel:
    """One of the panels of a figure, from top to bottom."""

    height_px: int
    title: str
    axis: dict[str, Any] = field(default_factory=dict)
    """More of its y axis."""


@dataclass(frozen=True)
class Key:
    """An entry of the legend: what has this colour in which traces."""

    text: str
    colour: str
    name: str
    """Legend group of the traces."""
    form: str = "fill"
    """How it is drawn: fill, line, dash, dot or hatch."""
    of: str = ""
    """What it is an entry of: entries of one kind stand together, below this word."""


@dataclass
class Figure:
    """A figure with its key. `link` names the x axis that it shares with others of the page."""

    name: str
    panels: Sequence[Panel]
    x_title: str
    link: str
    label: str
    """What it shows, in one sentence, for those who do not see it."""
    traces: list[dict[str, Any]] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    x_range: tuple[float, float] | None = None
    x_axis: dict[str, Any] = field(default_factory=dict)
    """More of the x axis."""
    hover: str = "x unified"
    more: dict[str, Any] = field(default_factory=dict)
    """More of the layout."""

    def add(self, panel: int, trace: dict[str, Any], key: Key | None = None) -> None:
        """Add a trace to a panel, and its key where it has one that is not there yet."""
        suffix = "" if panel == 0 else str(panel + 1)
        self.traces.append({"xaxis": "x", "yaxis": f"y{suffix}", "showlegend": False, **trace})
        if key is not None and key not in self.keys:
            self.keys.append(key)
        if key is not None:
            self.traces[-1]["legendgroup"] = key.name

    def mark(self, x: float, text: str, colour: str = "#888888") -> None:
        """Draw a line through all panels at `x`, with `text` above it."""
        line = {"color": colour, "width": 1, "dash": "dot"}
        self.shapes.append(
            {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}
        )
        self.notes.append(
            {
                "x": x,
                "xref": "x",
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "xanchor": "left",
                "text": text,
                "showarrow": False,
                "font": {"size": 11},
            }
        )

    def keys_by_kind(self) -> dict[str, list[Key]]:
        """Return the entries of the legend, those of one kind together."""
        kinds: dict[str, list[Key]] = {}
        for key in self.keys:
            kinds.setdefault(key.of, []).append(key)
        return kinds

    @property
    def height_px(self) -> int:
        """Height of the whole."""
        return sum(panel.height_px for panel in self.panels) + GAP_PX * (len(self.panels) - 1) + self._edges

    @property
    def _top(self) -> int:
        return TOP_PX + (12 if self.notes else 0)

    @property
    def _edges(self) -> int:
        return self._top + BOTTOM_PX

    def table(self) -> dict[str, Any]:
        """Return traces and layout as plotly.js takes them."""
        inner = self.height_px - self._edges
        layout: dict[str, Any] = {
            "height": self.height_px,
            "margin": {"l": LEFT_PX, "r": 16, "t": self._top, "b": BOTTOM_PX},
            "hovermode": self.hover,
            "hoversubplots": "axis" if self.hover != "closest" else "overlaying",
            "hoverlabel": {"align": "left", "namelength": -1},
            "dragmode": "zoom",
            "shapes": self.shapes,
            "annotations": [*self.notes, *self._titles(inner)],
            "xaxis": {
                "title": {"text": self.x_title, "standoff": 8},
                "anchor": f"y{len(self.panels)}" if len(self.panels) > 1 else "y",
                "zeroline": False,
                "ticks": "outside",
                "ticklen": 6,
                "showspikes": True,
                "spikemode": "across",
                "spikesnap": "cursor",
                "spikethickness": 1,
                "spikedash": "dot",
                **self.x_axis,
            },
            **self.more,
        }
        if self.x_range is not None:
            layout["xaxis"]["range"] = list(self.x_range)
            layout["xaxis"]["minallowed"], layout["xaxis"]["maxallowed"] = self.x_range
        top = inner
        for number, panel in enumerate(self.panels):
            suffix = "" if number == 0 else str(number + 1)
            domain = [max(0.0, (top - panel.height_px) / inner), top / inner]
            layout[f"yaxis{suffix}"] = {
                "domain": domain,
                "anchor": "x",
                "zeroline": False,
                "fixedrange": True,
                "nticks": 5,
                **panel.axis,
            }
            top -= panel.height_px + GAP_PX
        return {"data": self.traces, "layout": layout, "link": self.link}

    def _titles(self, inner_px: int) -> list[dict[str, Any]]:
        """Return the titles of the panels, one below the other: an axis' own title moves with its figures."""
        titles, top = [], inner_px
        for panel in self.panels:
            titles.append(
                {
                    "x": 0,
                    "xref": "paper",
                    "xshift": 9 - LEFT_PX,
                    "y": (top - panel.height_px / 2) / inner_px,
                    "yref": "paper",
                    "xanchor": "center",
                    "yanchor": "middle",
                    "text": panel.title,
                    "textangle": -90,
                    "showarrow": False,
                    "font": {"size": 12},
                }
            )
            top -= panel.height_px + GAP_PX
        return [title for title in titles if title["text"]]


def line(x: Sequence[float], y: Sequence[float | None], colour: str, **more: Any) -> dict[str, Any]:
    """Return a line trace; `more` goes into the trace, and `shape`, `width` and `dash` into its line."""
    drawn = {"color": colour, "width": more.pop("width", 1.8), "shape": more.pop("shape", "linear")}
    if "dash" in more:
        drawn["dash"] = more.pop("dash")
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "line": drawn, **more}
