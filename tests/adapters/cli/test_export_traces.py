"""`eventrain export traces`: to a file and to a receiver, of runs that ended, broke off or go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from otlp_receiver import receiving
from trace_logs import Told, spans_of, write

from eventrain.adapters.telemetry.traces.sampling import Sampling
from eventrain.events.record import Record

RUN = "told-20260101-120000"
Command = Callable[..., Result]


def told(*, ended: bool = True) -> list[Record]:
    """Return a small log; without its end a trajectory is open."""
    log = Told()
    for step in range(2):
        log.group(step, 0.1, 0.2)
        log.step(step, step)
    if ended:
        log.finish()
    else:
        log.dispatch(9)
        log.start("9/0")
    return log.records


def spans_in(path: Path) -> list[dict[str, Any]]:
    """Return the spans of an OTLP JSON-lines file."""
    return [
        span
        for line in path.read_text().splitlines()
        for of_resource in json.loads(line)["resourceSpans"]
        for of_scope in of_resource["scopeSpans"]
        for span in of_scope["spans"]
    ]


def is_cut(span: dict[str, Any]) -> bool:
    """Return whether a span of a file was cut short."""
    return any(attribute["key"] == "rl.span.truncated" for attribute in span["attributes"])


def test_a_file_has_every_span_and_the_line_says_how_many(tmp_path: Path, command: Command) -> None:
    """Written twice it is the same, byte for byte."""
    records = told()
    folder = write(tmp_path / "run", records)
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    done = command("export", "traces", folder.path, "--jsonl", first)
    assert done.exit_code == 0, done.output
    spans = spans_of(records)
    trees = sum(not span.parent for span in spans)
    assert done.output == f"{first}: {len(spans)} spans in {trees} trees of run {RUN}\n"
    assert [span["spanId"] for span in spans_in(first)] == [span.span_id.hex() for span in spans]
    command("export", "traces", folder.path, "--jsonl", second)
    assert first.read_bytes() == second.read_bytes()


def test_a_receiver_gets_the_same_spans(tmp_path: Path, command: Command) -> None:
    """As a file has, and the line names the receiver."""
    records = told()
    folder = write(tmp_path / "run", records)
    with receiving() as receiver:
        done = command("export", "traces", folder.path, "--otlp", receiver.url)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{receiver.url}: ")
    assert [bytes(span.span_id) for span in receiver.spans()] == [span.span_id for span in spans_of(records)]


def test_share_and_slowest_replace_the_runs_own(tmp_path: Path, command: Command) -> None:
    """The other setting stays the run's."""
    records, out = told(), tmp_path / "out.jsonl"
    folder = write(tmp_path / "run", records)
    command("export", "traces", folder.path, "--jsonl", out, "--share", "0", "--slowest", "1")
    assert len(spans_in(out)) == len(spans_of(records, Sampling(0.0, 1))) < len(spans_of(records))
    command("export", "traces", folder.path, "--jsonl", out, "--share", "0")
    assert len(spans_in(out)) == len(spans_of(records, Sampling(0.0, 2)))


def test_a_run_that_broke_off_is_cut_where_its_log_ends(tmp_path: Path, command: Command) -> None:
    """Nobody writes it any more, so what is open stays open for ever."""
    folder, out = write(tmp_path / "run", told(ended=False)), tmp_path / "out.jsonl"
    command("export", "traces", folder.path, "--jsonl", out)
    assert any(is_cut(span) for span in spans_in(out))


@pytest.mark.parametrize("asked", [False, True])
def test_a_run_that_goes_on_is_cut_only_when_asked(tmp_path: Path, command: Command, asked: bool) -> None:
    """What is open may end yet; ``--truncate-open`` shows it all the same."""
    folder, out = write(tmp_path / "run", told(ended=False)), tmp_path / "out.jsonl"
    with folder.lock():
        flags = ["--truncate-open"] if asked else []
        done = command("export", "traces", folder.path, "--jsonl", out, *flags)
    assert done.exit_code == 0, done.output
    assert any(is_cut(span) for span in spans_in(out)) == asked


def test_the_file_can_be_standard_output(tmp_path: Path, command: Command) -> None:
    """Then nothing but spans is written there."""
    folder = write(tmp_path / "run", told())
    done = command("export", "traces", folder.path, "--jsonl", "-")
    assert [list(json.loads(line)) for line in done.stdout.splitlines()] == [["resourceSpans"]]
    assert done.stderr.startswith("-: ")


def test_bad_input_is_one_line(tmp_path: Path, command: Command) -> None:
    """It says what, where, and what would be right."""
    folder = write(tmp_path / "run", told())
    missing = tmp_path / "no" / "out.jsonl"
    for arguments, code, line in (
        ([folder.path], 2, "give --otlp URL or --jsonl FILE, one of the two"),
        ([folder.path, "--otlp", "http://h", "--jsonl", "f"], 2, "give --otlp URL or --jsonl FILE, one of the two"),
        (
            [folder.path, "--otlp", "localhost:4318"],
            2,
            "--otlp localhost:4318: is no URL of a receiver; it would be one like http://localhost:4318",
        ),
        (
            [folder.path, "--otlp", "http://127.0.0.1:9"],
            1,
            "http://127.0.0.1:9: connection refused; 0 spans were sent before",
        ),
        ([folder.path, "--jsonl", missing], 2, f"{missing}: there is no folder {missing.parent}"),
        ([tmp_path / "run2", "--jsonl", "f"], 2, f"{tmp_path}/run2: no such folder; did you mean {folder.path}?"),
    ):
        done = command("export", "traces", *arguments)
        assert (done.exit_code, done.output) == (code, f"{line}\n")


def test_a_receiver_that_refuses_is_one_line(tmp_path: Path, command: Command) -> None:
    """With its status, and what was sent before."""
    folder = write(tmp_path / "run", told())
    with receiving(then=(401, b"", {})) as receiver:
        done = command("export", "traces", folder.path, "--otlp", receiver.url)
    assert done.exit_code == 1
    assert done.output == f"{receiver.url}: 401 Unauthorized; 0 spans were sent before\n"
