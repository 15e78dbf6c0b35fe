"""report, as its users see it: a page whose figures are the log's, safe to open, and never in anybody's way."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from eventrain.adapters.report.page import script_json
from eventrain.adapters.report.reading import read_run
from eventrain.events.folder import RunFolder
from eventrain.events.types import (
    DeviceSampled,
    EngineLost,
    EngineUp,
    GroupDispatched,
    GroupFailed,
    PhaseEntered,
    PolicyChanged,
    PromptDrawn,
    RunFailed,
    RunResumed,
    StallDetected,
    TelemetryDegraded,
    TrajectoryStarted,
)

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)> & \u2028"


def figures_of(page: str) -> dict[str, Any]:
    """Return the figures that stand in the page."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    figures: dict[str, Any] = json.loads(found[1])
    return figures


def lengths_of(trace: dict[str, Any]) -> float:
    """Return the sum of the lengths of a lane's pieces, between which there is a gap."""
    x = trace["x"]
    begins = [at for before, at in zip([None, *x], x, strict=False) if before is None and at is not None]
    ends = [at for at, behind in pairwise(x) if behind is None]
    return sum(ends) - sum(begins)


def words_of(page: str) -> str:
    """Return the text of the page, without scripts and styles, as a reader sees it."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


@pytest.fixture(name="page_of")
def _page_of(command, tmp_path: Path):
    """Return a function that writes a run's report and returns it."""

    def page_of(folder: RunFolder) -> str:
        result = command("report", folder.path, "-o", tmp_path / "out.html")
        assert result.exit_code == 0, result.output
        return (tmp_path / "out.html").read_text("utf-8")

    return page_of


def test_the_figures_of_the_page_are_those_of_the_log(simulated, page_of) -> None:
    """Rewards by step, seconds by phase, steps, groups and failures stand in the page as the projections have them."""
    folder = simulated("s11_evaluation_beside_training")
    page, read = page_of(folder), read_run(folder)
    figures, words = figures_of(page), words_of(page)
    traces = {trace["legendgroup"]: trace for trace in figures["learning"]["data"]}
    assert traces["reward"]["y"] == pytest.approx(read.status.rewards(), rel=1e-4)
    assert traces["eval"]["y"] == [row.reward_mean for row in read.status.view.progress.evals]
    for phase, spent in read.phase_s.items():
        drawn = [trace for trace in figures["time"]["data"] if trace["legendgroup"] == f"trainer {phase}"]
        assert sum(map(lengths_of, drawn)) == pytest.approx(spent, abs=1e-3)
    assert f"groups trained {read.status.view.groups.ended['trained']}" in words
    assert f"steps {read.status.view.trainer.version} of {read.status.view.trainer.steps_total}" in words
    assert "scheduler.groups_per_step" in words


def test_troubles_are_counted_by_reason(simulated, page_of) -> None:
    """Groups given up, failed attempts, expired deadlines, quarantined prompts and stalls each have their table."""
    folder = simulated("s03_floor_and_quarantine")
    words, read = words_of(page_of(folder)), read_run(folder)
    found = read.history.troubles
    for (failure, whose), trouble in found.attempts.items():
        assert f"{failure} {whose} {trouble.count}" in words
    assert found.expired  # or the next line says nothing
    for (effect, _), trouble in found.expired.items():
        assert re.search(rf"{effect} [\d.:]+ ?m?s? {trouble.count} ", words)
    assert f"Prompts in quarantine: {found.quarantined_count}" in words
    assert f"{len(read.stalls.intervals)} in all" in words


def test_a_slow_trajectory_has_the_command_that_shows_it(simulated, page_of) -> None:
    """The command in the page works, and names the trajectory as `show` does."""
    folder = simulated("s10_slow_environment")
    words = words_of(page_of(folder))
    slowest = read_run(folder).history.rollouts.slowest(0)[0]
    assert f"eventrain show {folder.path} {slowest.trajectory} trace " in words


def test_a_resume_is_marked_where_the_run_goes_on(simulated, page_of) -> None:
    """The time axis has a line with the downtime, which is cut out of it."""
    folder = simulated("s05_resume_with_a_warm_buffer")
    page = page_of(folder)
    notes = [note["text"] for note in figures_of(page)["time"]["layout"]["annotations"]]
    assert notes[0] == "resumed at step 3, 5.0 s down"
    assert notes[1:] == ["groups", "slots"]  # the titles of the panels
    assert "The time in which the run was stopped is cut out." in words_of(page)


def test_a_fork_has_the_id_of_the_fork(told, page_of, tmp_path: Path) -> None:
    """Its id is of the time at which it was forked, and the page says from where and with which other settings."""
    log = told()
    log.tell(PhaseEntered(phase="training", step=0), 5)
    log.tell(RunResumed(step=0, version=0, last_mono=log.records[-1].mono, forked_from="runs/old"), 3600)
    log.tell(PolicyChanged(key="learner.lr", old="1e-5", new="3e-5"), 0)
    words = words_of(page_of(log.write(tmp_path / "run")))
    assert "id hunt-20260101-130005" in words
    assert (
        "0:00:05.000: forked from runs/old after 1:00:00 of downtime, from step 0 on; learner.lr 1e-5 -> 3e-5"
        in words
    )


