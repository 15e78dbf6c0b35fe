"""A curve as a few lines of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

from ..cli.quantities import number, sparkline

_EIGHTHS = " ▁▂▃▄▅▆▇█"
LABEL = 7
"""Columns for the highest and the lowest value beside the curve ..."""
LABELLED = 3
"""... which stand there in a curve of so many lines or more."""


def columns(values: Sequence[float], width: int) -> list[float]:
    """Return one value for each of `width` columns: the means of equal parts, or repetitions where there are fewer."""
    if not values or width < 1:
        return []
    if len(values) <= width:
        return [values[x * len(values) // width] for x in range(width)]
    edges = [round(x * len(values) / width) for x in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def area(values: Sequence[float], width: int, height: int, style: str) -> list[Text]:
    """Return the curve of `values` as an area of `width` by `height` characters."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or height < 1:
        return []
    if height < LABELLED:
        return [Text(sparkline(columns(finite, width), width), style)]
    means = columns(finite, width - LABEL - 1)
    least, most = min(means, default=0.0), max(means, default=0.0)
    span = (most - least) or 1.0
    heights = [1 + round((mean - least) / span * (height * 8 - 1)) for mean in means]
    lines = []
    for row in range(height - 1, -1, -1):
        name = number(float(f"{most:.3g}")) if row == height - 1 and most > least else ""
        name = number(float(f"{least:.3g}")) if row == 0 else name
        cells = "".join(_EIGHTHS[min(8, max(0, tall - row * 8))] for tall in heights)
        lines.append(Text.assemble((f"{name:>{LABEL}} ", "bright_black"), (cells, style)))
    return lines
