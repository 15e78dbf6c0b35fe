"""The page in a browser: it draws, complains of nothing, asks nobody, and fits a phone."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from programs import find, needs

from eventrain.events.folder import RunFolder

CHROMIUM = find("chromium")
pytestmark = [pytest.mark.slow, needs("chromium")]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-sync",
    "--disable-component-update",
    "--enable-logging=stderr",
    "--allow-file-access-from-files",
    "--virtual-time-budget=6000",
)
LOOK = """<!doctype html><meta charset="utf-8"><body>
<iframe src="REPORT" style="width: WIDTHpx; height: 3000px; border: 0"></iframe><pre id="seen"></pre>
<script>
document.querySelector("iframe").addEventListener("load", () => setTimeout(() => {
  const page = document.querySelector("iframe").contentDocument;
  const view = document.querySelector("iframe").contentWindow;
  const all = view.performance.getEntriesByType("resource");
  const figure = (name) => page.getElementById("figure-" + name);
  view.Plotly.relayout(figure("learning"), { "xaxis.range": [0.25, 1.5] });
  page.querySelector('button[data-key="trainer training"]').click();
  setTimeout(() => document.getElementById("seen").textContent = JSON.stringify({
    drawn: page.documentElement.dataset.drawn,
    width: page.scrollingElement.scrollWidth,
    figures: [...page.querySelectorAll(".figure")].map((one) => one.querySelectorAll("svg .trace, svg .bars").length),
    paths: page.querySelectorAll("svg path").length,
    overflow: [...page.querySelectorAll(".figure")].filter((one) => one.scrollWidth > one.clientWidth + 1).length,
    requests: all.map((one) => one.name),
    followed: figure("components")._fullLayout.xaxis.range,
    hidden: figure("time").data.filter((one) => one.visible === false).map((one) => one.legendgroup),
  }), 1000);
}, 2500));
</script>"""


def browse(page: Path, profile: Path, width: int) -> tuple[dict[str, Any], list[str]]:
    """Open `page` in a frame of `width` pixels; return what was seen there and what the console said."""
    assert CHROMIUM is not None
    wrapper = profile.with_suffix(".html")
    wrapper.write_text(LOOK.replace("REPORT", page.as_uri()).replace("WIDTH", str(width)), "utf-8")
    done = subprocess.run(
        [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={profile}",
            "--window-size=1600,1200",
            "--dump-dom",
            wrapper.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    seen = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert seen is not None
    assert seen[1], done.stderr[-2000:]
    return json.loads(html.unescape(seen[1])), re.findall(r"CONSOLE.*", done.stderr)


@pytest.fixture(scope="module", name="page")
def _page(simulated, command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a run with stalls, long messages and quarantined prompts."""
    folder: RunFolder = simulated("s03_floor_and_quarantine")
    output = tmp_path_factory.mktemp("pages") / "report.html"
    assert command("report", folder.path, "-o", output).exit_code == 0
    return output


def test_charts_of_one_axis_zoom_together_and_names_hide_what_they_name(page: Path, tmp_path: Path) -> None:
    """The other chart by step shows the steps that the first one was zoomed to; a click on a phase hides it."""
    seen, console = browse(page, tmp_path / "profile", 1440)
    assert console == []
    assert seen["followed"] == [0.25, 1.5]
    assert seen["hidden"] == ["trainer training"]


@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_draws_and_fits(page: Path, tmp_path: Path, width: int) -> None:
    """All three charts are there, nothing is wider than the screen, the console is silent and no request is made."""
    seen, console = browse(page, tmp_path / "profile", width)
    assert console == []
    assert seen["drawn"] == "true"
    assert len(seen["figures"]) == 3
    assert min(seen["figures"]) > 0
    assert seen["paths"] > 50
    assert seen["width"] <= width
    assert seen["overflow"] == 0
    assert seen["requests"] == []


def test_a_script_that_got_into_the_page_does_not_run(page: Path, tmp_path: Path) -> None:
    """Even if a text had become markup, the policy keeps it from running: a second line of defence."""
    changed = tmp_path / "changed.html"
    text = page.read_text("utf-8").replace(
        "</main>", "<script>document.title = 'owned'; throw 1</script></main>", 1
    )
    changed.write_text(text, "utf-8")
    seen, console = browse(changed, tmp_path / "profile", 1440)
    assert seen["drawn"] == "true"
    assert len(console) == 1
    assert "violates the following Content Security Policy" in console[0]
