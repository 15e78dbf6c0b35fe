"""Write docs/events.md, docs/configuration.md and docs/metrics.md from the code that defines them.

    python docs/generate.py            # write them
    python docs/generate.py --check    # exit 1 and name the stale ones

The words are the models' own: class docstrings, field descriptions, limits. A test runs the check.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from eventrain.adapters.telemetry.metrics import catalog, idle
from eventrain.core import config
from eventrain.events import record
from eventrain.events import types as events

HERE = Path(__file__).resolve().parent
COMMENT = "<!-- Written by docs/generate.py (make docs). Change the code it names, not this file. -->"
ALIASES = {
    "Phase": events.Phase,
    "Outcome": events.Outcome,
    "FailureKind": events.FailureKind,
    "Blame": events.Blame,
    "EdgeName": events.EdgeName,
    "VersionSpans": events.VersionSpans,
}
"""Types that many events share; they are shown by name and explained once."""

SHARED_FIELDS = {
    "after_seq": "The last event that the log still holds.",
    "attempt": "Counts from 0; a retry is the next.",
    "away_s": "Seconds of the call in which the engine did not have it.",
    "awaited": "What the wait needs, in words.",
    "blame": "Who is charged.",
    "blocked": "Seq of the event with which the wait began.",
    "broken_by": "Seq of the first event after which the law did not hold.",
    "by": "Seq of the event that ended the stall.",
    "call": "Which method of the environment.",
    "chain": "One sentence per link, from the trainer's wait to the first cause.",
    "code_version": "Version of the code, with the commit where it is known.",
    "completed": "How many gave a result.",
    "config": "The whole configuration, defaults included.",
    "context_tokens": "Prompt and answer together at most.",
    "cut_bytes": "Bytes of the torn frame.",
    "delay_s": "Wait before the attempt.",
    "device": "Name of the device: `cpu`, `cuda:0`, ...",
    "done": "Whether the environment ended the trajectory.",
    "drawn": "Prompts drawn so far.",
    "edge": "What kind of wait.",
    "effect": "What took too long: `llm_call`, `train_step`, ...",
    "engine": "Name of the engine.",
    "env_s": "Seconds in the environment's steps.",
    "env_setup_s": "Seconds in the environment's reset.",
    "epoch": "Pass over the data, from 0.",
    "eval": "Number of the evaluation, from 0.",
    "expected": "What the law demands.",
    "failed": "How many gave none.",
    "failed_actor": "The actor that raised.",
    "failure": "What went wrong, as a kind that a policy can act on.",
    "finish_reason": "Why the engine stopped sampling.",
    "first_cause": "Seq of the event that shows the cause; none when no event does.",
    "found": "What is the case.",
    "group": "Number of the group.",
    "groups": "How many groups.",
    "host": "Name of the machine.",
    "index": "Item of the dataset.",
    "key": "Section and key of the configuration.",
    "lag": "Step that would train the group, minus the version at its dispatch.",
    "lag_max": "Largest lag in the batch.",
    "lag_mean": "Mean lag of the batch's groups.",
    "law": "Name of the law.",
    "limit_s": "The deadline, in seconds.",
    "llm_s": "Seconds in engines, without their queues.",
    "loss": "Of the step; only its gradient means anything.",
    "max_tokens": "Tokens to sample at most.",
    "memory_bytes": "Memory in use.",
    "message": "One line for a person.",
    "metrics": "What the learner measured, as `grad_norm` or `entropy`.",
    "mode": "How requests in flight are treated.",
    "new": "Value from now on.",
    "old": "Value until now.",
    "other_s": "Seconds in none of the parts.",
    "outcome": "How it ended.",
    "parameters": "Size of the model.",
    "path": "Relative to the run folder.",
    "payload": "Where the tokens lie.",
    "phase": "What the trainer does from now on.",
    "pid": "Process id of the controller.",
    "pool": "Whom the device serves.",
    "present": "What there is instead, in words.",
    "prompt": "Number of the draw.",
    "prompt_tokens": "Tokens that the engine is given.",
    "quarantined": "Items that are never drawn again.",
    "queue_s": "Seconds in an engine's queue.",
    "reason": "Why.",
    "restart": "Counts from 1 for each engine.",
    "retryable": "Whether another attempt may succeed.",
    "reward": "Finite; what the environment gave for the whole trajectory.",
    "reward_mean": "Mean over the trajectories meant here.",
    "reward_s": "Seconds in the environment's reward.",
    "reward_std": "Standard deviation over the same.",
    "run": "Name of the run, from the configuration.",
    "seconds": "How long it took.",
    "seed": "Of everything random.",
    "sentence": "The chain in one sentence.",
    "size": "Trajectories in the group.",
    "size_bytes": "Bytes on disk.",
    "stall": "Number of the stall, from 0.",
    "stall_kind": "What kind of standstill.",
    "step": "Optimizer step, from 0: trains version `step` into `step + 1`.",
    "steps": "Steps that the run made.",
    "stop_reason": "Why the trajectory ended.",
    "subject": "Whose: a trajectory, an engine, a step.",
    "target": "The step a group is meant to be trained in.",
    "tokens": "How many tokens.",
    "trace_parent": "W3C trace context that was handed on.",
    "trajectories": "How many trajectories.",
    "trajectory": "`57/3` is trajectory 3 of group 57, `eval4/0` the first of evaluation 4.",
    "turn": "Answers of the policy before this one, in this trajectory.",
    "turns": "Answers of the policy.",
    "version": "Version of the weights: optimizer steps made since the model was loaded.",
    "version_spans": "Which weights sampled how many tokens.",
    "waiter": "The actor that waits.",
    "worker": "Name of the worker that holds environments.",
    "window_s": "Length of the time that was sampled.",
}
"""What a field means wherever no description of its own says more."""


def type_text(annotation: object) -> str:
    """Return a type in the words of a reader: shared types by name, literals as their values."""
    for name, alias in ALIASES.items():
        if annotation == alias:
            return f"[{name}](#shared-types)"
    if annotation is type(None):
        return "`None`"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f'`"{value}"`' if isinstance(value, str) else f"`{value}`" for value in arguments)
    if origin is tuple and arguments[1:] == (...,):
        return f"list of {type_text(arguments[0])}"
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(type_text(argument) for argument in arguments)
    if annotation is events.PayloadRef:
        return "[PayloadRef](#shared-types)"
    if origin is None and isinstance(annotation, type):
        return f"`{annotation.__name__}`"
    return f"`{str(annotation).replace('typing.', '')}`"


def default_text(field: FieldInfo) -> str:
    """Return a field's default as it would be written, or nothing when it has to be given."""
    if field.default_factory is not None:
        return "`{}`"
    if field.default is PydanticUndefined:
        return ""
    if field.default == ():
        return "`[]`"
    if isinstance(field.default, str):
        return f'`"{field.default}"`'
    return f"`{field.default}`".replace("`True`", "`true`").replace("`False`", "`false`")


