"""The metrics of a log as text: what live scrapes would have found, in a form that Prometheus takes in."""

from __future__ import annotations

import io
from itertools import groupby
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from metric_runs import SetClock, page, samples, serving
from programs import needs
from prometheus import Prometheus
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from told_runs import START_MONO, START_TS, STEP, ToldRun, phased_run

from eventrain.adapters.cli.main import commands
from eventrain.adapters.telemetry.metrics import openmetrics
from eventrain.adapters.telemetry.metrics.catalog import BY_NAME, METRICS
from eventrain.adapters.telemetry.metrics.openmetrics import write_openmetrics
from eventrain.events.record import Record
from eventrain.events.types import PhaseEntered, RunResumed

RUN = ("run", "told-20260101-120000")


def text_of(records: list[Record], every_s: float = 15.0) -> str:
    out = io.BytesIO()
    write_openmetrics(records, out, every_s)
    return out.getvalue().decode()


def times(text: str, name: str = "rl_steps_total") -> list[float]:
    """Return the seconds after the start at which a metric has samples."""
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return [round(float(line.rsplit(" ", 1)[1]) - START_TS / 1e9, 3) for line in lines]


def test_every_scrape_is_what_the_page_showed_then() -> None:
    """At each time the samples are those of a live page, had an event without effect come at that moment."""
    told = phased_run(4)
    text = text_of(told.records)
    by_time: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            series, at = line.rsplit(" ", 1)
            by_time.setdefault(at, []).append(series)
    assert len(by_time) == 6
    for at, lines in by_time.items():
        seconds = float(at) - START_TS / 1e9
        so_far = [record for record in told.records if record.ts / 1e9 <= float(at) + 1e-6]
        with serving(so_far, SetClock(seconds)) as live:
            live._meter.last_mono = START_MONO + round(seconds * 1e9)
            shown = {key: value for key, value in samples(page(live)).items() if key[0] != "target_info"}
        assert samples("\n".join(lines)) == pytest.approx(shown, abs=1e-5)


def at_one_time(text: str, place: int) -> str:
    """Return the text with the samples of one scrape only.

    The parser takes the histograms of a second scrape for repetitions of the first one's.
    """
    lines = text.splitlines(keepends=True)
    found = sorted({line.rsplit(" ", 1)[1] for line in lines if not line.startswith("#")})
    return "".join(line for line in lines if line.startswith("#") or line.endswith(f" {found[place]}"))


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_strict_parser_reads_it(place: int) -> None:
    """The OpenMetrics parser of prometheus_client takes it, with the families and types of the catalog."""
    text = at_one_time(text_of(phased_run(2).records), place)
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    types = {metric.family: metric.kind for metric in METRICS}
    for family in families:
        assert types[family.name] == family.type


def test_all_samples_of_a_series_stand_together_in_the_order_of_time() -> None:
    """As OpenMetrics wants it: no series begins again behind another one."""
    lines = [line for line in text_of(phased_run(4).records).splitlines() if not line.startswith("#")]
    histograms = tuple(metric.prometheus for metric in METRICS if metric.kind == "histogram")
    plain = [line.rsplit(" ", 2) for line in lines if not line.startswith(histograms)]
    series = [name for name, _, _ in plain]
    assert len(list(groupby(series))) == len(set(series))
    for _, samples_ in groupby(plain, key=lambda parts: parts[0]):
        moments = [float(at) for _, _, at in samples_]
        assert moments == sorted(moments)


def test_samples_stand_where_they_are_asked_for() -> None:
    """One at the start, one every so often, and one at the end."""
    assert times(text_of(phased_run(2).records, 10.0)) == [0, 10, 20, 30, 30.2]


def resumed(after_s: float) -> ToldRun:
    """Tell a run that is killed in its third step, lies for `after_s` seconds and is resumed."""
    told = phased_run(2, finish=False)
    told.publish("trainer", PhaseEntered(phase="waiting_for_buffer", step=2))
    last = told.after(1.0).publish("trainer", PhaseEntered(phase="converting", step=2)).mono
    told.after(after_s).publish("run", RunResumed(step=2, version=2, last_mono=last))
    told.after(20.0).publish("trainer", PhaseEntered(phase="generating", step=2))
    return told


def test_there_are_no_samples_of_the_time_between_a_crash_and_the_resume() -> None:
    """The last one before is at the last event, the next one at the resume, and counters go on."""
    text = text_of(resumed(3600).records)
    assert times(text) == [0, 15, 30, 31.2, 3631.2, 3646.2, 3651.2]
    assert text.count("run=") == text.count(f'run="{RUN[1]}"')
    values = [float(line.split()[-2]) for line in text.splitlines() if line.startswith("rl_events_total{")]
    assert values == sorted(values)


