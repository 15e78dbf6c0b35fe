"""The figures of a run by step: reward, lag and loss; and where the time of each step's trajectories went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from ...core.projections import StepRow
from . import colours
from .colours import words
from .curves import thin
from .figures import Figure, Key, Panel, line
from .reading import Reading
from .rollouts import COMPONENTS

BARS = 400
"""Bars of components at most; where there are more steps, each bar is the mean of some."""
SMOOTH = 20
"""Steps of the running mean of the reward, in runs of twice as many or more."""


def learning(reading: Reading) -> Figure | None:
    """Return reward, lag and loss by step, with evaluations; None where no step was trained."""
    rows, evals = reading.status.view.progress.steps, reading.status.view.progress.evals
    if not rows:
        return None
    figure = Figure(
        "learning",
        [Panel(190, "reward"), Panel(90, "lag (versions)", {"rangemode": "tozero"}), Panel(110, "loss")],
        "step",
        "step",
        "Mean reward, lag and loss of every step, and the mean reward of evaluations.",
    )
    rewards = [row.reward_mean for row in rows]
    smooth = len(rows) >= 2 * SMOOTH
    thin_line = {"width": 1, "opacity": 0.55} if smooth else {"mode": "lines+markers", "marker": {"size": 5}}
    _curve(
        figure,
        0,
        rows,
        rewards,
        Key("mean reward of the step", colours.REWARD, "reward", "line"),
        "reward %{y:.4g}",
        **thin_line,
    )
    if smooth:
        mean = [fmean(rewards[max(0, end - SMOOTH) : end]) for end in range(1, len(rewards) + 1)]
        key = Key(f"mean of {SMOOTH} steps", colours.REWARD, "mean", "line")
        _curve(figure, 0, rows, mean, key, f"mean of {SMOOTH} steps %{{y:.4g}}", width=2.6)
    known = [row for row in evals if row.reward_mean is not None]
    if known:
        trace = {
            "type": "scatter",
            "mode": "markers",
            "x": [row.version for row in known],
            "y": [row.reward_mean for row in known],
            "customdata": [
                f"evaluation {row.eval} of version {row.version}: {row.completed} trajectories"
                + (f", {row.failed} failed" if row.failed else "")
                for row in known
            ],
            "hovertemplate": "%{customdata}<br>reward %{y:.4g}<extra></extra>",
            "marker": {"color": colours.EVALUATION, "size": 10, "symbol": "diamond"},
        }
        figure.add(0, trace, Key("evaluation (at its version)", colours.EVALUATION, "eval", "dot"))
    _curve(
        figure,
        1,
        rows,
        [row.lag_max for row in rows],
        Key("largest lag", colours.LAG, "lag max", "dash"),
        "largest lag %{y}",
        dash="dot",
        width=1.2,
    )
    _curve(
        figure,
        1,
        rows,
        [row.lag_mean for row in rows],
        Key("mean lag", colours.LAG, "lag", "line"),
        "mean lag %{y:.3g}",
    )
    _curve(
        figure,
        2,
        rows,
        [row.loss for row in rows],
        Key("loss", colours.LOSS, "loss", "line"),
        "loss %{y:.4g}",
    )
    figure.x_axis = _steps_axis(len(rows))
    figure.x_range = _range(
        rows[0].step, max(rows[-1].step, *(row.version for row in known)) if known else rows[-1].step
    )
    return figure


def components(reading: Reading) -> Figure | None:
    """Return the mean seconds of a trajectory by component and step, and the environment's share; None without any."""
    rollouts = reading.history.rollouts
    steps = [step for step in sorted(rollouts.by_step) if rollouts.trained.get(step)]
    if not steps:
        return None
    figure = Figure(
        "components",
        [
            Panel(210, "s per trajectory", {"rangemode": "tozero"}),
            Panel(90, "in env", {"range": [0, 1.02], "tickformat": ".0%"}),
        ],
        "step",
        "step",
        "Seconds of a trajectory by component, stacked, for each step; and the share of the environment.",
        more={"barmode": "stack", "bargap": 0.08 if len(steps) > 40 else 0.2},
    )
    parts = _parts(steps)
    x = [fmean(part) for part in parts]
    names = [str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]
    sums = [
        [sum(rollouts.by_step[step][place] for step in part) for place in range(len(COMPONENTS))]
        for part in parts
    ]
    counts = [sum(rollouts.trained[step] for step in part) for part in parts]
    for place, name in enumerate(COMPONENTS):
        y = [max(0.0, float(f"{one[place] / count:.4g}")) for one, count in zip(sums, counts, strict=True)]
        if not any(y):
            continue
        trace = {
            "type": "bar",
            "x": x,
            "y": y,
            "width": len(parts[0]) * (0.94 if len(steps) > 40 else 0.8),
            "customdata": names,
            "hovertemplate": f"{words(name)} %{{y:.3g}} s<extra></extra>",
            "marker": {"color": colours.COMPONENTS[name], "line": {"width": 0}},
        }
        figure.add(0, trace, Key(words(name), colours.COMPONENTS[name], name))
    share = [(one[2] + one[3]) / (sum(one) or 1.0) for one in sums]
    trace = line(
        x,
        [round(value, 4) for value in share],
        colours.COMPONENTS["env"],
        hovertemplate="%{y:.1%} of the time in the environment<extra></extra>",
    )
    if len(x) < 3:
        trace |= {"mode": "lines+markers"}
    figure.add(1, trace, Key("share of time in the environment", colours.COMPONENTS["env"], "share", "line"))
    figure.x_axis = _steps_axis(len(steps))
    figure.x_range = _range(steps[0], steps[-1])
    return figure


def _curve(
    figure: Figure,
    panel: int,
    rows: Sequence[StepRow],
    values: Sequence[float],
    key: Key,
    hover: str,
    **more: object,
) -> None:
    kept = thin([row.step for row in rows], values, 1_000)
    x, y = [rows[index].step for index in kept], [float(f"{values[index]:.5g}") for index in kept]
    opacity = more.pop("opacity", None)
    trace = line(x, y, key.colour, hovertemplate=f"{hover}<extra></extra>", **more)
    if opacity is not None:
        trace["opacity"] = opacity
    figure.add(panel, trace, key)


def _parts(steps: Sequence[int]) -> list[Sequence[int]]:
    """Return the steps in at most `BARS` parts of equal length."""
    count = min(BARS, len(steps))
    edges = [round(index * len(steps) / count) for index in range(count + 1)]
    return [steps[begin:end] for begin, end in pairwise(edges)]


def _steps_axis(steps: int) -> dict[str, Any]:
    """Return more of the x axis: no tick between two steps."""
    return {"dtick": 1} if steps <= 12 else {}


def _range(first: float, last: float) -> tuple[float, float]:
    return first - 0.6, last + 0.6
