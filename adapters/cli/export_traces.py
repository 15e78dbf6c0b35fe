"""`eventrain export traces`: the log of a run as OpenTelemetry spans."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ...events.folder import RunFolder
from ...events.record import Record
from ...events.types import RunStarted
from ..wording import require
from .debug_option import debug_option
from .failures import BadInput, CommandFailed
from .opening import first_record, open_run, reader_of
from .writing import Output, force_option, write_whole

if TYPE_CHECKING:
    # Loaded by who exports: every other command starts without it.
    from ..telemetry.traces.builder import TraceBuilder
    from ..telemetry.traces.sampling import Sampling
    from ..telemetry.traces.spans import Span

BATCH = 512
"""Spans of one request, or of one line."""
RETRY_S = 10.0
"""How long a receiver that has answered before is tried: somebody waits."""

SPANS = Output(
    "traces export",
    "traces.jsonl",
    lambda head: head.startswith(b'{"resourceSpans":') and b'"stringValue":"eventrain"' in head,
)
STDOUT = Path("-")


class Count:
    """What was written."""

    def __init__(self) -> None:
        self.spans = 0
        self.trees = 0
        """Attempts and steps; traces, but for trajectories that were tried again, which have a tree for each try."""

    def add(self, spans: Iterable[Span]) -> None:
        """Count `spans`."""
        for span in spans:
            self.spans += 1
            self.trees += not span.parent


@click.command("traces", short_help="Send or write the run's traces, for Jaeger and the like.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--otlp", metavar="URL", help="Send them to an OpenTelemetry receiver (OTLP over HTTP).")
@click.option(
    "--jsonl",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write them as OTLP JSON, one batch a line.",
)
@click.option(
    "--share",
    metavar="P",
    type=click.FloatRange(0, 1),
    help="Share of the prompt groups to trace (telemetry.trace_share of the run).",
)
@click.option(
    "--slowest",
    metavar="N",
    type=click.IntRange(min=0),
    help="Slowest trajectories of each step to trace in any case (telemetry.trace_slowest of the run).",
)
@click.option(
    "--truncate-open",
    is_flag=True,
    help="Of a run that goes on, also what is open, cut off where the log ends now.",
)
@force_option
@debug_option
def traces_command(
    run: Path,
    otlp: str | None,
    jsonl: Path | None,
    share: float | None,
    slowest: int | None,
    truncate_open: bool,
    force: bool,
) -> None:
    """Make the traces of a run from its log, and send them to a receiver or write them to a file.

    A trace for each trajectory (queue, turns, calls to engine and environment, reward, buffer) and for each step, with
    links to what it consumed. Ids are functions of the log: sending twice, or after the run itself has sent, adds
    nothing. Always traced, whatever the share: what failed or was evicted, the slowest of each step, and the group
    that a step waited for last. FILE opens in Jaeger's web page by drag and drop; '-' is standard output.
    An earlier export at FILE is replaced, any other file only with --force.
    """
    if (otlp is None) == (jsonl is None):
        raise BadInput(["give --otlp URL or --jsonl FILE, one of the two"])
    from ..telemetry.traces.builder import TraceBuilder

    folder = open_run(run)
    if jsonl is not None and jsonl != STDOUT:
        SPANS.check(jsonl, force=force)
    # The lock first: a run that ends between the two looks has its last event in the log by then.
    gone = not folder.is_held()
    records, count = _whole(folder, run), Count()
    first = next(records)
    builder = TraceBuilder(_sampling(first.event, share, slowest))
    spans = _spans(builder, first, records, cut=truncate_open or gone, gone=gone)
    if otlp is not None:
        _send(otlp, spans, count)
        where = otlp
    else:
        assert jsonl is not None
        _write(jsonl, spans, count)
        where = str(jsonl)
    let_go = f"; {builder.let_go} more waited too long for their group's end" if builder.let_go else ""
    text = f"{where}: {count.spans} spans in {count.trees} trees of run {_run_of(builder)}{let_go}"
    click.echo(text, err=where == "-")


def _whole(folder: RunFolder, run: Path) -> Iterator[Record]:
    records = reader_of(folder).records()
    first = first_record(records, run)
    if not isinstance(first.event, RunStarted):
        raise BadInput([f"{run}: the log does not begin with run_started: it is no whole run"])
    yield first
    yield from records


def _sampling(event: Any, share: float | None, slowest: int | None) -> Sampling | None:
    """Return what is asked for; None where the configuration of the run, or of a resume, decides."""
    if share is None and slowest is None:
        return None
    from ..telemetry.traces.sampling import Sampling

    asked, default = event.config.get("telemetry", {}), Sampling()
    return Sampling(
        float(asked.get("trace_share", default.share)) if share is None else share,
        int(asked.get("trace_slowest", default.slowest)) if slowest is None else slowest,
    )


def _spans(
    builder: TraceBuilder, first: Record, rest: Iterable[Record], *, cut: bool, gone: bool
) -> Iterator[Span]:
    yield from builder.apply(first)
    for record in rest:
        yield from builder.apply(record)
    if cut:
        yield from builder.cut(gone=gone)


def _batches(spans: Iterable[Span], count: Count) -> Iterator[list[Span]]:
    batch: list[Span] = []
    for span in spans:
        batch.append(span)
        if len(batch) == BATCH:
            count.add(batch)
            yield batch
            batch = []
    if batch:
        count.add(batch)
        yield batch


def _write(path: Path, spans: Iterable[Span], count: Count) -> None:
    from ..telemetry.traces import otlp_json

    opened: AbstractContextManager[IO[Any]] = (
        click.open_file("-", "wb") if path == STDOUT else write_whole(path)
    )
    with opened as file:
        for batch in _batches(spans, count):
            file.write(otlp_json.line(batch))


def _send(url: str, spans: Iterable[Span], count: Count) -> None:
    if not url.startswith(("http://", "https://")) or not url.partition("://")[2].strip("/"):
        raise BadInput([f"--otlp {url}: is no URL of a receiver; it would be one like http://localhost:4318"])
    require("opentelemetry.proto", "telemetry")
    from ..telemetry.traces.delivery import Delivery
    from ..telemetry.traces.otlp import encoded

    delivery, never = Delivery(url, retry_s=0.0), threading.Event()  # a wrong URL is said at once
    try:
        for batch in _batches(spans, count):
            outcome = delivery.deliver(encoded(batch), never)
            if outcome.message:
                sent = count.spans - len(batch)
                raise CommandFailed([f"{outcome.message}; {sent} spans were sent before"])
            delivery.retry_s = RETRY_S
    finally:
        delivery.close()


def _run_of(builder: TraceBuilder) -> str:
    return builder.origin.run if builder.origin is not None else "?"
