"""Utilisation by phase as a real Prometheus finds it, by our counters and by a gauge that is sampled, in one run.

A run whose truth is known goes by at `SPEED` times its pace. Prometheus scrapes a page of ours, and a page that tells
the phase as SkyRL does through Ray: one gauge per phase, and each GPU's utilisation, both as of the last report. A
scrape each quarter of a second is one each 15 s of the run. Ratios do not know how fast time goes.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, start_http_server

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from metric_runs import SetClock
from prometheus import Prometheus
from told_runs import Stretch, ToldRun, phased_run

from eventrain.adapters.telemetry.metrics.live import LiveMetrics
from eventrain.core.config import TelemetrySection
from eventrain.events.types import PhaseEntered

SPEED = 60
SCRAPE_S = 15.0
REPORT_S = 10.0
"""Ray's metrics_report_interval_ms by default: what a page shows is so old at most."""
PHASE_REPORT_AT_S, GPU_REPORT_AT_S, GPU_AT_S = 3.7, 6.1, 1.9
"""When the first one is: the trainer's report, the node's report, and the node's look at its GPUs. Each has a timer of
its own, in another process."""
GPU_S = 5.0
"""How often Ray asks NVML ..."""
WINDOW_S = 1.0
"""... which answers for the time just before (up to a second, depending on the GPU)."""
STEP: Sequence[Stretch] = (
    Stretch("waiting_for_buffer", 4.0, 0.05, 0.80),
    Stretch("converting", 0.1, 0.10, 0.90),
    Stretch("training", 9.0, 0.92, 0.85),
    Stretch("weight_sync", 2.0, 0.30, 0.02),
    Stretch("checkpoint", 1.3, 0.02, 0.60),
)
OURS = (
    "sum by (phase) (increase(rl_gpu_busy_seconds_total{pool='learner'}[%(range)s]))"
    " / (sum by (phase) (increase(rl_gpu_allocated_seconds_total{pool='learner'}[%(range)s])) > 0)"
)
SAMPLED = (
    "avg by (Phase) (avg_over_time((ray_node_gpus_utilization * on () group_left (Phase)"
    " (skyrl_training_phase == 1))[%(range)s:250ms])) / 100"
)


@dataclass
class SampledGauges:
    """The other way: gauges of what holds at the moment of a report."""

    told: ToldRun
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self._phase = Gauge("skyrl_training_phase", "1 for the active phase", ["Phase"], registry=self.registry)
        self._use = Gauge("ray_node_gpus_utilization", "percent", ["GpuIndex"], registry=self.registry)
        changes = [
            ((record.ts - self.told.start_ts) / 1e9, record.event.phase)
            for record in self.told.records
            if isinstance(record.event, PhaseEntered)
        ]
        self._starts, self._names = [at for at, _ in changes], [name for _, name in changes]
        self._use_of = {stretch.phase: stretch.learner for stretch in STEP}

    def at(self, now_s: float) -> None:
        """Show what the last reports before `now_s` told."""
        told_s = _last(now_s, REPORT_S, PHASE_REPORT_AT_S)
        active = self._phase_at(told_s)
        for stretch in STEP:
            self._phase.labels(stretch.phase).set(stretch.phase == active)
        asked_s = _last(_last(now_s, REPORT_S, GPU_REPORT_AT_S), GPU_S, GPU_AT_S)
        self._use.labels("0").set(100 * self._mean_use(asked_s - WINDOW_S, asked_s))

    def _mean_use(self, begin_s: float, end_s: float) -> float:
        looks = [begin_s + (end_s - begin_s) * (place + 0.5) / 20 for place in range(20)]
        return sum(self._use_of.get(self._phase_at(look), 0.0) for look in looks) / len(looks)

    def _phase_at(self, now_s: float) -> str:
        place = bisect_right(self._starts, now_s)
        return self._names[place - 1] if place else "starting"


def _last(now_s: float, every_s: float, first_s: float) -> float:
    """Return the last time before `now_s` of a timer that first fires at `first_s`."""
    return max(0.0, first_s + (now_s - first_s) // every_s * every_s)


def compare(steps: int) -> tuple[Mapping[str, float], Mapping[str, float], Mapping[str, float]]:
    """Return utilisation by phase: the truth, what our counters say, and what the sampled gauges say."""
    told = phased_run(steps, stretches=STEP, sample_s=1.0, finish=False)
    clock = SetClock()
    live = LiveMetrics(TelemetrySection(prometheus_port=0), clock)
    gauges = SampledGauges(told)
    server, serving = start_http_server(0, addr="127.0.0.1", registry=gauges.registry)
    with tempfile.TemporaryDirectory() as name:
        try:
            live.start()
            targets = [f"127.0.0.1:{live.port}", f"127.0.0.1:{server.server_port}"]
            with Prometheus(Path(name) / "server", _config(Path(name), targets)) as prometheus:
                prometheus.await_query("vector(1)", 30)
                seconds = _go_by(told, live, gauges, clock)
                at = time.time() - 1.0
                asked = {"range": f"{int(seconds * 1000) - 2000}ms"}
                ours = {one.labels["phase"]: one.value for one in prometheus.query(OURS % asked, at)}
                sampled = {one.labels["Phase"]: one.value for one in prometheus.query(SAMPLED % asked, at)}
        finally:
            live.close(2.0)
            server.shutdown()
            server.server_close()
            serving.join()
    return {stretch.phase: stretch.learner for stretch in STEP}, ours, sampled


def _config(folder: Path, targets: Sequence[str]) -> Path:
    path = folder / "prometheus.yml"
    listed = ", ".join(f"'{target}'" for target in targets)
    path.write_text(
        f"global: {{scrape_interval: {int(SCRAPE_S / SPEED * 1000)}ms, scrape_timeout: 200ms}}\n"
        f"scrape_configs: [{{job_name: run, static_configs: [{{targets: [{listed}]}}]}}]\n"
    )
    return path


def _go_by(told: ToldRun, live: LiveMetrics, gauges: SampledGauges, clock: SetClock) -> float:
    """Let the run go by at `SPEED` times its pace; return the seconds that took."""
    began, place = time.monotonic(), 0
    pause = threading.Event()
    while place < len(told.records):
        now_s = (time.monotonic() - began) * SPEED
        end = place
        while end < len(told.records) and (told.records[end].ts - told.start_ts) / 1e9 <= now_s:
            end += 1
        if end > place:
            live.apply_batch(told.records[place:end])
            place = end
        clock.seconds = now_s
        gauges.at(now_s)
        pause.wait(0.001)
    return time.monotonic() - began
