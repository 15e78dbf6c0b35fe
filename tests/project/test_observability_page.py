"""docs/observability.md: its queries, asked of a real Prometheus, give the numbers that it prints."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from programs import needs
from prometheus import Prometheus

from eventrain.adapters.cli.main import commands

from .tree import ROOT

PAGE = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
INCIDENTS = ("stall", "env_bound", "weight_sync")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def queries() -> list[tuple[str, float, str, dict[tuple[tuple[str, str], ...], str]]]:
    """Return each query of the page: a name, unix seconds, the expression, and what it finds by labels."""
    found = []
    for block in re.findall(r"(?:^    .*\n|^\n)+", PAGE, flags=re.M):
        if "    @ 22:" not in block:
            continue
        at, expr, values = 0.0, "", {}
        for line in [*block.splitlines(), "    end"]:
            text = line.strip()
            if text.startswith("@ 22:") or text == "end" or (values and text and not text.startswith("{")):
                if expr and values:
                    found.append((f"{len(found)}", at, expr, values))
                expr, values = "", {}
            if text.startswith("@ 22:"):
                hours, minutes, seconds = map(int, text[2:10].split(":"))
                at = datetime(2023, 11, 14, hours, minutes, seconds, tzinfo=UTC).timestamp()
                continue
            alone = re.match(r"^(\{.*\})\s+(\S+)$", text)
            ended = re.match(r"^(.*?)\s{2,}(\{[^{}]*\})?\s*(\d\S*)$", text)
            if alone:
                values[tuple(sorted(LABEL.findall(alone[1])))] = alone[2]
            elif ended:
                expr += f" {ended[1]}"
                values[tuple(sorted(LABEL.findall(ended[2] or "")))] = ended[3]
            else:
                expr += f" {text}"
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Give a Prometheus with the three incidents."""
    folder = tmp_path_factory.mktemp("incidents")
    with Prometheus(folder / "server") as server:
        for name in INCIDENTS:
            text = folder / f"{name}.om"
            run = ROOT / "examples" / "incidents" / name
            told = CliRunner().invoke(commands, ["export", "openmetrics", str(run), str(text)])
            assert told.exit_code == 0, told.output
            server.load_openmetrics(text.read_text(encoding="utf-8"))
        yield server


def test_the_page_has_queries() -> None:
    """They are found where they stand: for each incident some."""
    assert len(queries()) >= 8
    for name in ("stall", "env-bound", "weight-sync"):
        assert any(f'run=~"{name}.*"' in expr for _, _, expr, _ in queries())


@pytest.mark.slow
@needs("prometheus", "promtool")
@pytest.mark.parametrize(("at", "expr", "values"), [query[1:] for query in queries()])
def test_a_query_finds_what_the_page_says(server, at, expr, values) -> None:
    """Every figure, to the digits that are printed, and no series besides where the page prints all labels."""
    found = {}
    for sample in server.query(expr, at):
        for labels in values:
            if all(sample.labels.get(key) == value for key, value in labels):
                found[labels] = sample.value
    assert set(found) == set(values), (expr, found)
    for labels, printed in values.items():
        digits = len(printed.partition(".")[2])
        assert round(found[labels], digits) == float(printed), (expr, labels, found[labels])


@pytest.mark.parametrize("line", [line[6:] for line in PAGE.splitlines() if line.startswith("    $ eventrain stalls")])
def test_the_stall_is_told_as_the_page_shows_it(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `eventrain stalls` prints of the incident stands in the page, line by line."""
    monkeypatch.chdir(ROOT)
    told = CliRunner().invoke(commands, line.split()[1:])
    assert told.exit_code == 0
    shown = [text.strip() for text in PAGE.splitlines()]
    for text in told.output.splitlines()[:-1]:
        assert text.strip() in shown, text


def test_its_pictures_are_there() -> None:
    """Every picture of the page is a file in docs."""
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", PAGE)
    assert len(pictures) >= 5
    for picture in pictures:
        assert (ROOT / "docs" / picture).is_file(), picture