def test_a_live_log_ends_with_its_last_event() -> None:
    """What is open is counted up to there and no further."""
    told = phased_run(1, finish=False)
    text = text_of(told.records, 4.0)
    assert times(text)[-1] == pytest.approx(15.1)
    assert 'rl_run_outcome{run="told-20260101-120000",outcome="running"} 1.0' in text


def test_the_file_of_a_fork_begins_with_the_fork() -> None:
    """The time before belongs to the run that it was forked from; counts go on from there."""
    told = phased_run(2, finish=False)
    config = {**told.records[0].event.config, "run": {"name": "branch", "steps": 4}}
    told.after(100).publish("run", RunResumed(step=2, version=2, forked_from="/runs/told", config=config))
    told.after(20.0).publish("trainer", PhaseEntered(phase="generating", step=2))
    text = text_of(told.records)
    assert times(text) == [130.2, 145.2, 150.2]
    assert 'run="told-' not in text
    assert 'rl_steps_total{run="branch-20260101-120210"} 2.0' in text


def test_labels_are_escaped() -> None:
    """A name with quotes, backslashes and line ends is read back as it is."""
    name = 'a"b\\c\nd'
    text = at_one_time(text_of(phased_run(1, name=name).records), 0)
    families = list(text_string_to_metric_families(text))
    [info] = [family for family in families if family.name == "rl_run_info"]
    assert info.samples[0].labels["name"] == name


def export(*arguments: object) -> Result:
    line = ["export", "openmetrics", *map(str, arguments)]
    return CliRunner().invoke(commands, line, prog_name="eventrain")


def test_the_command_writes_the_file_and_says_what_is_in_it(tmp_path: Path) -> None:
    """One line: how many samples, of which run, from when to when, how large."""
    run, file = phased_run(4).write(tmp_path / "run"), tmp_path / "told.om"
    found = export(run, file, "--every", "15s")
    assert found.exit_code == 0, found.output
    text = file.read_text()
    count = sum(1 for line in text.splitlines() if not line.startswith("#"))
    assert found.output.startswith(
        f"{file}: {count:,} samples of run {RUN[1]}, one scrape every 15 s, "
        "2026-01-01 12:00:00 UTC to 2026-01-01 12:01:00 UTC, "
    )
    assert text.endswith("# EOF\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "told.om"]


@pytest.mark.parametrize("every", ["0", "soon", "-3s", "5 weeks"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, every: str) -> None:
    """One line that says what would be right, and exit code 2."""
    run = phased_run(1).write(tmp_path / "run")
    found = export(run, tmp_path / "x.om", f"--every={every}")
    assert found.exit_code == 2
    assert found.output == f"--every: '{every}' is no time between scrapes; write 15s, 500ms or 1m\n"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    """As by all commands that read a run."""
    found = export(tmp_path, tmp_path / "x.om")
    assert found.exit_code == 2
    assert "is no run" in found.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@needs("prometheus", "promtool")
def test_prometheus_finds_the_true_utilisation_by_phase(tmp_path: Path) -> None:
    """Taken in by promtool, a run of hours has in each phase the utilisation that it was told with."""
    told = phased_run(400)
    run, file = told.write(tmp_path / "run"), tmp_path / "told.om"
    assert export(run, file).exit_code == 0
    end_s = START_TS / 1e9 + told.now_s
    with Prometheus(tmp_path / "server") as server:
        server.load_openmetrics(file.read_text())
        found = server.query(
            "sum by (pool, phase) (increase(rl_gpu_busy_seconds_total[1h]))"
            " / (sum by (pool, phase) (increase(rl_gpu_allocated_seconds_total[1h])) > 0)",
            end_s,
        )
        used = {(one.labels["pool"], one.labels["phase"]): one.value for one in found}
        phases = server.query("min_over_time(sum(rl_trainer_phase)[1h:15s])", end_s)
        wall = server.query(f"sum(rl_trainer_phase_seconds_total{{run='{RUN[1]}'}})", end_s)
        names = server.query("count by (__name__) ({__name__=~'rl_.*'})", end_s)
    truth = {("learner", part.phase): part.learner for part in STEP}
    truth |= {("engine", part.phase): part.engine for part in STEP}
    assert used == pytest.approx(truth, abs=0.002)
    assert [one.value for one in phases] == [1.0]
    assert [one.value for one in wall] == [pytest.approx(told.now_s)]
    plain = {one.labels["__name__"] for one in names}
    assert {name for name in plain if not name.endswith(("_bucket", "_count", "_sum"))} <= set(BY_NAME)


def test_more_scrapes_than_anybody_reads_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that would not end says what would be right, and leaves nothing behind."""
    monkeypatch.setattr(openmetrics, "SCRAPES_MAX", 100)
    run = phased_run(40).write(tmp_path / "run")
    found = export(run, tmp_path / "x.om", "--every=1ms")
    assert found.exit_code == 2
    assert found.output == "--every: more than 100 scrapes, one each 0.001 s; a longer time would do\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