def limits_text(field: FieldInfo) -> str:
    """Return the numeric limits of a field, as ``>= 1``."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = [(sign, getattr(limit, name, None)) for limit in field.metadata for name, sign in signs.items()]
    return ", ".join(f"`{sign} {value}`" for sign, value in found if value is not None)


def row(*cells: str) -> str:
    """Return one line of a Markdown table."""
    return "| " + " | ".join(markdown(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def markdown(text: str) -> str:
    """Return a docstring's text with its double backticks single, as Markdown has them."""
    return text.replace("``", "`")


def table(*heads: str) -> list[str]:
    """Return the head of a Markdown table."""
    return [row(*heads), "|" + "---|" * len(heads)]


def groups() -> Iterator[tuple[str, list[type[events.Event]]]]:
    """Yield the groups of events/types.py: a comment line there stands as the title above its classes."""
    source = inspect.getsource(events)
    lines = source.splitlines()
    classes = {node.name: node.lineno for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    title, members = "", []
    for number, line in enumerate(lines, start=1):
        if line.startswith("# "):
            if members:
                yield title, members
            title, members = line.removeprefix("# "), []
        for name, at in classes.items():
            if at == number and getattr(events, name) in events.EVENT_CLASSES:
                members.append(getattr(events, name))
    if members:
        yield title, members


def attribute_docs(node: ast.ClassDef | ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield ``(name, annotation or value, string below it)`` of every documented name in a body."""
    for statement, after in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
            continue
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, ast.unparse(statement.annotation), inspect.cleandoc(after.value.value)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, ast.unparse(statement.value), inspect.cleandoc(after.value.value)


def envelope() -> list[str]:
    """Return the table of what stands around every event, from the Record class."""
    tree = ast.parse(inspect.getsource(record))
    cls = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Record")
    lines = table("field", "type", "meaning")
    lines += [row(f"`{name}`", f"`{kind}`", text) for name, kind, text in attribute_docs(cls)]
    return [*lines, row("`v`", "`int`", "Schema version of the event's kind; in the file only.")]


def shared_types() -> list[str]:
    """Return the table of types that many events share."""
    notes = {name: text for name, _, text in attribute_docs(ast.parse(inspect.getsource(events)))}
    lines = table("type", "values", "meaning")
    for name, alias in ALIASES.items():
        if typing.get_origin(alias) is typing.Literal:
            values = ", ".join(f"`{value}`" for value in typing.get_args(alias))
        else:
            values = f"`{alias}`"
        lines.append(row(name, values, notes.get(name, "")))
    fields = ", ".join(f"`{name}`" for name in events.PayloadRef.model_fields)
    return [*lines, row("PayloadRef", fields, first_line(events.PayloadRef))]


def first_line(cls: type[BaseModel]) -> str:
    """Return the summary of a class: its docstring up to the first empty line."""
    return inspect.getdoc(cls).split("\n\n")[0]


def event_page() -> str:
    """Return docs/events.md."""
    lines = [
        COMMENT, "", "# Events", "",
        (f"Everything that happens in a run is one of these {len(events.EVENT_CLASSES)} kinds. They are defined in "
        "[events/types.py](../events/types.py), and `eventrain events RUN` prints those of a run."), "",
        "## Around every event", "",
        "A line of the log is one event in this envelope, which the bus adds at append.", "", *envelope(), "",
        "## Shared types", "", *shared_types(), "",
    ]  # fmt: skip
    for title, members in groups():
        lines += [f"## {title}", ""]
        for cls in members:
            lines += event_section(cls)
    return "\n".join(lines).rstrip() + "\n"


def event_section(cls: type[events.Event]) -> list[str]:
    """Return the heading, the sentence and the table of one event."""
    kind = cls.model_fields["kind"].default
    schema = f" · schema {cls.SCHEMA}" if cls.SCHEMA > 1 else ""
    lines = [f"### {kind}", "", f"`{cls.__name__}`{schema}", "", markdown(inspect.getdoc(cls)), ""]
    fields = {name: field for name, field in cls.model_fields.items() if name != "kind"}
    if fields:
        lines += table("field", "type", "default", "meaning")
        for name, field in fields.items():
            meaning = field.description or SHARED_FIELDS.get(name, "")
            lines.append(row(f"`{name}`", type_text(field.annotation), default_text(field), meaning))
        lines.append("")
    return lines


def configuration_page() -> str:
    """Return docs/configuration.md."""
    lines = [
        COMMENT, "", "# Configuration", "",
        ("A run is one TOML file with the sections below; they are defined in "
        "[core/config.py](../core/config.py). A key without a default must be given. Unknown keys are refused, and "
        "numbers that could never make progress are refused before anything starts. On the command line, "
        "`--set learner.lr=1e-4` changes one key."), "",
    ]  # fmt: skip
    for section, field in config.RunConfig.model_fields.items():
        cls = field.annotation
        lines += [f"## [{section}]", "", markdown(inspect.getdoc(cls)), ""]
        lines += table("key", "type", "default", "allowed", "meaning")
        for name, entry in cls.model_fields.items():
            literal = typing.get_origin(entry.annotation) is typing.Literal
            kind = "`str`" if literal else type_text(entry.annotation).removesuffix(" or `None`")
            allowed = type_text(entry.annotation) if literal else limits_text(entry)
            default = default_text(entry).replace("`None`", "unset")
            lines.append(row(f"`{name}`", kind, default, allowed, entry.description or ""))
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


METRICS_HEAD = """# Metrics

Every figure is a fold of the event log, made in one place: [meter.py](../adapters/telemetry/metrics/meter.py). It goes
out in three ways, with the same values:

- a page for Prometheus, `http://HOST:PORT/metrics`, with `telemetry.prometheus_port` (0: any free port);
- OTLP over HTTP to `telemetry.otlp_endpoint`, every `telemetry.otlp_interval_s` seconds;
- from the log of any run, finished, crashed or going on: `eventrain export openmetrics RUN FILE`.

The first two need `pip install 'eventrain[telemetry]'`. All three carry the label `run`, the run's id
(`demo-20261201-015541`); no series has the number of a trajectory, group, step or prompt in its labels, so their number
does not grow with the run. Intervals that are still open count up to the newest event on disk, and a sample of a device
or of the event loop's lag is one every few seconds, so a stall is seen as it grows. The page answers while the loop
hangs. Phases are of one snapshot: in every scrape exactly one of them is 1. Counters begin with the first event of the
log and go on after a resume, also after a kill: what a page has shown is in the log. What a resume rolls back is not
subtracted. The time between a crash and the resume counts for nothing. A fork goes on from its parent's counts, under
its own id.

## All metrics

Labels are besides `run`. Names in OpenTelemetry are those of the instruments; a collector or Prometheus' own OTLP
receiver makes the Prometheus names of them: dots become underscores, the unit a suffix, a counter ends in `_total`.
Units in braces are annotations and leave no suffix. Phases and states are gauges of 0 and 1, all of a set in each
scrape. `service.name` becomes the label `job`, `service.instance.id` (`RUN-controller`) `instance`, and the rest of the
resource (`rl.run.id`, `host.name`, `process.pid`, `service.version`) stands in `target_info`.
"""

METRICS_TAIL = """## Device seconds

`rl_gpu_busy_seconds_total` and `rl_gpu_allocated_seconds_total` are integrated over event time. Each sample is split
where phases change, in proportion to the overlap, so a phase much shorter than the scrape interval is exact too:

    sum by (run, pool, phase) (rate(rl_gpu_busy_seconds_total[5m]))
      / (sum by (run, pool, phase) (rate(rl_gpu_allocated_seconds_total[5m])) > 0)

A GPU counts as busy while any kernel is on it, one that only waits for others too; where the chip counts it,
`rl_gpu_sm_active_seconds_total` tells the two apart. Metrics of others join by the phase:

    avg by (phase) (DCGM_FI_DEV_GPU_UTIL * on () group_left (phase) (rl_trainer_phase{run="RUN"} == 1))

At most 128 devices have series of their own; the others count together as `gpu="other"`.

## A finished run in Prometheus

    eventrain export openmetrics runs/demo demo.om --every 15s
    promtool tsdb create-blocks-from openmetrics demo.om PROMETHEUS_DATA_FOLDER

The same dashboards and alerts then work on it. A few things to know:

- Prometheus deletes blocks older than its retention, 15 days by default: start it with
  `--storage.tsdb.retention.time=10y` where older runs are to stay.
- Do not take in what is younger than 3 hours into the folder of a Prometheus that is running: it has that time in
  memory and still writes it. Use a folder of its own, or wait.
- A Prometheus that runs finds new blocks by itself, within a minute or so; one that is started finds them at once.
- Taking in the same run twice makes the same samples twice, which does no harm and takes room until the compaction.
- `target_info`, which is of a process and not of a run, is not in the file; neither are samples of the time at which
  nobody ran the run. The file of a fork begins with the fork.

## What goes wrong

Telemetry never ends a run nor holds it up. A port that is taken, a library that is missing and a receiver that does not
answer are told once by `telemetry_degraded`, and pushes that were lost are counted by `telemetry_dropped`. They are not
sent again: counters are cumulative, and the next push brings what is missing.
"""


def metrics_page() -> str:
    """Return docs/metrics.md."""
    heads = table("events", "OpenTelemetry", "Prometheus", "kind", "unit", "labels", "meaning")
    lines = [COMMENT, "", METRICS_HEAD, *heads]
    for metric in catalog.METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        made_of = ", ".join(f"`{kind}`" for kind in metric.events) or "all"
        unit = f"`{metric.unit}`" if metric.unit else ""
        lines.append(
            row(made_of, f"`{metric.otel}`", f"`{metric.prometheus}`", metric.kind, unit, labels, metric.description)
        )
    lines += [
        "", "## Why devices are idle", "",
        ("`rl_gpu_idle_seconds_total` has the allocated seconds that were not busy, by cause. At every moment "
        "each pool has one cause, the first of these that holds:"), "",
        *table("pool", "cause", "when"),
        *(row(pool, cause, when) for pool, cause, when in idle.RULES), "",
    ]  # fmt: skip
    return "\n".join([*lines, METRICS_TAIL]).rstrip() + "\n"


PAGES = {"events.md": event_page, "configuration.md": configuration_page, "metrics.md": metrics_page}


def stale() -> list[str]:
    """Return the names of pages that differ from what the code says now."""

    def lies(name: str) -> str:
        return (HERE / name).read_text() if (HERE / name).exists() else ""

    return [name for name, page in PAGES.items() if lies(name) != page()]


def main() -> int:
    """Write the pages, or check them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    check = parser.parse_args().check
    old = stale()
    for name in old:
        if check:
            print(f"docs/{name} is stale: make docs", file=sys.stderr)
        else:
            (HERE / name).write_text(PAGES[name]())
            print(f"wrote docs/{name}")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
