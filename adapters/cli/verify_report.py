"""What `eventrain log verify` finds: the log, its events, its laws, its payloads and its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from ...core.projections.accounting import Breach, Ledger
from ...events.errors import PayloadDamaged, PayloadMissing
from ...events.folder import RunFolder
from ...events.payload import PayloadStore
from ...events.record import Record
from ...events.survey import Damage, Survey
from ...events.types import (
    CheckpointCommitted,
    Event,
    GroupRestored,
    PayloadRef,
    RunResumed,
    RunStarted,
    TrajectoryCompleted,
)

LINES_MAX = 20
"""Payloads that are named one by one; of the others only the number is said."""


@dataclass
class Verified:
    """The result of reading a run's folder from one end to the other."""

    path: Path
    survey: Survey
    being_written: bool
    payloads_checked: bool
    events: int = 0
    breaches: list[Breach] = field(default_factory=list)
    payloads: int = 0
    payloads_bad: int = 0
    payload_lines: list[str] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    """Committed ones of the history that counts, oldest first."""
    checkpoints_missing: list[tuple[int, str]] = field(default_factory=list)
    """With the seq of their commit."""
    uncommitted: list[str] = field(default_factory=list)
    begins_with_start: bool = True
    redacted: bool = False

    @property
    def clean(self) -> bool:
        """Whether nothing was found that is wrong. A tail that a live writer is just writing is not."""
        torn = self.survey.torn is not None and not self.being_written
        bad = self.survey.damages or self.breaches or self.payloads_bad or self.checkpoints_missing
        return not (torn or bad or not self.begins_with_start)


def verify(folder: RunFolder, *, with_payloads: bool, being_written: bool) -> Verified:
    """Read the whole run in `folder` and return what is wrong with it. Changes nothing and takes no lock."""
    survey = Survey(folder.events)
    found = Verified(folder.path, survey, being_written, with_payloads)
    ledger, checkpoints = Ledger(), _Checkpoints()
    with closing(PayloadStore(folder.payloads, read_only=True)) as store:
        for record in survey.records():
            if not survey.damages:  # behind a gap the books cannot be kept
                if found.events == 0:
                    found.begins_with_start = isinstance(record.event, RunStarted)
                ledger.apply(record)
                checkpoints.apply(record)
            found.events += 1
            if isinstance(record.event, RunStarted):
                found.redacted = bool(record.event.redacted)
            if with_payloads and not found.redacted:
                _check_payloads(found, store, record)
    found.breaches = ledger.breaches
    if not found.redacted:
        checkpoints.judge(found, folder)
    return found


def payload_refs(event: Event) -> Iterator[PayloadRef]:
    """Yield every payload that `event` names."""
    if isinstance(event, TrajectoryCompleted):
        yield event.payload
    elif isinstance(event, GroupRestored):
        for one in event.trajectories:
            yield one.payload


def _check_payloads(found: Verified, store: PayloadStore, record: Record) -> None:
    for ref in payload_refs(record.event):
        found.payloads += 1
        try:
            store.get(ref)
        except (PayloadMissing, PayloadDamaged) as error:
            found.payloads_bad += 1
            if found.payloads_bad <= LINES_MAX:
                found.payload_lines.append(f"seq {record.seq}: {error}")


class _Checkpoints:
    """Which checkpoints must be there, and which may have been dropped as too old."""

    def __init__(self) -> None:
        self.keep = 0
        self.needed: list[tuple[int, str]] = []  # seq of the commit, path; oldest first
        self.named: set[str] = set()

    def apply(self, record: Record) -> None:
        match record.event:
            case RunStarted() as event:
                self._configured(event.config)
            case CheckpointCommitted(path=path):
                self.named.add(path)
                self.needed = [one for one in self.needed if one[1] != path] + [(record.seq, path)]
            case RunResumed() as event:
                if event.config is not None:
                    self._configured(event.config)
                # Of what lies before it only the one that it goes on from has to be there.
                self.needed = [one for one in self.needed if one[1] == event.checkpoint]

    def _configured(self, config: dict[str, object]) -> None:
        section = config.get("checkpoint")
        self.keep = int(section.get("keep", 2)) if isinstance(section, dict) else 2

    def judge(self, found: Verified, folder: RunFolder) -> None:
        found.checkpoints = [path for _, path in self.needed]
        found.checkpoints_missing = [
            one for one in self.needed[-self.keep :] if not (folder.path / one[1]).is_dir()
        ]
        there = sorted(folder.checkpoints.iterdir()) if folder.checkpoints.is_dir() else []
        paths = [f"checkpoints/{one.name}" for one in there]
        if not found.survey.damages:  # behind a damage nobody knows what was committed
            found.uncommitted = [path for path in paths if path not in self.named]


def verify_lines(found: Verified) -> list[str]:
    """Return what a person reads: one line per finding, then what was verified and what can be read."""
    lines = [_damage_line(damage) for damage in found.survey.damages]
    torn = found.survey.torn
    if torn is not None:
        where = f"{torn.segment} at byte {torn.offset}"
        where += f": {torn.cut_bytes} bytes of a torn write after seq {torn.after_seq}"
        lines.append(
            f"{where}: perhaps just being written"
            if found.being_written
            else f"{where}; no event that was acknowledged is lost; `eventrain log repair` or a resume cuts them off"
        )
    if not found.begins_with_start:
        lines.append("seq 0: the log does not begin with run_started: no run can be read from it")
    lines += [
        f"seq {breach.seq}: law '{breach.law}' broken: expected {breach.expected}; found {breach.found}"
        for breach in found.breaches
    ]
    lines += found.payload_lines
    if found.payloads_bad > len(found.payload_lines):
        lines.append(f"and {found.payloads_bad - len(found.payload_lines)} more payloads that cannot be read")
    lines += [
        f"seq {seq}: {path} was committed and is missing; a resume goes on from an older one, if there is one"
        for seq, path in found.checkpoints_missing
    ]
    lines += [f"{path}: not committed, a resume ignores it" for path in found.uncommitted]
    return [*lines, *_summary(found)]


def _damage_line(damage: Damage) -> str:
    place = f"{damage.segment} at byte {damage.offset}" if damage.offset else damage.segment
    return f"{place}: {damage.reason}; damaged from seq {damage.from_seq} on"


def _summary(found: Verified) -> list[str]:
    survey = found.survey
    if not found.events and not survey.damages:
        return [f"{found.path}: the log is empty: the run has not begun yet"]
    what = f"{found.events} events in {survey.segments} segment{'s' * (survey.segments != 1)}"
    if found.redacted:
        what += "; redacted: payloads and checkpoints are not part of it"
    elif found.payloads_checked:
        what += f", {found.payloads} payloads"
    else:
        what += ", payloads not looked at"
    if found.being_written:
        what += "; a live process writes the run, and this is what was there so far"
    if found.clean:
        return [f"{found.path}: clean: {what}"]
    lines = []
    if survey.damages:
        lines.append(_readable(survey))
    return [*lines, f"{found.path}: not clean: {what}"]


def _readable(survey: Survey) -> str:
    first, *others = survey.readable or [(0, -1)]
    if first[0] != 0:
        first, others = (0, -1), survey.readable
    told = "no event can be read by the other commands"
    if first[1] >= 0:
        told = f"the other commands can read seq 0 to {min(first[1], survey.damages[0].from_seq - 1)}"
    beyond = ", ".join(f"{begin} to {end}" for begin, end in others[:5])
    more = f" and {len(others) - 5} more stretches" if len(others) > 5 else ""
    return f"{told}; whole events behind the damage: {f'seq {beyond}{more}' if beyond else 'none'}"
