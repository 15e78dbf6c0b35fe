"""The telemetry beside a run on a real event loop and real files: what it hands on, and what it cannot break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from metric_runs import page, samples

from eventrain.adapters.clock import SystemClock
from eventrain.adapters.simulated.engine import SimulatedEngine
from eventrain.adapters.simulated.world import (
    NumberedPrompts,
    SimulatedArtifacts,
    SimulatedEnvironment,
    SimulatedLearner,
    SimulatedRenderer,
)
from eventrain.adapters.telemetry import live
from eventrain.adapters.telemetry.live import Telemetry
from eventrain.adapters.telemetry.metrics.live import LiveMetrics
from eventrain.adapters.telemetry.trackers import StepFigures
from eventrain.core.config import RunConfig
from eventrain.core.ports import Ports
from eventrain.core.resume import Past, resumption
from eventrain.core.run import Run, RunOutcome
from eventrain.events.bus import Bus
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.payload import PayloadStore
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.types import RunFinished, StepCompleted, TelemetryDegraded

STEPS = 4


def configured(**telemetry: Any) -> RunConfig:
    """Return the settings of a small run."""
    return RunConfig.model_validate(
        {
            "run": {"steps": STEPS, "name": "small"},
            "model": {"path": "none"},
            "data": {"kind": "generated", "size": 100},
            "environment": {"kind": "none"},
            "rollout": {"group_size": 2},
            "scheduler": {"groups_per_step": 2},
            "checkpoint": {"at_end": False},
            "telemetry": {"devices": "off", **telemetry},
        }
    )


def conduct(
    folder: RunFolder,
    config: RunConfig,
    past: list[Record] | None = None,
    *,
    stop_at: int = STEPS + 1,
    step_s: float = 0.01,
    at_end: Callable[[Telemetry], None] = lambda telemetry: None,
) -> RunOutcome:
    """Run beside its telemetry, or go on where `past` ends, and stop once `stop_at` steps are trained."""
    clock = SystemClock(past[-1] if past else None)
    ports = Ports(
        clock=clock,
        engines=[SimulatedEngine("engine-0", clock, seconds=lambda request: 0.002)],
        learner=SimulatedLearner(clock, seconds=step_s, start_s=0.0),
        environments=lambda: SimulatedEnvironment(clock, seconds=0.001),
        prompts=NumberedPrompts(100),
        renderer=SimulatedRenderer(),
        artifacts=SimulatedArtifacts(),
    )

    async def whole(bus: Bus, payloads: PayloadStore) -> RunOutcome:
        known, opening = None, []
        if past:
            known = Past.of(past)
            opening = resumption(known, present=lambda path: False, readable=lambda ref: True, facts={})
        run = Run(config, ports, bus, payloads, past=known, opening=opening)
        telemetry = Telemetry(run, folder)
        stop = asyncio.Event()

        async def stopping() -> None:
            await bus.watch(lambda: run.view.trainer.version >= stop_at)
            stop.set()

        async with asyncio.TaskGroup() as beside:
            telling = beside.create_task(telemetry.tell())
            waiting = beside.create_task(stopping())
            outcome = await run.conduct(stop)
            waiting.cancel()
            bus.close()
            await telling
            at_end(telemetry)
        return outcome

    first_seq = past[-1].seq + 1 if past else 0
    with folder.lock(), closing(PayloadStore(folder.payloads)) as payloads:
        writer = LogWriter(
            folder.events, run="small", epoch=folder.epoch, first_seq=first_seq, segment_bytes=2**20,
            before_commit=(payloads.sync,),
        )  # fmt: skip
        with closing(writer):
            return asyncio.run(whole(Bus(clock, writer, next_seq=first_seq), payloads))


def log_of(folder: RunFolder) -> list[Record]:
    """Return the whole log."""
    return list(LogReader(folder.events).records())


def figures_of(records: list[Record]) -> dict[int, dict[str, float]]:
    """Return the figures of the steps that count, folded from a log."""
    fold, rows = StepFigures(), {}
    for record in records:
        fold.apply(record)
        for row in fold.take():
            rows[row.step] = dict(row.figures)
    return rows


def written(folder: RunFolder) -> dict[int, dict[str, float]]:
    """Return what metrics.jsonl has."""
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    return {
        line["step"]: {key: value for key, value in line.items() if key not in ("step", "seq", "ts")}
        for line in lines
    }


def test_figures_of_a_resumed_run_are_those_of_its_log(tmp_path: Path) -> None:
    """Every figure of every step in metrics.jsonl is what a fold of the whole log gives, over a resume too."""
    folder = RunFolder.create(tmp_path / "run")
    config = configured()
    assert conduct(folder, config, stop_at=2).outcome == "interrupted"
    assert written(folder) == figures_of(log_of(folder))
    assert conduct(folder, config, log_of(folder)).outcome == "completed"
    assert set(written(folder)) == set(range(STEPS))
    assert written(folder) == figures_of(log_of(folder))


def test_no_event_is_counted_twice_over_a_resume(tmp_path: Path) -> None:
    """At the end the page has as many events as the log; the ones that open a resume are counted once."""
    folder = RunFolder.create(tmp_path / "run")
    config, counted = configured(prometheus_port=0), []

    def count(telemetry: Telemetry) -> None:
        metrics = telemetry._metrics
        assert metrics is not None
        counted.extend(metrics.snapshot().values["rl_events_total"].values())

    conduct(folder, config, stop_at=2, at_end=count)
    before = len(log_of(folder))
    conduct(folder, config, log_of(folder), at_end=count)
    assert counted == [before, len(log_of(folder))]


@pytest.mark.parametrize("broken", ["trackers", "start", "reading", "apply", "report"])
def test_a_defect_of_the_telemetry_is_told_and_the_run_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Whatever raises, all steps are trained, the last event is the run's, and the log says what is missing."""
    folder = RunFolder.create(tmp_path / "run")
    config = configured(prometheus_port=0)
    past = None
    if broken == "reading":
        conduct(folder, configured(), stop_at=2)
        past = log_of(folder)

    def fail(*_: object, **__: object) -> None:
        raise OSError(116, "stale file handle")

    monkeypatch.setattr(live, "REPORT_S", 0.001)
    if broken == "trackers":
        monkeypatch.setattr(live, "Trackers", fail)
    elif broken == "start":
        monkeypatch.setattr(LiveMetrics, "start", fail)
    elif broken == "reading":
        monkeypatch.setattr(live.LogReader, "frames", fail)
    elif broken == "apply":
        monkeypatch.setattr(live.Trackers, "apply", fail)
    else:
        monkeypatch.setattr(LiveMetrics, "take_reports", fail)
    # Long enough for libraries to be loaded and for the report to be made.
    assert conduct(folder, config, past, step_s=0.5).outcome == "completed"
    monkeypatch.undo()
    log = log_of(folder)
    assert isinstance(log[-1].event, RunFinished)
    assert {record.event.step for record in log if isinstance(record.event, StepCompleted)} == set(range(STEPS))
    told = [record.event for record in log if isinstance(record.event, TelemetryDegraded)]
    assert told or broken == "report"  # who reports cannot say that it cannot report
    assert all("stale file handle" in event.missing for event in told)


