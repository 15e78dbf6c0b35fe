"""The metrics of a told run as text that a Prometheus loads."""

from __future__ import annotations

import io

from told_runs import ToldRun

from eventrain.adapters.telemetry.metrics.openmetrics import write_openmetrics
from eventrain.events.identity import run_id


def openmetrics(told: ToldRun) -> str:
    """Return the metrics of `told` every 15 s of its time, as `eventrain export openmetrics` writes them."""
    text = io.BytesIO()
    write_openmetrics(told.records, text, every_s=15.0)
    return text.getvalue().decode()


def run_of(told: ToldRun) -> str:
    """Return the id of the told run, which is the label `run` of its series."""
    return run_id(told.name, told.start_ts)
