"""A run in which everything happens that a metric counts, and what tests of metrics share."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from told_runs import START_MONO, START_TS, ToldRun, phased_run

from eventrain.adapters.telemetry.metrics.live import LiveMetrics
from eventrain.core.config import TelemetrySection
from eventrain.events.record import Record
from eventrain.events.types import (
    Blocked,
    DeadlineExpired,
    DeviceSampled,
    EngineSampled,
    EnvStepFinished,
    EnvStepStarted,
    EvalCompleted,
    EvalStarted,
    InvariantBroken,
    LlmCallStarted,
    LoopLagSampled,
    PhaseEntered,
    PromptQuarantined,
    StallDetected,
    TelemetryDegraded,
    TelemetryDropped,
    TrajectoryFailed,
)

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)(?: (\S+))?$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class SetClock:
    """A clock that a test sets."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def utc_ns(self) -> int:
        return START_TS + round(self.seconds * 1e9)

    def mono_ns(self) -> int:
        return START_MONO + round(self.seconds * 1e9)


def eventful_run() -> ToldRun:
    """Tell a run that has two steps behind it, and in which nearly everything has gone wrong since."""
    told = phased_run(2, finish=False)
    publish = told.publish
    publish("trainer", EvalStarted(eval=0, step=2, version=2, trajectories=2))
    told.after(2.0)
    publish(
        "trainer",
        EvalCompleted(eval=0, step=2, version=2, reward_mean=0.25, completed=2, failed=0, seconds=2.0),
    )
    publish(
        "telemetry",
        DeviceSampled(
            device="cuda:0", pool="learner", utilization=1.0, memory_bytes=2**31, window_s=1.0,
            source="gpm", sm_active=0.5,
        ),
    )  # fmt: skip
    publish(
        "telemetry",
        EngineSampled(
            engine="engine-0", running=6, waiting=2, kv_used=0.75, preemptions=1, prompt_tokens=900,
            cached_tokens=300, sampled_tokens=400,
        ),
    )  # fmt: skip
    publish("telemetry", LoopLagSampled(window_s=1.0, counts=(5, 0, 1, *[0] * 9), sum_s=0.008, max_s=0.004))
    told.dispatch(90, target=2, version=2, size=3)
    publish("rollout", EnvStepStarted(trajectory="90/0", turn=-1, call="reset"))
    told.after(0.5)
    publish(
        "rollout",
        EnvStepFinished(trajectory="90/0", turn=-1, call="reset", outcome="completed", seconds=0.5),
    )
    call = LlmCallStarted(trajectory="90/1", turn=0, engine="engine-0", prompt_tokens=3, max_tokens=8)
    publish("engine_pool", call)
    publish("watchdog", DeadlineExpired(effect="env_step", subject="90/2", limit_s=60.0))
    publish(
        "rollout",
        TrajectoryFailed(
            trajectory="90/2", group=90, attempt=0, failure="env_expired", retryable=True,
            blame="environment", message="",
        ),
    )  # fmt: skip
    publish("collector", PromptQuarantined(prompt=90, index=90, failure="env_expired", message=""))
    publish("audit", InvariantBroken(law="groups", broken_by=7, expected="1", found="2"))
    publish("watchdog", StallDetected(stall=0, stall_kind="overdue", chain=("a",), sentence="a"))
    publish("telemetry", TelemetryDegraded(part="traces", missing="no receiver", works="the log"))
    publish("telemetry", TelemetryDropped(signal="traces", reason="unreachable", count=3))
    publish("trainer", PhaseEntered(phase="waiting_for_buffer", step=2))
    publish(
        "trainer", Blocked(waiter="trainer", edge="buffer_ready", awaited="2 groups", present="0 buffered")
    )
    return told


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample of a text by its name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            parsed = SAMPLE.match(line)
            assert parsed is not None, line
            labels = tuple(sorted(LABEL.findall(parsed[2] or "")))
            assert (parsed[1], labels) not in found, line
            found[parsed[1], labels] = float(parsed[3])
    return found


def page(live: LiveMetrics, path: str = "/metrics") -> str:
    """Return the text of the page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{live.port}{path}", timeout=5) as answer:
        return answer.read().decode()


@contextmanager
def serving(records: list[Record], clock: SetClock, **settings: object) -> Iterator[LiveMetrics]:
    """Yield the live metrics of `records`, with a page unless `settings` say otherwise."""
    section = TelemetrySection.model_validate({"prometheus_port": 0, **settings})
    live = LiveMetrics(section, clock)
    live.start()
    try:
        live.apply_batch(records)
        yield live
    finally:
        live.close(2.0)