def test_what_is_open_is_hatched(told, page_of, tmp_path: Path) -> None:
    """The phase in which a log ends is drawn up to its end, and looks different from those that are over."""
    log = told()
    log.tell(PhaseEntered(phase="training", step=0), 2)
    log.tell(PhaseEntered(phase="generating", step=0), 3)
    log.tell(PhaseEntered(phase="training", step=1), 4)
    log.tell(EngineUp(engine="e0", version=0, context_tokens=96, slots=8), 5)
    data = figures_of(page_of(log.write(tmp_path / "run")))["time"]["data"]
    over, still = [trace for trace in data if trace["legendgroup"] == "trainer training"]
    assert (lengths_of(over), lengths_of(still)) == (3, 5)
    assert "dash" not in over["line"]
    assert still["line"]["dash"]
    assert "5.0 s and not over, from 0:00:09.000" in still["customdata"][0]
    (generating,) = [trace for trace in data if trace["legendgroup"] == "trainer generating"]
    assert "dash" not in generating["line"]


def test_device_use_stands_below_the_phases(told, page_of, tmp_path: Path) -> None:
    """With samples there are a panel and two tables; without any there is a line that says so."""
    log = told()
    log.tell(PhaseEntered(phase="training", step=0), 2)
    for _ in range(4):
        for device in ("cuda:0", "cuda:1"):
            sample = DeviceSampled(
                device=device, pool="learner", utilization=0.75, memory_bytes=1, window_s=1, source="nvml"
            )
            log.tell(sample, 0.5)
    page = page_of(log.write(tmp_path / "run"))
    (curve,) = [
        trace for trace in figures_of(page)["time"]["data"] if trace["legendgroup"] == "devices learner"
    ]
    assert set(curve["y"]) == {0.75}
    assert "learner 2 75 % of 8.0 s" in words_of(page)
    assert "learner low use 1.9 " in words_of(page)
    assert "no device samples" not in words_of(page)
    without = told()
    without.tell(PhaseEntered(phase="training", step=0), 2)
    assert "no device samples" in words_of(page_of(without.write(tmp_path / "without")))


def test_nothing_from_the_log_becomes_markup(told, page_of, tmp_path: Path) -> None:
    """Names and messages that are HTML stand in the page as text, in tables and among the figures."""
    log = told(EVIL)
    log.tell(EngineUp(engine=EVIL, version=0, context_tokens=96, slots=8))
    log.tell(PromptDrawn(prompt=0, epoch=0, index=0))
    log.tell(GroupDispatched(group=0, prompt=0, target=0, version=0, size=2))
    log.tell(TrajectoryStarted(trajectory=EVIL, group=0))
    log.tell(GroupFailed(group=0, failure="env_error", retryable=False, blame="environment", message=EVIL))
    log.tell(EngineLost(engine=EVIL, message=EVIL))
    log.tell(TelemetryDegraded(part="devices", missing=EVIL, works=EVIL))
    log.tell(StallDetected(stall=0, stall_kind="deadlock", chain=(EVIL, EVIL), sentence=EVIL))
    sample = DeviceSampled(
        device=EVIL, pool="shared", utilization=0.5, memory_bytes=1, window_s=1, source=EVIL
    )
    log.tell(sample, 2)
    log.tell(RunFailed(failed_actor="run", error="E", message=EVIL))
    page = page_of(log.write(tmp_path / "run"))
    assert page.count("<script") == 3  # the figures, plotly and ours
    body = page[: page.index("<script")]
    assert "onerror" in body
    assert "<img" not in body
    assert "alert(1)" in words_of(page)
    assert figures_of(page)


