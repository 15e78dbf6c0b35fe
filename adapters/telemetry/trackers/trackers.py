"""The trackers of one run, as its wiring uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ....core.config import RunConfig, TelemetrySection
from ....core.failures import one_line
from ....events.record import Record
from ....events.types import Event, RunResumed, TelemetryDegraded
from .figures import StepFigures, StepRow
from .jsonl import FILE, JsonlTracker
from .tensorboard import FOLDER, TensorBoardTracker
from .tracker import Feed, Tracker, join_all
from .trackio import TrackioTracker
from .wandb import WandbTracker


class Trackers:
    """``metrics.jsonl``, and whatever `section` names, fed with the figures of each step.

    `past` is the log that the run goes on with; its steps are folded first. No method raises or blocks, but `close`
    waits.
    """

    def __init__(
        self,
        section: TelemetrySection,
        run_folder: Path,
        run_id: str,
        config: RunConfig,
        past: Iterable[Record] = (),
    ) -> None:
        self._figures = StepFigures()
        self._trouble: Event | None = None
        self._broken = False
        rows: dict[int, StepRow] = {}
        for record in past:
            self._fold(record)
            if isinstance(record.event, RunResumed):
                rows = {step: row for step, row in rows.items() if step < record.event.step}
            for row in self._figures.take():
                rows[row.step] = row
        so_far = list(rows.values())
        settings: dict[str, Any] = config.model_dump(mode="json")
        project = section.tracker_project
        makers: dict[str, Callable[[], Tracker]] = {
            "tensorboard": lambda: TensorBoardTracker(run_folder / FOLDER, so_far),
            "wandb": lambda: WandbTracker(project, run_id, run_folder, settings, so_far),
            "trackio": lambda: TrackioTracker(project, run_id, settings, so_far),
        }
        self._feeds = [
            Feed(FILE, lambda: JsonlTracker(run_folder / FILE, so_far)),
            *(Feed(name, makers[name]) for name in dict.fromkeys(section.trackers)),
        ]

    def apply(self, record: Record) -> None:
        """Take the next record into account, and hand on the steps that are complete with it."""
        self._fold(record)
        if self._figures.rows:
            for row in self._figures.take():
                for feed in self._feeds:
                    feed.log(row)
        if type(record.event) is RunResumed:
            for feed in self._feeds:
                feed.rewind(record.event.step)

    def take_reports(self) -> list[Event]:
        """Return what the log should be told since the last call: what does not work, and what was lost."""
        reports = [] if self._trouble is None else [self._trouble]
        self._trouble = None
        for feed in self._feeds:
            others = [other.name for other in self._feeds if other is not feed and not other.broken]
            reports += feed.take_reports(", ".join([*others, "the event log"]))
        return reports

    def close(self, deadline_s: float) -> None:
        """Hand over what is left, for `deadline_s` at most. Blocks that long: not for the event loop's thread."""
        join_all(self._feeds, deadline_s)

    def _fold(self, record: Record) -> None:
        if self._broken:
            return
        try:
            self._figures.apply(record)
        except Exception as error:  # noqa: BLE001 - a defect here is no reason to end a run
            self._broken = True
            missing = f"figures of steps from seq {record.seq} on: {one_line(error)}"
            self._trouble = TelemetryDegraded(part="trackers", missing=missing, works="the event log")
