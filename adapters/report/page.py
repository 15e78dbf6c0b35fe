"""The page: what was read from a log, as one HTML file that needs nothing else and asks nobody."""

from __future__ import annotations

import base64
import hashlib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ..wording import missing, require
from .by_step import components, learning
from .over_time import over_time
from .reading import Reading
from .tables import facts

GENERATOR = "eventrain report"
"""What a report names as its generator; a file without it is not overwritten."""

_HERE = Path(__file__).parent
_LINE_ENDS = {"\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(reading: Reading) -> str:
    """Return the whole page. Raises `MissingExtra` where plotly or jinja2 is not installed."""
    jinja2 = require("jinja2", "view")
    plotly = plotly_script().read_text("utf-8")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    drawing = (_HERE / "drawing.js").read_text("utf-8")
    figures = {
        figure.name: figure
        for figure in (learning(reading), over_time(reading), components(reading))
        if figure
    }
    return str(
        environment.get_template("page.html").render(
            facts(reading),
            generator=GENERATOR,
            figures=figures,
            figures_json=script_json({name: figure.table() for name, figure in figures.items()}),
            css=(_HERE / "page.css").read_text("utf-8"),
            scripts=[plotly, drawing],
            hashes=[_hash(plotly), _hash(drawing)],
            version=version("eventrain"),
        )
    )


def plotly_script() -> Path:
    """Return the file of plotly.js, without loading plotly, of which the page needs nothing else.

    Raises `MissingExtra` where plotly is not installed.
    """
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise missing("plotly", "view")
    return Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


def script_json(value: object) -> str:
    """Return `value` as JSON that can stand in a script element: nothing in it ends the element or a line."""
    text = msgspec.json.encode(value).decode()
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    for sign, written in _LINE_ENDS.items():
        text = text.replace(sign, written)
    return text


def _hash(script: str) -> str:
    """Return the source expression by which the page allows this very script (Content Security Policy, level 2)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
