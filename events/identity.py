"""Names that a log gives to itself and its parts: the run's id, its trajectories, and the ids of its traces.

All are functions of the log, so whoever reads it, live or later, on any machine, arrives at the same ones. An exporter
that starts over sends the same spans again, a link may be made before what it leads to, and no generator of random
numbers has to be shared or seeded.
"""

from __future__ import annotations

import datetime
from hashlib import blake2b

_SEPARATOR = "\x1f"


def run_id(name: str, started_ts: int) -> str:
    """Return the id of the run `name` that began at UTC nanoseconds `started_ts`: ``demo-20261201-015541``.

    For a fork that is the time at which it was forked. Run folders are named the same way unless somebody says
    otherwise.
    """
    moment = datetime.datetime.fromtimestamp(started_ts // 1_000_000_000, datetime.UTC)
    return f"{name}-{moment:%Y%m%d-%H%M%S}"


def group_of(trajectory: str) -> int | None:
    """Return the number of the group that `trajectory` belongs to: 57 for ``57/3``; None for any other name."""
    group, slash, _ = trajectory.partition("/")
    return int(group) if slash and group.isdecimal() else None


def is_evaluation(trajectory: str) -> bool:
    """Return whether `trajectory` belongs to an evaluation, as ``eval4/0`` does, and not to a group."""
    evaluation, slash, _ = trajectory.partition("/")
    return bool(slash) and evaluation.startswith("eval") and evaluation[4:].isdecimal()


def trace_id(run: str, subject: str) -> bytes:
    """Return the 16 bytes that identify the trace of `subject`: a trajectory ``57/3`` or a step ``step:12``."""
    return blake2b(f"{run}{_SEPARATOR}{subject}".encode(), digest_size=16).digest()


def span_id(run: str, *parts: object) -> bytes:
    """Return the 8 bytes that identify a span of `run`, which `parts` tell from all its others."""
    text = _SEPARATOR.join((run, *map(str, parts)))
    return blake2b(text.encode(), digest_size=8).digest()


def traced(run: str, group: int, share: float) -> bool:
    """Return whether `group` belongs to the `share` (0 to 1) of groups whose trajectories are traced.

    Whoever asks gets the same answer, and a larger share contains every smaller one.
    """
    place = int.from_bytes(blake2b(f"{run}{_SEPARATOR}{group}".encode(), digest_size=7).digest())
    return place < share * 2**56


def chat_span_id(run: str, trajectory: str, attempt: int, turn: int, part: int = 0) -> bytes:
    """Return the id of the span of one call to an engine, under which the engine's own spans hang."""
    return span_id(run, "chat", trajectory, attempt, turn, *([part] if part else []))


def trace_parent(run: str, trajectory: str, attempt: int, turn: int, part: int = 0, *, sampled: bool) -> str:
    """Return the ``traceparent`` header of one call to an engine (W3C Trace Context, section 3.2)."""
    call = chat_span_id(run, trajectory, attempt, turn, part)
    return f"00-{trace_id(run, trajectory).hex()}-{call.hex()}-{int(sampled):02x}"
