"""Numbers as people read them: durations, shares, small bars and curves made of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_STEPS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def number(value: float) -> str:
    """Return `value` with four significant digits and no tail of zeros: ``0.4167``, ``12``, ``3e-05``."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e6):
        return str(int(value))
    return f"{value:.4g}"


def seconds(value: float) -> str:
    """Return a duration in the unit that suits it: ``340 us``, ``3.2 s``, ``4:07``, ``2:04:07``, ``3 days``."""
    if value < 0:
        return f"-{seconds(-value)}"
    if value == 0:
        return "0 s"
    if value < 0.0005:
        return f"{value * 1e6:.0f} us"
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 59.5:
        return f"{value:.0f} s"
    whole = round(value)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def clock_time(ns: int) -> str:
    """Return nanoseconds since the start of a run as ``h:mm:ss.mmm``."""
    millis = ns // 1_000_000
    sign = "-" if millis < 0 else ""
    millis = abs(millis)
    return (
        f"{sign}{millis // 3_600_000}:{millis // 60_000 % 60:02}:{millis // 1000 % 60:02}.{millis % 1000:03}"
    )


def size(count_bytes: int) -> str:
    """Return a size in bytes in the unit that suits it: ``812 B``, ``3.4 kB``, ``98 MB``."""
    amount = float(count_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 9.95 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the curve of `values` in at most `width` characters, the means of equal parts where there are more."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    count = min(width, len(finite))
    edges = [round(index * len(finite) / count) for index in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return _STEPS[3] * count
    return "".join(_STEPS[round((mean - low) / (high - low) * (len(_STEPS) - 1))] for mean in means)


def bar(share: float, width: int) -> str:
    """Return a bar that fills `share` (0 to 1) of `width` characters, to an eighth of a character."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return `rows` as lines with aligned columns, two spaces apart; columns in `right` are flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
