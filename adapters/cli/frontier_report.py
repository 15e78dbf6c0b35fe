"""What `eventrain frontier` says: the table, the plot, the model's error, and the same for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from ..simulated.cluster import Row
from ..simulated.frontier import Latencies, Model, Point
from .quantities import seconds, table

ERROR_SAID = 0.05
"""Relative error of the model's step time above which it is said aloud."""
WIDTH, HEIGHT = 60, 14
ASSUMED = (
    "how long groups and steps take does not depend on the policy, nor, beyond the engines' slots, on how many "
    "groups are in flight"
)


@dataclass(frozen=True)
class Frontier:
    """Everything that is said."""

    latencies: Latencies
    model: Model
    points: Sequence[Point]
    seeds: int
    measured: Row

    @property
    def own(self) -> Point:
        """The model's point of the run's own setting."""
        return next(point for point in self.points if point.own)

    @property
    def error(self) -> float:
        """By how much the model's step is longer than the measured one, as a share; negative when shorter."""
        return self.own.step_s / self.measured.step_s - 1

    def efficiency(self, step_s: float) -> float:
        """Return the ideal step divided by `step_s`."""
        return self.model.ideal_s / step_s


def frontier_table(frontier: Frontier) -> dict[str, Any]:
    """Return the facts as one JSON-ready table; its keys stay as they are."""
    latencies, model, measured = frontier.latencies, frontier.model, frontier.measured
    return {
        "run": model.config.run.name,
        "steps": latencies.steps,
        "groups": len(latencies.groups),
        "groups_whole": latencies.seen_whole,
        "places": model.places,
        "ideal_step_s": model.ideal_s,
        "scale": model.scale,
        "seeds": frontier.seeds,
        "assumed": ASSUMED,
        "measured": {
            "policy": frontier.own.policy,
            "max_staleness": frontier.own.staleness,
            "step_s": measured.step_s,
            "efficiency": frontier.efficiency(measured.step_s),
            "lag_max": measured.token_lag_max,
            "lag_mean": measured.lag_mean,
            "waste": measured.given_up,
        },
        "model_error": frontier.error,
        "settings": [
            {
                "policy": point.policy,
                "max_staleness": point.staleness,
                "step_s": point.step_s,
                "step_sd_s": point.step_sd_s,
                "efficiency": frontier.efficiency(point.step_s),
                "lag_max": point.lag_max,
                "lag_mean": point.lag_mean,
                "waste": point.waste,
                "best": point.best,
                "own": point.own,
            }
            for point in frontier.points
        ],
    }


def frontier_lines(frontier: Frontier) -> list[str]:
    """Return the facts as lines for a person, styled for a terminal."""
    return [*_head(frontier), "", *_rows(frontier), "", *_plot(frontier), "", *_notes(frontier)]


def _head(frontier: Frontier) -> list[str]:
    latencies, model, draws = frontier.latencies, frontier.model, frontier.model.draws
    whole, per_step = latencies.seen_whole, model.config.scheduler.groups_per_step
    name = click.style(model.config.run.name, bold=True)
    seen = f"{whole} groups seen whole, {len(latencies.groups) - whole} not"
    held = f"the engines hold {model.places:.0f} at once"
    return [
        f"{name}  {latencies.steps} steps of {per_step} groups; {seen}",
        f"a group takes {seconds(draws.mean_group_s())} in the mean, and {held}",
        f"the trainer is busy {seconds(draws.mean_step_s())} a step; the ideal step is {seconds(model.ideal_s)}",
    ]


def _rows(frontier: Frontier) -> list[str]:
    rows = [("", "policy", "S", "step", "efficiency", "lag max / mean", "waste", "")]
    for point in frontier.points:
        rows.append(
            (
                "*" if point.best else "",
                _name(point),
                str(point.staleness),
                seconds(point.step_s),
                f"{frontier.efficiency(point.step_s):.2f}",
                f"{point.lag_max} / {point.lag_mean:.2f}",
                f"{point.waste:.2f}",
                "<- the run's own setting" if point.own else "",
            )
        )
        if point.own:
            measured = frontier.measured
            rows.append(
                (
                    "",
                    "  measured",
                    str(point.staleness),
                    seconds(measured.step_s),
                    f"{frontier.efficiency(measured.step_s):.2f}",
                    f"{measured.token_lag_max} / {measured.lag_mean:.2f}",
                    f"{measured.given_up:.2f}",
                    f"   the model's step is {100 * frontier.error:+.1f} %",
                )
            )
    return table(rows, right=(2, 3, 4, 5, 6))


def _name(point: Point) -> str:
    return point.policy if point.staleness else "synchronous"


def _plot(frontier: Frontier) -> list[str]:
    """Return efficiency against mean lag: a point's mark is a letter of its policy, ``@`` is the run as measured."""
    points, measured = frontier.points, frontier.measured
    lag_most = max(1.0, measured.lag_mean, *(point.lag_mean for point in points))
    shares = [frontier.efficiency(point.step_s) for point in points]
    top = max(1.0, frontier.efficiency(measured.step_s), *shares)
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]

    def put(lag: float, efficiency: float, mark: str) -> None:
        row = HEIGHT - 1 - round(efficiency / top * (HEIGHT - 1))
        cells[max(0, row)][round(lag / lag_most * (WIDTH - 1))] = mark

    letters = _letters([_name(point) for point in points])
    for point, share in zip(points, shares, strict=True):
        put(point.lag_mean, share, letters[_name(point)])
    put(measured.lag_mean, frontier.efficiency(measured.step_s), "@")
    lines = [
        f"{top * (HEIGHT - 1 - n) / (HEIGHT - 1):4.2f} |{''.join(row).rstrip()}"
        for n, row in enumerate(cells)
    ]
    legend = ", ".join(f"{letter} {name}" for name, letter in letters.items())
    return [
        click.style("efficiency against mean lag", dim=True),
        *lines,
        "     +" + "-" * WIDTH,
        f"      0{f'{lag_most:.1f}':>{WIDTH - 1}}",
        f"      {legend}, @ this run as measured",
    ]


def _letters(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each name, its first that is not taken."""
    letters: dict[str, str] = {}
    for name in dict.fromkeys(names):
        letters[name] = next((char for char in name if char.isalpha() and char not in letters.values()), "?")
    return letters


def _notes(frontier: Frontier) -> list[str]:
    model = frontier.model
    notes = [
        "* no other setting is better in efficiency, mean lag and waste together",
        f"S is max_staleness; {frontier.seeds} seeds each; permits and buffer as configured, or their defaults for S",
        f"assumed: {ASSUMED}",
    ]
    if model.scale > 1:
        notes.append(
            f"simulated at 1/{model.scale:.3g} of the run's size, with as much less room in the engines"
        )
    if abs(frontier.error) > ERROR_SAID:
        notes.append(
            click.style(
                f"the model's step time is off by {100 * frontier.error:+.0f} % for the run's own setting: "
                "take differences smaller than that for nothing",
                fg="yellow",
            )
        )
    return notes
