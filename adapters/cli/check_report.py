"""What `eventrain replay --check` found, for a person and as a table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ...core.config import RunConfig
from ...core.replay import UNKNOWN, Agreement, Decided, Divergence, NotReplayable, check
from ...events.folder import RunFolder
from ...events.types import RunStarted
from .config_file import parse_override, put, validate
from .opening import reader_of
from .quantities import clock_time

SHOWN = 12
"""Decisions of one list that are printed."""
TEXT_MAX = 200


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found, and how long it took."""

    run: str
    found: Agreement | Divergence
    overrides: Sequence[str]
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether no decision differs."""
        return isinstance(self.found, Agreement)

    @property
    def compared(self) -> Agreement:
        """What agreed: everything, or what came before the first that does not."""
        return self.found if isinstance(self.found, Agreement) else self.found.before


def check_run(
    folder: RunFolder, *, overrides: Sequence[str] = (), ignored: Sequence[str] = ()
) -> CheckReport:
    """Check the log in `folder`, with `overrides` (``"scheduler.max_staleness=2"``) on top of the run's settings.

    Raises `BadInput` for a setting that is refused, `NotReplayable` for a log without a beginning.
    """
    reader = reader_of(folder)
    config = _config(next(reader.records(), None), overrides) if overrides else None
    since = time.perf_counter()
    found = check(reader.records(), config, ignore_kinds=ignored)
    return CheckReport(folder.path.name, found, tuple(overrides), time.perf_counter() - since)


def _config(first: Any, overrides: Sequence[str]) -> RunConfig:
    if first is None or not isinstance(first.event, RunStarted):
        raise NotReplayable("the log does not begin with run_started: nothing says what was run")
    # Through the model first: tuples and defaults are then what a file would give.
    table = RunConfig.model_validate(first.event.config).model_dump()
    changes = [parse_override(text) for text in overrides]
    for keys, value in changes:
        put(table, keys, value)
    return validate(table, "the run's settings", overridden=[".".join(keys) for keys, _ in changes])


def report_lines(report: CheckReport) -> Iterator[str]:
    """Yield the lines for a person."""
    found, compared = report.found, report.compared
    asked = f" with {', '.join(report.overrides)}" if report.overrides else ""
    if isinstance(found, Agreement):
        yield f"{report.run}: {_counts(compared)}{asked}"
    else:
        yield from _divergence_lines(report.run, found, asked)
        yield f"  before it {_counts(compared)}"
    if compared.ignored:
        yield f"  not compared: {_kinds(compared.ignored)}"
    rate = compared.events / report.seconds if report.seconds else 0.0
    yield f"  {compared.events:,} events in {report.seconds:.1f} s, {rate:,.0f} events/s"


def _divergence_lines(run: str, found: Divergence, asked: str) -> Iterator[str]:
    when = clock_time(found.ts - found.start_ts)
    yield f"{run}: seq {found.seq}, {when}: the {found.actor} decides otherwise{asked}"
    alike = _alike(found)
    if alike:
        yield f"  {alike} decisions of this moment are the same, and then"
    yield "  recorded"
    yield from (f"    {line}" for line in _decisions(found.recorded[alike:]))
    yield "  would be decided now"
    yield from (f"    {line}" for line in _decisions(found.produced[alike:]))
    yield f"  state at seq {found.state_seq}"
    width = max(map(len, found.state), default=0)
    yield from (f"    {name:<{width}}  {line}" for name, line in found.state.items())


def _alike(found: Divergence) -> int:
    """Return how many decisions both lists begin with."""
    pairs = zip(found.recorded, found.produced, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _decisions(decisions: Sequence[Decided]) -> Iterator[str]:
    if not decisions:
        yield "nothing"
    for decided in decisions[:SHOWN]:
        if decided.kind == "blocked":
            yield f"to wait for {decided.fields['edge']}"
        else:
            yield f"{decided.kind} {_fields(decided.fields)}".rstrip()
    if len(decisions) > SHOWN:
        yield f"and {len(decisions) - SHOWN} more"


def _fields(fields: Mapping[str, Any]) -> str:
    parts = []
    for name, value in fields.items():
        if value is None or value == "":
            continue
        text = "unknown" if name == "index" and value == UNKNOWN else " ".join(str(value).split())
        parts.append(f"{name}={text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + '...'}")
    return " ".join(parts)


def _counts(compared: Agreement) -> str:
    total = sum(compared.decisions.values())
    return (
        f"{total:,} decisions agree: {_kinds(compared.decisions)}; and {compared.waits:,} decisions to wait"
    )


def _kinds(counts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count:,} {kind}" for kind, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    )


def check_table(report: CheckReport) -> dict[str, Any]:
    """Return the report as one table."""
    found, compared = report.found, report.compared
    table: dict[str, Any] = {
        "run": report.run,
        "agrees": report.agrees,
        "settings": list(report.overrides),
        "events": compared.events,
        "decisions": dict(compared.decisions),
        "waits": compared.waits,
        "ignored": dict(compared.ignored),
        "divergence": None,
        "seconds": round(report.seconds, 3),
    }
    if isinstance(found, Divergence):
        table["divergence"] = {
            "seq": found.seq,
            "ts": found.ts,
            "actor": found.actor,
            "recorded": [{"kind": one.kind, **one.fields} for one in found.recorded],
            "produced": [{"kind": one.kind, **one.fields} for one in found.produced],
            "state_seq": found.state_seq,
            "state": dict(found.state),
        }
    return table