def test_without_its_trackers_the_page_counts_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of one part ends that part alone: metrics, samples and reports go on until the run has ended."""
    folder, counted = RunFolder.create(tmp_path / "run"), []

    def fail(*_: object) -> None:
        raise OSError(116, "stale file handle")

    def count(telemetry: Telemetry) -> None:
        assert telemetry._metrics is not None
        counted.extend(telemetry._metrics.snapshot().values["rl_events_total"].values())

    monkeypatch.setattr(live.Trackers, "apply", fail)
    monkeypatch.setattr(live, "REPORT_S", 0.001)
    assert conduct(folder, configured(prometheus_port=0), step_s=0.3, at_end=count).outcome == "completed"
    log = log_of(folder)
    assert counted == [len(log)]
    (told,) = [record.event for record in log if isinstance(record.event, TelemetryDegraded)]
    assert (told.part, "stale file handle" in told.missing) == ("trackers", True)


def test_a_page_has_only_what_is_on_disk(tmp_path: Path) -> None:
    """While the disk does not take an event, no scrape counts it: a kill would take it back."""
    folder = RunFolder.create(tmp_path / "run")
    seen: list[tuple[float, int]] = []

    def look(telemetry: Telemetry) -> None:
        bus = telemetry._run.bus
        assert telemetry._metrics is not None
        (events,) = [
            value for (name, _), value in samples(page(telemetry._metrics)).items() if name == "rl_events_total"
        ]
        seen.append((events, bus.durable_seq))

    real = Telemetry._take_durable

    def watched(telemetry: Telemetry) -> None:
        real(telemetry)
        if telemetry._metrics is not None and telemetry._metrics._provider is not None:
            look(telemetry)

    Telemetry._take_durable = watched  # type: ignore[method-assign]
    try:
        conduct(folder, configured(prometheus_port=0))
    finally:
        Telemetry._take_durable = real  # type: ignore[method-assign]
    assert len(seen) > 3
    assert all(events <= durable + 1 for events, durable in seen)
