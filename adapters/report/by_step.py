"""The figures of a run by step: reward, lag and loss; and where the time of each step's trajectories went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from ...core.projections import EvalRow
from ...events.types import TRAJECTORY_PARTS
from . import colours
from .colours import words
from .curves import POINTS, thin
from .figures import Figure, Key, Panel, line
from .reading import Reading

BARS = 400
"""Bars of components at most; where there are more steps, each bar is the mean of some."""
SMOOTH = 20
"""Steps of the running mean of the reward, in runs of twice as many or more."""


def learning(reading: Reading) -> Figure | None:
    """Return reward, lag and loss by step, with evaluations; None where no step was trained."""
    rows = reading.status.view.progress.steps
    if not rows:
        return None
    figure = Figure(
        "learning",
        [Panel(190, "reward"), Panel(90, "lag (versions)", {"rangemode": "tozero"}), Panel(110, "loss")],
        "step",
        "step",
        "Mean reward, lag and loss of every step, and the mean reward of evaluations.",
        x_axis=_steps_axis(len(rows)),
    )
    evals = [row for row in reading.status.view.progress.evals if row.reward_mean is not None]
    steps = [row.step for row in rows]
    figure.x_range = _range(steps[0], max([steps[-1], *(row.version for row in evals)]))
    _rewards(figure, steps, [row.reward_mean for row in rows])
    if evals:
        figure.add(
            0, _evaluations(evals), Key("evaluation (at its version)", colours.EVALUATION, "eval", "dot")
        )
    largest, mean = (
        Key("largest lag", colours.LAG, "lag max", "dash"),
        Key("mean lag", colours.LAG, "lag", "line"),
    )
    figure.add(
        1, _curve(steps, [row.lag_max for row in rows], largest, "%{y}", dash="dot", width=1.2), largest
    )
    figure.add(1, _curve(steps, [row.lag_mean for row in rows], mean, "%{y:.3g}"), mean)
    loss = Key("loss", colours.LOSS, "loss", "line")
    figure.add(2, _curve(steps, [row.loss for row in rows], loss, "%{y:.4g}"), loss)
    return figure


def _rewards(figure: Figure, steps: Sequence[int], rewards: Sequence[float]) -> None:
    """Draw the reward of each step, and in long runs its running mean."""
    key = Key("mean reward of the step", colours.REWARD, "reward", "line")
    if len(steps) < 2 * SMOOTH:
        trace = _curve(steps, rewards, key, "%{y:.4g}") | {"mode": "lines+markers", "marker": {"size": 5}}
        figure.add(0, trace, key)
        return
    figure.add(0, _curve(steps, rewards, key, "%{y:.4g}", width=1) | {"opacity": 0.55}, key)
    mean = [fmean(rewards[max(0, end - SMOOTH) : end]) for end in range(1, len(rewards) + 1)]
    smooth = Key(f"mean of the last {SMOOTH}", colours.REWARD, "mean", "line")
    figure.add(0, _curve(steps, mean, smooth, "%{y:.4g}", width=2.6), smooth)


def _evaluations(evals: Sequence[EvalRow]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [row.version for row in evals],
        "y": [row.reward_mean for row in evals],
        "customdata": [
            f"evaluation {row.eval} of version {row.version}: {row.completed} trajectories"
            + (f", {row.failed} failed" if row.failed else "")
            for row in evals
        ],
        "hovertemplate": "%{customdata}, reward %{y:.4g}<extra></extra>",
        "marker": {"color": colours.EVALUATION, "size": 10, "symbol": "diamond"},
    }


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
        x_range=_range(steps[0], steps[-1]),
        x_axis=_steps_axis(len(steps)),
        more={"barmode": "stack"},
    )
    parts = _parts(steps)
    sums = [
        [sum(rollouts.by_step[step][place] for step in part) for place in range(len(TRAJECTORY_PARTS))]
        for part in parts
    ]
    _stacked(figure, parts, sums, [sum(rollouts.trained[step] for step in part) for part in parts])
    setup, env = TRAJECTORY_PARTS.index("env_setup"), TRAJECTORY_PARTS.index("env")
    share = [(one[setup] + one[env]) / (sum(one) or 1.0) for one in sums]
    key = Key("share of time in the environment", colours.COMPONENTS["env"], "share", "line")
    trace = _curve([fmean(part) for part in parts], share, key, "%{y:.1%}")
    figure.add(1, trace | {"mode": "lines+markers" if len(parts) < 3 else "lines"}, key)
    return figure


def _stacked(
    figure: Figure, parts: Sequence[Sequence[int]], sums: Sequence[Sequence[float]], counts: Sequence[int]
) -> None:
    """Draw the mean seconds of each component on top of each other: `sums` of `counts` trajectories in each part."""
    x = [fmean(part) for part in parts]
    width = len(parts[0]) * (0.94 if len(parts) > 40 else 0.8)
    for place, name in enumerate(TRAJECTORY_PARTS):
        y = [max(0.0, float(f"{one[place] / count:.4g}")) for one, count in zip(sums, counts, strict=True)]
        if max(y) < 1e-9:
            continue
        trace = {
            "type": "bar",
            "x": x,
            "y": y,
            "width": width,
            "hovertemplate": f"{words(name)} %{{y:.3g}} s<extra></extra>",
            "marker": {"color": colours.COMPONENTS[name], "line": {"width": 0}},
        }
        figure.add(0, trace, Key(words(name), colours.COMPONENTS[name], name))


def _curve(x: Sequence[float], values: Sequence[float], key: Key, form: str, **more: Any) -> dict[str, Any]:
    """Return a thinned line; `form` is the value in its hover text."""
    kept = thin(x, values, POINTS // 2)
    y = [float(f"{values[index]:.5g}") for index in kept]
    hover = f"{key.text} {form}<extra></extra>"
    return line([x[index] for index in kept], y, key.colour, hovertemplate=hover, **more)


def _parts(steps: Sequence[int]) -> list[Sequence[int]]:
    """Return the steps in at most `BARS` parts of equal length."""
    count = min(BARS, len(steps))
    edges = [round(index * len(steps) / count) for index in range(count + 1)]
    return [steps[begin:end] for begin, end in pairwise(edges)]


def _steps_axis(steps: int) -> dict[str, Any]:
    """Return more of the x axis: no tick between two steps, and what stands above the figures of one."""
    axis: dict[str, Any] = {"unifiedhovertitle": {"text": "step %{x}"}}
    return axis | ({"dtick": 1} if steps <= 12 else {})


def _range(first: float, last: float) -> tuple[float, float]:
    return first - 0.6, last + 0.6
