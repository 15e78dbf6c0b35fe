"""The page and Prometheus never disagree: the report says of phases, pools and devices what the meter counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventrain.adapters.report.curves import totals_s
from eventrain.adapters.report.reading import Reading, read_run
from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.telemetry.metrics.meter import Meter
from eventrain.adapters.telemetry.metrics.snapshot import Snapshot
from eventrain.events.folder import RunFolder
from eventrain.events.log import LogWriter
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.types import DeviceSampled, RunFailed, RunFinished, RunResumed

INCIDENTS = Path(__file__).parents[3] / "examples" / "incidents"
NAMES = ("stall", "env_bound", "weight_sync")
LOGS = (*NAMES, "chaos 3", "chaos 5")


def with_samples(records: list[Record]) -> Iterator[Record]:
    """Yield the records with samples of two pools between them, numbered anew."""
    seq, since = 0, records[0].mono
    for place, record in enumerate(records):
        yield record._replace(seq=seq)
        seq += 1
        if isinstance(record.event, RunResumed):
            since = record.mono
        if place % 7 == 0 and record.mono > since and not isinstance(record.event, RunFinished | RunFailed):
            for pool in ("learner", "engine"):
                sample = DeviceSampled(
                    device=f"{pool}0", pool=pool, utilization=place % 5 / 4, memory_bytes=1,
                    window_s=(record.mono - since) / 1e9,
                )  # fmt: skip
                yield record._replace(seq=seq, event=sample)
                seq += 1
            since = record.mono


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """Return a function that opens an incident, or writes a killed and resumed world full of faults."""
    made: dict[str, RunFolder] = {}

    def folder(name: str) -> RunFolder:
        if name in NAMES:
            return RunFolder.open(INCIDENTS / name)
        if name not in made:
            tape = Tape(int(name.split()[1]))
            made[name] = RunFolder.create(tmp_path_factory.mktemp("runs") / "chaos")
            writer = LogWriter(made[name].events, run="chaos", epoch=1, first_seq=0, segment_bytes=1 << 24)
            writer.start(lambda _seq: None, lambda _error: None)
            for record in with_samples(list(simulate(draw_scenario(tape), tape, killing=True).records)):
                writer.append(record)
            writer.close()
        return made[name]

    return folder


def counted(folder: RunFolder) -> Snapshot:
    """Return what a meter of its own counts in the log, up to its last event."""
    meter = Meter()
    for record in LogReader(folder.events).records():
        meter.apply(record)
    return meter.snapshot(meter.last_mono)


def series(snapshot: Snapshot, name: str, labels: slice) -> dict[tuple[str, ...], float]:
    """Return the series of a metric that are not 0, summed over all labels but those."""
    sums: dict[tuple[str, ...], float] = {}
    for key, value in snapshot.values.get(name, {}).items():
        sums[key[labels]] = sums.get(key[labels], 0.0) + value
    return {key: value for key, value in sums.items() if value}


@pytest.mark.parametrize("log", LOGS)
def test_the_figures_of_the_report_are_those_of_the_metrics(folder, log: str) -> None:
    """Phases, pool states, device-seconds by pool and phase, and idle ones by cause are the same to the last digit."""
    metrics, read = counted(folder(log)), read_run(folder(log))
    phases = series(metrics, "rl_trainer_phase_seconds_total", slice(0, 1))
    assert {(phase,): spent for phase, spent in read.phase_s.items()} == phases
    allocated = series(metrics, "rl_gpu_allocated_seconds_total", slice(0, 2))
    busy = series(metrics, "rl_gpu_busy_seconds_total", slice(0, 2))
    assert allocated  # or the test says nothing
    assert {key: one.there for key, one in read.device_s.items() if one.there} == allocated
    assert {key: one.busy for key, one in read.device_s.items() if one.busy} == busy
    assert read.idle_s == series(metrics, "rl_gpu_idle_seconds_total", slice(0, 2))


@pytest.mark.parametrize("log", LOGS)
def test_what_is_drawn_sums_to_the_figures(folder, log: str) -> None:
    """The lanes of the trainer and of the engines have the lengths that the metrics count, resumes included."""
    read: Reading = read_run(folder(log))
    lanes = read.history.phases_until(read.now_ns), read.history.pool_until(read.now_ns)
    told = {phase: spent for phase, spent in read.phase_s.items() if phase != "finished"}
    assert totals_s(lanes[0]) == pytest.approx(told)
    states = series(counted(folder(log)), "rl_pool_state_seconds_total", slice(1, 2))
    assert totals_s(lanes[1]) == pytest.approx({state: spent for (state,), spent in states.items()})
    idle_s = sum(spent for (pool, _), spent in read.idle_s.items() if pool != "controller")
    assert read.history.devices.idle_s(0, read.now_ns) == pytest.approx(idle_s)


@pytest.mark.parametrize("log", LOGS)
def test_the_time_of_trajectories_is_that_of_the_metrics(folder, log: str) -> None:
    """The components of complete trajectories sum to the same."""
    read = read_run(folder(log))
    counts = series(counted(folder(log)), "rl_trajectory_component_seconds_total", slice(1, 2))
    shown = {(name,): spent for name, spent in read.status.view.progress.seconds.items() if spent}
    assert shown == pytest.approx(counts)
