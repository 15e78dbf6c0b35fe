"""What `eventrain telemetry init` writes, with a real Prometheus on one side and the page of a run on the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from programs import needs
from prometheus import Prometheus
from told_runs import ToldRun, phased_run

from eventrain.adapters.cli.main import commands
from eventrain.adapters.telemetry.metrics.live import LiveMetrics
from eventrain.core.config import TelemetrySection
from eventrain.events import types as events
from eventrain.events.identity import run_id

pytestmark = [
    pytest.mark.slow,
    needs("prometheus", "promtool"),
]


class NowClock:
    """The clock of a told run that ended just now and goes on."""

    def __init__(self, told: ToldRun) -> None:
        self._last = told.records[-1]
        self._since_ns = time.monotonic_ns()

    def utc_ns(self) -> int:
        return self._last.ts + time.monotonic_ns() - self._since_ns

    def mono_ns(self) -> int:
        return self._last.mono + time.monotonic_ns() - self._since_ns


def standing() -> ToldRun:
    """Return a run of two steps that now waits for a batch, and has found that this is a deadlock."""
    told = phased_run(2, start_ts=time.time_ns() - 31_000_000_000, finish=False)
    told.publish("trainer", events.PhaseEntered(phase="waiting_for_buffer", step=2))
    chain = ("the trainer waits for step 2",)
    told.publish(
        "watchdog", events.StallDetected(stall=0, stall_kind="deadlock", chain=chain, sentence="stuck")
    )
    return told


def hurried(folder: Path) -> Path:
    """Let the written configuration scrape and evaluate each second, and return it."""
    for path in (folder / "prometheus.yml", *sorted((folder / "rules").glob("*.yml"))):
        text = path.read_text(encoding="utf-8")
        for interval in ("interval: 15s", "interval: 30s", "timeout: 10s"):
            text = text.replace(interval, interval.partition(" ")[0] + " 1s")
        path.write_text(text, encoding="utf-8")
    return folder / "prometheus.yml"


@pytest.fixture(name="written")
def _written(tmp_path: Path) -> Callable[[int], Path]:
    """Return a function that lets `init` write the folder for a run at a port, and returns its configuration."""

    def init(port: int) -> Path:
        folder = tmp_path / "telemetry"
        done = CliRunner().invoke(
            commands, ["telemetry", "init", str(folder), "--target", f"127.0.0.1:{port}"]
        )
        assert done.exit_code == 0, done.output
        return hurried(folder)

    return init


def test_a_run_that_stands_still_is_scraped_and_its_alert_fires(
    tmp_path: Path, written: Callable[[int], Path]
) -> None:
    """From the written folder on: the target answers, the series carry the run, and the verdict becomes an alert."""
    told = standing()
    live = LiveMetrics(TelemetrySection.model_validate({"prometheus_port": 0}), NowClock(told))
    live.start()
    try:
        live.apply_batch(told.records)
        assert live.port is not None
        with Prometheus(tmp_path / "server", written(live.port)) as server:
            (phase,) = server.await_query('rl_trainer_phase{phase="waiting_for_buffer"} == 1', 30)
            assert phase.labels["run"] == run_id(told.name, told.start_ts)
            assert phase.labels["job"] == "eventrain"
            (alert,) = server.await_query('ALERTS{alertname="RLStallVerdict", alertstate="firing"}', 30)
            assert (alert.labels["class"], alert.labels["severity"]) == ("deadlock", "critical")
            assert [sample.value for sample in server.query('up{job="eventrain"}')] == [1.0]
            assert not server.query('ALERTS{alertname!~"RLStallVerdict|RLTrainerStarvedDeadlock"}')
            assert server.await_query("run_phase:rl_trainer_phase:share_rate5m", 30)
    finally:
        live.close(2.0)