def test_json_for_a_script_can_hold_any_text() -> None:
    """Nothing in it ends the script element or begins a comment, and it reads back as it was."""
    value = {EVIL: [EVIL, "<!--", "]]>"]}
    text = script_json(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == value


def test_the_page_asks_nobody(simulated, page_of) -> None:
    """Its policy allows its own scripts, by their digests, and no request; it names no address to load from."""
    page = page_of(simulated("s10_slow_trainer"))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert policy[1].count("sha256-") == 2
    assert "unsafe-eval" not in policy[1]
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", outside)


def test_a_page_is_not_much_larger_than_plotly(simulated, page_of) -> None:
    """Our part of it, figures included, is less than 200 kB for a small run."""
    from plotly.offline import get_plotlyjs

    assert len(page_of(simulated("s03_floor_and_quarantine"))) - len(get_plotlyjs()) < 200_000


def test_a_long_run_draws_no_more_than_a_screen_shows(told, page_of, tmp_path: Path) -> None:
    """Ten thousand short phases are drawn as some hundred pieces, and their seconds are still all there."""
    log = told()
    for step in range(5_000):
        log.tell(PhaseEntered(phase="training", step=step), 0.5)
        log.tell(PhaseEntered(phase="generating", step=step), 1.0)
    log.tell(PhaseEntered(phase="eval", step=5_000), 0.5)
    data = figures_of(page_of(log.write(tmp_path / "run")))["time"]["data"]
    lane = {trace["legendgroup"]: trace for trace in data if trace["legendgroup"].startswith("trainer")}
    assert sum(len(trace["x"]) for trace in lane.values()) < 5_000
    training = lane["trainer training"]
    assert lengths_of(training) * 60 == pytest.approx(5_000, rel=0.01)  # the axis is in minutes
    assert "in several pieces" in training["customdata"][0]


def test_a_log_that_only_began_has_a_page(told, page_of, tmp_path: Path) -> None:
    """What is not there yet is said, section by section."""
    words = words_of(page_of(told().write(tmp_path / "run")))
    for sentence in (
        "No step has been trained.",
        "No trajectory has begun.",
        "None: the run never stood still.",
    ):
        assert sentence in words


def test_a_damaged_log_is_reported_up_to_the_damage(told, command, tmp_path: Path) -> None:
    """The page says what is wrong and shows what comes before; stderr says it in one line."""
    log = told()
    for step in range(8):
        log.tell(PhaseEntered(phase="generating", step=step), 1)
        log.tell(PhaseEntered(phase="training", step=step), 1)
    folder = log.write(tmp_path / "run", segments=3)
    _, middle, _ = sorted(folder.events.glob("*.jsonl.zst"))
    data = bytearray(middle.read_bytes())
    data[len(data) * 2 // 3] ^= 0xFF
    middle.write_bytes(data)
    result = command("report", folder.path, "-o", tmp_path / "out.html")
    assert result.exit_code == 0, result.output
    assert len(result.stderr.splitlines()) == 1
    assert "the report ends there" in result.stderr
    words = words_of((tmp_path / "out.html").read_text("utf-8"))
    assert "The log is damaged" in words
    assert "The log can be read up to 4.0 s after the start" in words


def test_a_report_replaces_a_report_and_nothing_else(simulated, command, tmp_path: Path) -> None:
    """The second report of a run goes where the first one is; a file of somebody's stays as it is."""
    folder, output = simulated("s10_slow_trainer"), tmp_path / "page.txt"
    assert command("report", folder.path, "-o", output).exit_code == 0
    first = output.read_bytes()
    again = command("report", folder.path, "-o", output)
    assert again.exit_code == 0
    assert again.stdout == f"{output} ({len(first) / 1e6:.1f} MB)\n"
    assert output.read_bytes() == first  # a finished run always gives the same page
    output.write_text("my notes", "utf-8")
    refused = command("report", folder.path, "-o", output)
    assert refused.exit_code == 2
    wrong = f"{output}: exists and is no report of eventrain"
    assert refused.stderr == f"{wrong}; name another file, or write over it with --force\n"
    assert output.read_text("utf-8") == "my notes"
    assert [path.name for path in tmp_path.iterdir()] == ["page.txt"]


def test_what_cannot_be_written_or_read_is_said_in_one_line(simulated, command, tmp_path: Path) -> None:
    """A folder as output, a missing folder, and a run that is none."""
    folder = simulated("s10_slow_trainer")
    is_folder = command("report", folder.path, "-o", tmp_path)
    assert is_folder.exit_code == 2
    assert is_folder.stderr.startswith(f"{tmp_path}: is a folder; name a file in it")
    missing = command("report", folder.path, "-o", tmp_path / "no" / "out.html")
    assert missing.exit_code == 2
    assert missing.stderr == f"{tmp_path / 'no' / 'out.html'}: there is no folder {tmp_path / 'no'}\n"
    no_run = command("report", tmp_path, "-o", tmp_path / "out.html")
    assert no_run.exit_code == 2
    assert no_run.stderr.startswith(f"{tmp_path}: is no run")


def test_a_missing_library_is_named_with_what_installs_it(
    simulated, command, tmp_path: Path, monkeypatch
) -> None:
    """Without plotly there is one line, and no file."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    result = command("report", simulated("s10_slow_trainer").path, "-o", tmp_path / "out.html")
    assert result.exit_code == 2
    assert result.stderr == "plotly is not installed: pip install 'eventrain[view]'\n"
    assert not list(tmp_path.iterdir())


def test_the_command_line_does_not_load_what_only_the_report_needs() -> None:
    """`eventrain --help` starts without plotly and jinja2."""
    code = (
        "import sys; import eventrain.adapters.cli.main; "
        "print([name for name in ('plotly', 'jinja2', 'eventrain.adapters.report.page') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
