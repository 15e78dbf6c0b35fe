"""Read a run's log once, into everything that the report says."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...core.config import RunConfig, recorded_config
from ...events.errors import LogDamaged, LogTooNew
from ...events.folder import RunFolder
from ...events.reader import LogReader
from ...events.types import RunStarted
from ..cli.failures import BadInput
from ..cli.stalls_report import StallReader, StallReport
from ..cli.status_report import RunStatus
from ..telemetry.metrics.snapshot import Snapshot
from .devices import Seconds, idle_by_cause, seconds_by_phase
from .history import History
from .standstill import Standstill, find_standstills


@dataclass
class Reading:
    """What a log says, as of its end or of the moment at which it was read."""

    path: Path
    status: RunStatus
    history: History
    stalls: StallReport
    config: RunConfig
    now_ns: int
    """Where on the run's time axis it is looked at: its end, or now while it goes on."""
    damage: str = ""
    """Why the log could not be read to its end, empty when it could."""

    @cached_property
    def metrics(self) -> Snapshot:
        """The run's metrics, as Prometheus has them at that moment."""
        return self.history.meter.snapshot(self.status.now_mono)

    @property
    def phase_s(self) -> dict[str, float]:
        """Seconds that the trainer spent in each phase, the open one included."""
        spent = self.metrics.values.get("rl_trainer_phase_seconds_total", {})
        return {phase: seconds for (phase,), seconds in spent.items() if seconds > 0}

    @cached_property
    def device_s(self) -> dict[tuple[str, str], Seconds]:
        """Device-seconds by pool and phase; empty where no device was sampled."""
        return seconds_by_phase(self.metrics)

    @cached_property
    def idle_s(self) -> dict[tuple[str, str], float]:
        """Idle device-seconds by pool and cause."""
        return idle_by_cause(self.metrics)

    @cached_property
    def standstills(self) -> list[Standstill]:
        """What stood still in each stall, in their order."""
        return find_standstills(self.history, self.stalls, self.now_ns)


def read_run(folder: RunFolder, now_ts: int | None = None) -> Reading:
    """Read the log of the run in `folder`, at UTC nanoseconds `now_ts`.

    A log that is damaged further on is read up to there. Raises `BadInput` when it has not begun, and `LogDamaged` or
    `LogTooNew` when not even its beginning can be read.
    """
    # The lock first: a run that ends between the two looks has its last event in the log by then.
    being_written = folder.is_held()
    now_ts = time.time_ns() if now_ts is None else now_ts
    status = RunStatus(path=folder.path, now_ts=now_ts)
    history, stalls, damage = History(status.view), StallReader(folder.path, status.view), ""
    try:
        for record in LogReader(folder.events).records():
            if status.started is None and not isinstance(record.event, RunStarted):
                raise BadInput(
                    [f"{folder.path}: the log does not begin with run_started: it is no whole run"]
                )
            stalls.before(record)
            status.apply(record)  # folds the view of all three
            history.apply(record)
            stalls.after(record)
    except (LogDamaged, LogTooNew) as error:
        if status.started is None:
            raise
        damage = str(error)
    report = stalls.finish(being_written=being_written and not damage, now_ts=now_ts)
    assert status.started is not None
    status.alive = report.live
    later_ns = max(0, now_ts - status.view.last_ts) if report.live else 0
    history.devices.finish()
    config = recorded_config(status.started.config)
    return Reading(folder.path, status, history, report, config, history.end_ns + later_ns, damage)
