"""The figure of a run over time: phases, engines and stalls above each other, with groups, slots and devices below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..cli.quantities import clock_time, seconds
from . import colours
from .colours import words
from .curves import Curve, Interval, gather
from .devices import Devices
from .figures import Figure, Key, Panel, line
from .reading import Reading

LANE_PX = 34
BAND_PX = 26
POINTS_INSIDE = 150
"""Points of a lane, from its beginning to its end, that can be pointed at."""
UNITS = ((3 * 3600.0, 3600.0, "h"), (300.0, 60.0, "min"), (0.0, 1.0, "s"))


class TimeAxis:
    """Times of the run as they stand on the axis: in seconds, minutes or hours, whichever suits its length."""

    def __init__(self, end_ns: int) -> None:
        self.end_ns = end_ns
        self._unit_s, self.unit = next((size, name) for least, size, name in UNITS if end_ns / 1e9 >= least)

    def __call__(self, at_ns: float) -> float:
        """Return `at_ns`, nanoseconds since the start, on the axis."""
        return round(at_ns / 1e9 / self._unit_s, 5)


def over_time(reading: Reading) -> Figure:
    """Return the figure; everything in it shares one time axis."""
    history, axis = reading.history, TimeAxis(reading.now_ns)
    lanes = ["trainer", "engines"]
    if reading.stalls.intervals:
        lanes.append("stalls")
    panels = [
        Panel(
            LANE_PX * len(lanes),
            "",
            {
                "categoryarray": lanes[::-1],
                "categoryorder": "array",
                "range": [-0.5, len(lanes) - 0.5],
                "ticksuffix": " ",
            },
        ),
        Panel(150, "groups", {"rangemode": "tozero"}),
        Panel(100, "slots", {"rangemode": "tozero"}),
    ]
    if history.devices.use:
        panels.append(Panel(110, "busy", {"range": [0, 1.02], "tickformat": ".0%"}))
    end = max(axis(reading.now_ns), 1e-6)
    figure = Figure(
        "time",
        panels,
        f"time since the start ({axis.unit})",
        "time",
        "Phases of the trainer and states of the engines over time, with groups in flight, buffered groups, slots "
        "of the engines and the use of devices below on the same axis.",
        x_range=(0, end),
        hover="closest",
    )
    _lane(figure, axis, "trainer", history.phases_until(reading.now_ns), colours.PHASES)
    _lane(figure, axis, "engines", history.pool_until(reading.now_ns), colours.POOL)
    _stalls(figure, axis, reading)
    _groups(figure, axis, reading)
    _slots(figure, axis, reading)
    if history.devices.use:
        _devices(figure, axis, history.devices)
    for restart in history.restarts:
        forked = "forked" if restart.forked_from else "resumed"
        down = f", {seconds(restart.down_s)} down" if restart.down_s >= 0.0005 else ""
        figure.mark(axis(restart.at_ns), f"{forked} at step {restart.step}{down}")
    return figure


def _lane(
    figure: Figure, axis: TimeAxis, lane: str, intervals: Sequence[Interval], palette: dict[str, str]
) -> None:
    """Draw one lane, a trace for each name; what is still open is a trace of its own, and hatched."""
    gathered = gather(intervals)
    for name, colour in palette.items():
        key = Key(words(name), colour, f"{lane} {name}", of=lane)
        shown = [one for one in gathered if one.name == name]
        over = [one for one in shown if not one.open]
        if over:
            figure.add(0, _band(axis, lane, [_drawn(lane, one) for one in over], colour), key)
        for one in shown:
            if one.open:
                trace = _band(axis, lane, [_drawn(lane, one)], colour)
                trace["line"]["dash"] = "5px,2px"
                figure.add(0, trace, key)
    if lane == "trainer" and any(one.open for one in gathered):
        figure.keys.append(Key("not over", "#888888", "", "hatch", lane))


class _Drawn(NamedTuple):
    """A piece of a lane and what is told of it."""

    from_ns: int
    to_ns: int
    told: str


def _band(axis: TimeAxis, lane: str, pieces: Sequence[_Drawn], colour: str) -> dict[str, Any]:
    """Return a lane's pieces as thick lines.

    Bars would be widened to whole pixels, and whichever of them is drawn last would hide the others where many are
    narrower than that. A line tells only of its points, so a long piece has some in between.
    """
    x: list[float | None] = []
    told: list[str | None] = []
    for piece in pieces:
        length = piece.to_ns - piece.from_ns
        inner = max(1, min(POINTS_INSIDE, round(POINTS_INSIDE * length / max(1, axis.end_ns))))
        at = [piece.from_ns + length * part // (inner + 1) for part in range(inner + 2)]
        x += [*(axis(one) for one in at), None]
        told += [*[piece.told] * len(at), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": [None if one is None else lane for one in x],
        "customdata": told,
        "hovertemplate": "%{customdata}<extra></extra>",
        "line": {"color": colour, "width": BAND_PX, "simplify": False},
        "cliponaxis": True,
    }


def _drawn(lane: str, one: Interval) -> _Drawn:
    step = f", step {one.step}" if one.step >= 0 else ""
    lasted = seconds(one.seconds)
    if one.together:
        lasted += " in all, in several pieces"
    elif one.open:
        lasted += " and not over"
    what = f"<b>{lane}: {words(one.name)}</b>{step}<br>{lasted}, from {clock_time(one.from_ns)}"
    return _Drawn(one.from_ns, one.to_ns, what)


def _stalls(figure: Figure, axis: TimeAxis, reading: Reading) -> None:
    """Draw the stalls, and before each for how long the run had stood still until it was noticed."""
    least_ns = reading.now_ns // 500  # or it would not be seen
    pieces, before = [], []
    for still in reading.standstills:
        one = still.stall
        to_ns = reading.stalls.end_ns if one.to_ns is None else one.to_ns
        begin, end = reading.history.on_axis(one.from_ns), reading.history.on_axis(to_ns)
        what = f"<b>{words(one.kind)}</b><br>"
        why = f"<br>{still.hung}" if still.hung else ""
        told = f"{what}{seconds((end - begin) / 1e9)}, from {clock_time(begin)}{why}"
        pieces.append(_Drawn(begin, max(end, begin + least_ns), told))
        for piece in still.pieces:
            if piece.from_ns < begin:
                told = f"{what}stood still from {clock_time(piece.from_ns)}, not noticed yet{why}"
                before.append(_Drawn(piece.from_ns, min(begin, piece.to_ns), told))
    if before:
        trace = _band(axis, "stalls", before, colours.UNNOTICED)
        figure.add(0, trace, Key("stands still", colours.UNNOTICED, "unnoticed", of="stalls"))
    if pieces:
        trace = _band(axis, "stalls", pieces, colours.STALL)
        figure.add(0, trace, Key("stall noticed", colours.STALL, "stall", of="stalls"))


def _groups(figure: Figure, axis: TimeAxis, reading: Reading) -> None:
    history, now = reading.history, reading.now_ns
    x, y = _steps(history.buffered, axis, now)
    hover = "%{y} groups buffered at %{x} " + axis.unit + "<extra></extra>"
    fill = {"fill": "tozeroy", "fillcolor": _faint(colours.BUFFERED)}
    trace = line(x, y, colours.BUFFERED, shape="hv", hovertemplate=hover, **fill)
    figure.add(1, trace, Key("buffered", colours.BUFFERED, "buffered", of="groups"))
    x, y = _steps(history.in_flight, axis, now)
    hover = "%{y} groups in flight at %{x} " + axis.unit + "<extra></extra>"
    trace = line(x, y, colours.IN_FLIGHT, shape="hv", hovertemplate=hover)
    figure.add(1, trace, Key("in flight", colours.IN_FLIGHT, "in flight", "line", "groups"))
    x, y = _steps(history.capacity, axis, now)
    hover = "room for %{y} groups, buffered and in flight<extra></extra>"
    trace = line(x, y, colours.LIMIT, shape="hv", dash="dash", width=1.4, hovertemplate=hover)
    figure.add(1, trace, Key("capacity of both", colours.LIMIT, "capacity", "dash", "groups"))


def _slots(figure: Figure, axis: TimeAxis, reading: Reading) -> None:
    x, y = _steps(reading.history.calls, axis, reading.now_ns)
    hover = "%{y} slots of the engines in use at %{x} " + axis.unit + "<extra></extra>"
    fill = {"fill": "tozeroy", "fillcolor": _faint(colours.SLOTS)}
    trace = line(x, y, colours.SLOTS, shape="hv", width=1.2, hovertemplate=hover, **fill)
    figure.add(2, trace, Key("in use", colours.SLOTS, "slots", of="slots"))
    x, y = _steps(reading.history.slots, axis, reading.now_ns)
    trace = line(
        x,
        y,
        "#888888",
        shape="hv",
        dash="dash",
        width=1.4,
        hovertemplate="%{y} slots of engines that are up<extra></extra>",
    )
    figure.add(2, trace, Key("of engines that are up", "#888888", "there", "dash", "slots"))


def _devices(figure: Figure, axis: TimeAxis, devices: Devices) -> None:
    for pool, colour in colours.DEVICES.items():
        curve = devices.use.get(pool)
        if curve is None:
            continue
        at, values = curve.points()
        count = len(devices.names[pool])
        of = f"{pool} ({count} devices)" if count > 1 else pool
        hover = f"{of}: %{{y:.0%}} busy up to %{{x}} {axis.unit}<extra></extra>"
        x, y = [axis(one) for one in at], [round(value, 4) for value in values]
        trace = line(x, y, colour, shape="vh", width=1.4, hovertemplate=hover)
        figure.add(3, trace, Key(of, colour, f"devices {pool}", "line", "devices"))


def _steps(curve: Curve, axis: TimeAxis, now_ns: int) -> tuple[list[float], list[float]]:
    """Return a curve of steps for the axis, drawn on to the end."""
    at, values = curve.points()
    if values:
        at, values = [*at, now_ns], [*values, values[-1]]
    return [axis(one) for one in at], values


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.25)"
